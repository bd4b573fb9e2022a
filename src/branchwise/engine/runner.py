"""Runs planned groups, and halves those that do not fit."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from branchwise.engine.planner import Item
from branchwise.engine.strategy import GroupScores, Strategy
from branchwise.errors import BackendMemoryError
from branchwise.tree.rows import CompiledSchema


@dataclass(frozen=True)
class GroupRun:
    """A group that ran: its items in the order of the rows of ``scores``."""

    items: tuple[Item, ...]
    scores: GroupScores
    failed_attempts: int
    seconds: float


@dataclass(frozen=True)
class GroupFailure:
    """A single item that does not fit by itself."""

    item: Item
    error: BackendMemoryError


def run_group(
    strategy: Strategy, compiled: CompiledSchema, items: Sequence[Item], want_normalizer: bool
) -> Iterator[GroupRun | GroupFailure]:
    """Score ``items`` in one pass; after an out-of-memory, in two halves, and so on.

    Only :class:`BackendMemoryError` is caught. A failed attempt's time is charged to the runs
    that follow it, since they pay for it.
    """
    pending: list[tuple[Sequence[Item], int]] = [(items, 0)]
    started = time.perf_counter()
    while pending:
        group, failures = pending.pop()
        try:
            scores = strategy.score_group(compiled, group, want_normalizer)
        except BackendMemoryError as exc:
            if len(group) == 1:
                yield GroupFailure(group[0], exc)
                continue
            half = len(group) // 2
            pending += [(group[half:], failures + 1), (group[:half], failures + 1)]
            continue
        now = time.perf_counter()
        yield GroupRun(tuple(group), scores, failures, now - started)
        started = time.perf_counter()
