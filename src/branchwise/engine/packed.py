"""The packed strategy: a whole group, its prefix included where it is not cached, in one pass."""

from __future__ import annotations

from collections.abc import Sequence

from branchwise.backends.base import Backend
from branchwise.config import StrategyName
from branchwise.engine.planner import Cost, Item
from branchwise.engine.prefix_cache import PrefixCache
from branchwise.engine.strategy import GroupScores, by_context
from branchwise.tree.packing import pack
from branchwise.tree.rows import CompiledSchema


class PackedStrategy:
    """One packed pass per group over the token tree."""

    name: StrategyName = "packed"

    def __init__(self, backend: Backend, prefixes: PrefixCache) -> None:
        self._backend = backend
        self._prefixes = prefixes

    def cost(self, compiled: CompiledSchema, item: Item) -> Cost:
        can = self._backend.capabilities
        tokens = len(item.token_ids) + len(compiled.suffix_ids) + len(compiled.forest.token_ids)
        return Cost(tokens, tokens * (can.kv_bytes_per_token + can.pass_bytes_per_token))

    def score_group(
        self, compiled: CompiledSchema, items: Sequence[Item], want_normalizer: bool
    ) -> GroupScores:
        key = compiled.prefix_ids.tobytes()
        prefix = self._prefixes.get(key)
        batch = pack(
            compiled,
            [item.token_ids for item in items],
            prefix=prefix,
            want_normalizer=want_normalizer,
        )
        scores = self._backend.score_packed(batch)
        if scores.kept is not None:
            self._prefixes.put(key, scores.kept)
        logits, log_normalizer = by_context(scores, len(items))
        return GroupScores(
            logits=logits,
            log_normalizer=log_normalizer,
            prefills=0,
            passes=1,
            tokens_unique=len(batch.token_ids),
            tokens_computed=scores.tokens_computed,
            tokens_cached=0 if prefix is None else prefix.length,
            peak_bytes=scores.peak_bytes,
            prefix=scores.kept or prefix,
        )
