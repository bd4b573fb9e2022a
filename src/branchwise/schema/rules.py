"""Cardinality rules over variables: what every constraint of a schema comes down to.

A variable is the index of something that takes one of a few values: a boolean, choice or score
field (its values are its options' indices), or one option of a multi field (0 is no, 1 is yes).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Term:
    """True when ``variable`` takes ``value``; with ``holds=False``, when it takes any other one."""

    variable: int
    value: int
    holds: bool = True


@dataclass(frozen=True, slots=True)
class Rule:
    """At least ``least`` and at most ``most`` of ``terms`` are true.

    ``origin``: the index of the declared constraint that the rule is a part of.
    """

    terms: tuple[Term, ...]
    least: int
    most: int
    origin: int
