"""One call's constants, and what it hands out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from branchwise.backends.tokenizer import Tokenizer
from branchwise.config import CallOptions
from branchwise.engine.planner import Cost
from branchwise.engine.strategy import Strategy
from branchwise.errors import BranchwiseError
from branchwise.results import Decision, FieldResult, Provenance
from branchwise.schema.questions import Schema
from branchwise.tree.rows import CompiledSchema

Outcome: TypeAlias = Decision[Any] | BranchwiseError
"""What stands at one place of the output: a decision, or that item's error."""


Fields: TypeAlias = dict[str, FieldResult]
Reconcile: TypeAlias = Callable[[Fields], Fields]


def unchanged(fields: Fields) -> Fields:
    """The fields as they were scored: no constraints hold between them."""
    return fields


@dataclass(frozen=True)
class Job:
    """What is the same for every context of a call.

    ``reconcile`` makes the fields of one context agree with each other, before its value is built.
    """

    schema: Schema
    compiled: CompiledSchema
    options: CallOptions
    provenance: Provenance
    strategy: Strategy
    tokenizer: Tokenizer
    max_positions: int
    budget: Cost
    reconcile: Reconcile = unchanged
