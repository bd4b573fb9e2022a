"""Logits at nodes: exact in float32 for the allowed ids, and the normalizer over the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from branchwise.backends.base import Int32Array, Int64Array, PackedBatch, RowBatch
from branchwise.backends.torch_kv import Meter

LOGIT_BYTES = 64 << 20  # most bytes of float32 logits over the vocabulary that are held at once
# A matrix product of few rows or columns takes another path through a BLAS, with other rounding.
# From these sizes on a node's logits do not depend on what else is asked in the pass.
LEAST_ROWS = 16
LEAST_COLUMNS = 32

Finish = Callable[[torch.Tensor], torch.Tensor]


class Answers:
    """The numbers of a pass, filled in slices of nodes.

    ``logits``: float64 ``[A]``; ``log_normalizer``: float64 ``[K]`` or None.
    """

    def __init__(self, allowed_ids: Int32Array, offsets: Int64Array, want_normalizer: bool) -> None:
        self._allowed_ids = allowed_ids
        self._offsets = offsets
        self.logits = np.empty(len(allowed_ids), dtype=np.float64)
        self.log_normalizer = np.empty(len(offsets) - 1, dtype=np.float64) if want_normalizer else None

    @classmethod
    def of(cls, asked: PackedBatch | RowBatch) -> Answers:
        return cls(asked.allowed_ids, asked.allowed_offsets, asked.want_normalizer)

    def places(self, nodes: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For each allowed id of ``nodes``: its place in ``logits``, and its node's place in ``nodes``."""
        starts, sizes = self._offsets[nodes], np.diff(self._offsets)[nodes]
        rows = np.repeat(np.arange(len(nodes)), sizes)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return np.repeat(starts, sizes) + within, rows

    def ids(self, places: Int64Array) -> Int64Array:
        return self._allowed_ids[places].astype(np.int64)


class NodeHead(Protocol):
    """From what a model gives at nodes to answers. ``reads_hidden``: its rows are hidden states
    ``[K, D]`` before the head; otherwise they are the model's logits ``[K, V]``."""

    @property
    def reads_hidden(self) -> bool: ...

    def score(self, rows: torch.Tensor, nodes: Int64Array, answers: Answers, meter: Meter) -> None: ...


@dataclass(frozen=True)
class Head:
    """``finish(hidden @ weight.T + bias)``, the model's own logits (checked when it is loaded).

    ``finish`` works on each logit by itself: scaling, soft capping.
    """

    weight: torch.Tensor  # [V, D]
    bias: torch.Tensor | None  # [V]
    finish: Finish
    reads_hidden: bool = True

    def score(self, rows: torch.Tensor, nodes: Int64Array, answers: Answers, meter: Meter) -> None:
        """The logits of allowed ids are the same numbers whether or not the normalizer is wanted."""
        step = max(LEAST_ROWS, LOGIT_BYTES // (4 * self.weight.shape[0]))
        for first in range(0, len(nodes), step):
            self._score_slice(rows[first : first + step], nodes[first : first + step], answers, meter)

    def _score_slice(self, hidden: torch.Tensor, nodes: Int64Array, answers: Answers, meter: Meter) -> None:
        places, rows = answers.places(nodes)
        ids = answers.ids(places)
        unique, columns = np.unique(ids, return_inverse=True)
        hidden = _padded(hidden, LEAST_ROWS)
        device = hidden.device
        row = torch.from_numpy(rows).to(device)
        table = self._allowed(hidden, torch.from_numpy(unique).to(device))
        with meter.holding(table.nbytes):
            exact = table[row, torch.from_numpy(columns).to(device)]
        answers.logits[places] = exact.cpu().numpy()
        if answers.log_normalizer is None:
            return
        full = self.finish(functional.linear(hidden, self.weight, self.bias)).float()
        with meter.holding(full.nbytes):
            full[row, torch.from_numpy(ids).to(device)] = exact  # so that no legal mass is above 1
            answers.log_normalizer[nodes] = torch.logsumexp(full[: len(nodes)], dim=-1).cpu().numpy()

    def _allowed(self, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """float32 ``[rows, ids]``: in half precision a logit would be rounded by up to 0.06."""
        ids = _padded(ids, LEAST_COLUMNS)
        bias = None if self.bias is None else self.bias[ids].float()
        return self.finish(functional.linear(hidden.float(), self.weight[ids].float(), bias))


@dataclass(frozen=True)
class WholeHead:
    """For a head that is not a plain product: the model computes its logits itself."""

    reads_hidden: bool = False

    def score(self, rows: torch.Tensor, nodes: Int64Array, answers: Answers, meter: Meter) -> None:
        places, row = answers.places(nodes)
        logits = rows.float()
        with meter.holding(logits.nbytes):
            at = torch.from_numpy(row).to(rows.device), torch.from_numpy(answers.ids(places)).to(rows.device)
            answers.logits[places] = logits[at].cpu().numpy()
            if answers.log_normalizer is not None:
                answers.log_normalizer[nodes] = torch.logsumexp(logits, dim=-1).cpu().numpy()


def head_of(model: Any, finish: Finish) -> NodeHead:
    """The head over a model's output layer, if that is a plain linear layer on its base model."""
    layer = model.get_output_embeddings()
    if type(layer) is nn.Linear and model.base_model is not model:
        return Head(layer.weight, layer.bias, finish)
    return WholeHead()


def _padded(rows: torch.Tensor, least: int) -> torch.Tensor:
    """The rows, the last of them repeated until there are ``least``."""
    missing = least - len(rows)
    if missing <= 0 or len(rows) == 0:
        return rows
    return torch.cat([rows, rows[-1:].expand(missing, *rows.shape[1:])])
