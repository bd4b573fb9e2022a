"""What a strategy does for the engine: cost a context, score a group."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from branchwise.backends.base import Float64Array, NodeScores, PrefixHandle
from branchwise.config import StrategyName
from branchwise.engine.planner import Cost, Item
from branchwise.tree.rows import CompiledSchema


@dataclass(frozen=True)
class GroupScores:
    """Node scores of N contexts, and what they cost.

    ``logits``: float64 ``[N, A]``. ``log_normalizer``: float64 ``[N, K]`` or None. Counts as in
    :class:`~branchwise.results.Telemetry`. ``prefix``: the prefix that was used or made; it stays
    in the cache at least for as long as it is held.
    """

    logits: Float64Array
    log_normalizer: Float64Array | None
    prefills: int
    passes: int
    tokens_unique: int
    tokens_computed: int
    tokens_cached: int
    peak_bytes: int
    prefix: PrefixHandle | None


def by_context(scores: NodeScores, contexts: int) -> tuple[Float64Array, Float64Array | None]:
    """A pass's logits ``[N, A]`` and log-normalizers ``[N, K]``, its nodes being context by context."""
    shape = (contexts, -1)
    normalizer = scores.log_normalizer
    return scores.logits.reshape(shape), None if normalizer is None else normalizer.reshape(shape)


class Strategy(Protocol):
    """One way to turn a group of contexts into node scores."""

    @property
    def name(self) -> StrategyName: ...

    def cost(self, compiled: CompiledSchema, item: Item) -> Cost: ...

    def score_group(
        self, compiled: CompiledSchema, items: Sequence[Item], want_normalizer: bool
    ) -> GroupScores:
        """Raises :class:`~branchwise.errors.BackendMemoryError` when the group does not fit."""
        ...


class Serialized:
    """A strategy that runs one group at a time, whichever thread asks: a model serves one pass."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._lock = threading.Lock()
        self.name = strategy.name
        self.cost = strategy.cost

    def score_group(
        self, compiled: CompiledSchema, items: Sequence[Item], want_normalizer: bool
    ) -> GroupScores:
        with self._lock:
            return self._strategy.score_group(compiled, items, want_normalizer)
