"""The classic strategy: a prefill per context, then one pass over all rows of all contexts.

It is what runtimes without a packed pass need, and what the packed pass is measured against.
Rows depend on the schema alone and are built once; row i of the pass continues the prompt in
``cache_slots[i]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from branchwise.backends.base import ClassicBackend, RowBatch
from branchwise.config import StrategyName
from branchwise.engine.planner import Cost, Item
from branchwise.engine.strategy import GroupScores
from branchwise.tree.packing import pack
from branchwise.tree.rows import CompiledSchema


@dataclass(frozen=True)
class SchemaRows:
    """One row per branch point, ``token_ids`` ending in its node.

    ``borrowed``: how many of the prompt's last tokens every row starts with; 1 when some node is
    the prompt's own last token, since a row must not be empty.
    """

    token_ids: tuple[tuple[int, ...], ...]
    borrowed: int


def build_schema_rows(compiled: CompiledSchema) -> SchemaRows:
    """The rows of a schema, the same for every context (the borrowed token left out)."""
    borrowed = 0 if all(compiled.node_paths) else 1
    return SchemaRows(compiled.node_paths, borrowed)


class ClassicStrategy:
    """N prefills of width 1 and one scoring pass over N × K rows per group."""

    name: StrategyName = "classic"

    def __init__(self, backend: ClassicBackend) -> None:
        self._backend = backend

    def cost(self, compiled: CompiledSchema, item: Item) -> Cost:
        """Every row holds a copy of its context's cache while the pass runs."""
        can = self._backend.capabilities
        prompt = len(compiled.prefix_ids) + len(item.token_ids) + len(compiled.suffix_ids)
        width = max(map(len, compiled.node_paths), default=0) + 1
        rows = len(compiled.node_paths)
        tokens = prompt + rows * width
        kept = prompt + rows * (prompt + width)
        return Cost(tokens, kept * can.kv_bytes_per_token + tokens * can.pass_bytes_per_token)

    def score_group(
        self, compiled: CompiledSchema, items: Sequence[Item], want_normalizer: bool
    ) -> GroupScores:
        rows = build_schema_rows(compiled)
        prompts = [
            np.concatenate([compiled.prefix_ids, item.token_ids, compiled.suffix_ids]).tolist()
            for item in items
        ]
        held = [len(prompt) - rows.borrowed for prompt in prompts]
        slots = [self._backend.prefill(prompt[:cut]) for prompt, cut in zip(prompts, held, strict=True)]
        batch = RowBatch(
            token_ids=tuple(
                (*prompt[cut:], *row)
                for prompt, cut in zip(prompts, held, strict=True)
                for row in rows.token_ids
            ),
            allowed_ids=np.tile(compiled.allowed_ids, len(items)),
            allowed_offsets=_repeated(compiled, len(items)),
            want_normalizer=want_normalizer,
        )
        scores = self._backend.score_rows(batch, [slot for slot in slots for _ in rows.token_ids])
        shape = (len(items), -1)
        normalizer = scores.log_normalizer
        forest = pack(compiled, [item.token_ids for item in items], prefix=None, want_normalizer=False)
        return GroupScores(
            logits=scores.logits.reshape(shape),
            log_normalizer=None if normalizer is None else normalizer.reshape(shape),
            prefills=len(items),
            passes=1,
            tokens_unique=len(forest.token_ids),
            tokens_computed=sum(held) + scores.tokens_computed,
            tokens_cached=0,
            peak_bytes=scores.peak_bytes,
            prefix=None,
        )


def _repeated(compiled: CompiledSchema, times: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    sizes = np.tile(np.diff(compiled.allowed_offsets), times)
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
