"""The packed pass: chunk by chunk through the model, then the head over all nodes."""

from __future__ import annotations

import numpy as np
import torch

from branchwise.backends.base import Int64Array, NodeScores, PackedBatch
from branchwise.backends.torch_attention import ForestPass, LayerCall, running
from branchwise.backends.torch_head import LOGIT_BYTES, Answers
from branchwise.backends.torch_kv import Meter, SegmentStore, TorchPrefix
from branchwise.backends.torch_masks import MaskBuilder
from branchwise.backends.torch_model import LoadedModel
from branchwise.backends.torch_plan import Chunk, plan_chunks


class PackedRun:
    """One packed pass. ``calls``, ``mask_windows``: what the layers asked for in the last chunk."""

    def __init__(self, loaded: LoadedModel, batch: PackedBatch, meter: Meter) -> None:
        prefix = batch.prefix
        if prefix is not None and not isinstance(prefix, TorchPrefix):
            raise TypeError(f"the prefix is a {type(prefix).__name__}, of another backend")
        if prefix is not None and prefix.owner is not loaded.model:
            raise ValueError("the prefix was computed by another model")
        self._loaded = loaded
        self._batch = batch
        self._prefix = prefix
        self._meter = meter
        self._masks = MaskBuilder(loaded.dtype, loaded.device)
        self._store = SegmentStore([segment.stop - segment.start for segment in batch.segments], meter)
        self._answers = Answers.of(batch)
        self._waiting: list[tuple[torch.Tensor, Int64Array]] = []
        self.calls: dict[int, LayerCall] = {}
        self.mask_windows: set[int | None] = set()

    def score(self) -> NodeScores:
        """Run it. What it held is free afterwards, also when it fails."""
        batch, loaded = self._batch, self._loaded
        tokens = 0
        self._meter.restart()
        try:
            for chunk in plan_chunks(
                batch, chunk_tokens=loaded.chunk_tokens, piece_tokens=loaded.piece_tokens
            ):
                tokens += self._run(chunk)
                self._store.release(chunk.released)
            self._answer()
            kept = None if batch.keep is None else self._store.keep(batch.keep, loaded.model)
        finally:
            self._store.close()
            self._waiting.clear()
        answers = self._answers
        return NodeScores(answers.logits, answers.log_normalizer, tokens, kept, self._meter.peak)

    def _run(self, chunk: Chunk) -> int:
        """One forward; the number of tokens it was given."""
        batch, loaded = self._batch, self._loaded
        token_ids = loaded.ids(batch.token_ids[chunk.start : chunk.stop])
        positions = loaded.ids(batch.positions[chunk.start : chunk.stop])
        nodes = np.flatnonzero((batch.nodes >= chunk.start) & (batch.nodes < chunk.stop))
        at = torch.from_numpy(batch.nodes[nodes] - chunk.start).to(loaded.device)
        self.calls.clear()
        self.mask_windows.clear()
        forest = ForestPass(
            chunk=chunk,
            store=self._store,
            prefix=self._prefix,
            masks=self._masks,
            meter=self._meter,
            windows=loaded.windows,
            calls=self.calls,
            mask_windows=self.mask_windows,
        )
        with running(forest):
            rows = loaded.node_rows(token_ids, positions, at)
        if len(nodes):
            self._waiting.append((rows, nodes))
        if sum(rows.nbytes for rows, _ in self._waiting) > LOGIT_BYTES:
            self._answer()
        return token_ids.numel()

    def _answer(self) -> None:
        """The head over all rows that wait for it: its weights are read once for many chunks."""
        if self._waiting:
            rows = torch.cat([rows for rows, _ in self._waiting])
            nodes = np.concatenate([nodes for _, nodes in self._waiting])
            self._waiting.clear()
            self._loaded.head.score(rows, nodes, self._answers, self._meter)
