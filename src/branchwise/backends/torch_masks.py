"""What a query sees, as biases: within a block of short segments, and at the edge of a window."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from branchwise.backends.torch_partial import Bias
from branchwise.backends.torch_plan import Span, Task

BoolMatrix = npt.NDArray[np.bool_]
SeenSpan = tuple[Span, Bias | None]


class MaskBuilder:
    """Biases of one pass, each built once and used by all layers (and contexts) that need it.

    A token at depth p sees an ancestor at depth q when p - q < window, as in a linear sequence.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._own: dict[object, Bias] = {}
        self._spans: dict[tuple[int, int | None], tuple[SeenSpan, ...]] = {}

    def own(self, task: Task, window: int | None) -> Bias | None:
        """How the queries of a task see each other; None for plain causal order."""
        count = len(task.depths)
        if window is not None and int(np.ptp(task.depths)) < window:
            window = None
        if task.block is None and window is None:
            return None
        key = (task.block or count, window)
        if key not in self._own:
            seen = np.tri(count, dtype=np.bool_) if task.block is None else block_ancestry(task.block)
            if window is not None:
                seen &= np.subtract.outer(task.depths, task.depths) < window
            self._own[key] = self._bias(seen)
        return self._own[key]

    def spans(self, task: Task, window: int | None) -> tuple[SeenSpan, ...]:
        """The spans of a task without the keys that no query sees."""
        key = (id(task), window)
        if key not in self._spans:
            seen = ((span, None) for span in task.spans) if window is None else self._cut(task, window)
            self._spans[key] = tuple(seen)
        return self._spans[key]

    def _cut(self, task: Task, window: int) -> list[SeenSpan]:
        lowest, highest = int(task.depths.min()), int(task.depths.max())
        found: list[SeenSpan] = []
        for span in task.spans:
            hidden = max(0, lowest - window + 1 - span.depth)
            length = span.stop - span.start
            if hidden >= length:
                continue
            kept = replace(span, start=span.start + hidden, depth=span.depth + hidden)
            if highest - kept.depth < window:
                found.append((kept, None))
                continue
            depths = np.arange(kept.depth, kept.depth + length - hidden)
            found.append((kept, self._bias(np.subtract.outer(task.depths, depths) < window)))
        return found

    def _bias(self, seen: BoolMatrix) -> Bias:
        visible = torch.from_numpy(seen).to(self._device)
        values = torch.zeros(seen.shape, dtype=self._dtype, device=self._device)
        values.masked_fill_(~visible, -math.inf)
        blind = None if seen.any(axis=1).all() else ~visible.any(dim=1)
        return Bias(values, blind)


def block_ancestry(block: tuple[tuple[int, int], ...]) -> BoolMatrix:
    """``[n, n]``, whether token j is token i or an ancestor of it; ``block`` as in Task."""
    stops = np.cumsum([length for length, _ in block])
    seen = np.zeros((stops[-1], stops[-1]), dtype=np.bool_)
    for (length, parent), stop in zip(block, stops, strict=True):
        rows = slice(stop - length, stop)
        if parent >= 0:
            seen[rows] = seen[stops[parent] - 1]
        seen[rows, rows] = np.tri(length, dtype=np.bool_)
    return seen
