"""Groups of contexts that run together, under a token and a memory budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from branchwise.backends.base import Int32Array


@dataclass(frozen=True, eq=False)
class Item:
    """One distinct context of a call.

    ``index``: where it first stands in the input. ``key``: SHA-256 of its text. ``token_ids``:
    int32, the fenced text. ``tokenize_seconds``: its share of the time its batch took.
    """

    index: int
    key: bytes
    token_ids: Int32Array
    tokenize_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What one context adds to a group."""

    tokens: int
    nbytes: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.tokens + other.tokens, self.nbytes + other.nbytes)

    def within(self, budget: Cost) -> bool:
        return self.tokens <= budget.tokens and self.nbytes <= budget.nbytes


def plan_groups(items: Sequence[Item], cost: Callable[[Item], Cost], budget: Cost) -> list[list[Item]]:
    """Items sorted by length, cut into groups that stay within ``budget``.

    A group grows by the actual cost of each item it takes. An item that is over the budget by
    itself gets a group of its own.
    """
    groups: list[list[Item]] = []
    total = Cost(0, 0)
    for item in sorted(items, key=lambda item: (len(item.token_ids), item.index)):
        grown = total + cost(item)
        if groups and grown.within(budget):
            groups[-1].append(item)
            total = grown
        else:
            groups.append([item])
            total = cost(item)
    return groups
