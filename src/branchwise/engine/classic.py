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
from branchwise.engine.strategy import GroupScores, by_context
from branchwise.tree.packing import unique_tokens
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
        prompt = compiled.prompt_tokens(item.token_ids)
        width = compiled.depth + 1
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
        allowed_ids, allowed_offsets = compiled.allowed_for(len(items))
        batch = RowBatch(
            token_ids=tuple(
                (*prompt[cut:], *row)
                for prompt, cut in zip(prompts, held, strict=True)
                for row in rows.token_ids
            ),
            allowed_ids=allowed_ids,
            allowed_offsets=allowed_offsets,
            want_normalizer=want_normalizer,
        )
        scores = self._backend.score_rows(batch, [slot for slot in slots for _ in rows.token_ids])
        logits, log_normalizer = by_context(scores, len(items))
        return GroupScores(
            logits=logits,
            log_normalizer=log_normalizer,
            prefills=len(items),
            passes=1,
            tokens_unique=unique_tokens(compiled, [item.token_ids for item in items]),
            tokens_computed=sum(held) + scores.tokens_computed,
            tokens_cached=0,
            peak_bytes=scores.peak_bytes,
            prefix=None,
        )
