"""The check of a model at load: a small forest, packed, against the model's own plain forwards.

It finds what no declaration tells: a layer that attends in a way we don't follow, positions that
are not taken from what is passed in, a head that is more than a product. It also measures what a
token costs. Windows longer than the forest are out of its reach: those are compared with what the
configuration declares.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from branchwise.backends.base import NodeScores, PackedBatch, Segment
from branchwise.backends.torch_attention import IMPLEMENTATION
from branchwise.backends.torch_families import declared_windows, declares_layer_types, unsupported
from branchwise.backends.torch_head import WholeHead
from branchwise.backends.torch_kv import Meter
from branchwise.backends.torch_load import quiet_transformers
from branchwise.backends.torch_model import LoadedModel
from branchwise.backends.torch_packed import PackedRun
from branchwise.errors import UnsupportedModelError

# prefix ─┬─ context ─┬─ row ─┬─ branch
#         │           │       └─ branch
#         │           └─ row
#         └─ context
_SEGMENTS = (
    Segment(0, 2, None),
    Segment(2, 4, 0),
    Segment(4, 5, 1),
    Segment(5, 6, 2),
    Segment(6, 7, 2),
    Segment(7, 8, 1),
    Segment(8, 10, 0),
)
_LEAVES = (3, 4, 5, 6)
_ALLOWED = 16
# Largest root mean square of the differences, as a share of the logits' standard deviation. Rounding
# gives 1e-5, 0.005 and up to 0.1; a wrong mask, position or scale gives 0.1 to 0.8.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.15}


@dataclass(frozen=True)
class Findings:
    """The model with its confirmed windows and head, and what a token costs in bytes."""

    loaded: LoadedModel
    kv_bytes_per_token: int
    pass_bytes_per_token: int


def probe(loaded: LoadedModel) -> Findings:
    """Raises :class:`UnsupportedModelError` when the packed pass is not what the model computes."""
    try:
        return _probe(loaded)
    except UnsupportedModelError as error:
        raise unsupported(loaded.model.config.model_type, str(error)) from error


def _probe(loaded: LoadedModel) -> Findings:
    forest = _forest(loaded.model.config.get_text_config().vocab_size)
    expected = _plain_logits(loaded, forest)
    measured = _MeasuredModel(**{field.name: getattr(loaded, field.name) for field in fields(loaded)})
    run = PackedRun(measured, forest, Meter())
    scores = run.score()
    windows = _confirmed_windows(loaded.model.config, run)
    if not _agree(scores, forest, expected, loaded.dtype):
        loaded = replace(loaded, head=WholeHead())
        scores = PackedRun(loaded, forest, Meter()).score()
        if not _agree(scores, forest, expected, loaded.dtype):
            raise UnsupportedModelError("a packed pass gives other numbers than the model's own forward")
    kv_bytes = sum(call.kv_bytes for call in run.calls.values())
    pass_bytes = max(1, measured.live.peak // len(forest.token_ids))
    return Findings(replace(loaded, windows=windows), kv_bytes, pass_bytes)


def _forest(vocab_size: int) -> PackedBatch:
    random = np.random.default_rng(0)
    tokens = _SEGMENTS[-1].stop
    positions = np.zeros(tokens, dtype=np.int32)
    for segment in _SEGMENTS:
        start = 0 if segment.parent is None else positions[_SEGMENTS[segment.parent].stop - 1] + 1
        positions[segment.start : segment.stop] = np.arange(start, start + segment.stop - segment.start)
    nodes = np.array([segment.stop - 1 for segment in _SEGMENTS])
    return PackedBatch(
        token_ids=random.integers(vocab_size // 4, vocab_size // 2, tokens).astype(np.int32),
        positions=positions,
        segments=_SEGMENTS,
        nodes=nodes,
        allowed_ids=random.integers(0, vocab_size, _ALLOWED * len(nodes)).astype(np.int32),
        allowed_offsets=np.arange(len(nodes) + 1) * _ALLOWED,
    )


def _path(segment: int | None) -> list[int]:
    """Token indices from the root to a segment's end."""
    if segment is None:
        return []
    found = _SEGMENTS[segment]
    return [*_path(found.parent), *range(found.start, found.stop)]


def _plain_logits(loaded: LoadedModel, forest: PackedBatch) -> torch.Tensor:
    """float32 ``[K, V]`` in main memory: every path as a plain sequence, with the model's own attention.

    The paths are one batch, padded on the right, where causal attention does not look.
    """
    paths = [_path(leaf) for leaf in _LEAVES]
    ids = np.zeros((len(paths), max(map(len, paths))), dtype=np.int32)
    for row, path in zip(ids, paths, strict=True):
        row[: len(path)] = forest.token_ids[path]
    with _own_attention(loaded.model):
        logits = loaded.model(input_ids=loaded.ids(ids), use_cache=False).logits
    places = [
        next((row, path.index(node)) for row, path in enumerate(paths) if node in path)
        for node in forest.nodes
    ]
    rows, columns = zip(*places, strict=True)
    return logits[list(rows), list(columns)].float().cpu()  # type: ignore[no-any-return]


@contextmanager
def _own_attention(model: Any) -> Iterator[None]:
    with quiet_transformers():
        model.set_attn_implementation("eager")
        try:
            yield
        finally:
            model.set_attn_implementation(IMPLEMENTATION)


def _agree(scores: NodeScores, forest: PackedBatch, expected: torch.Tensor, dtype: torch.dtype) -> bool:
    ids = forest.allowed_ids.reshape(len(forest.nodes), -1).astype(np.int64)
    logits = expected.gather(1, torch.from_numpy(ids)).double().numpy()
    normalizer = expected.double().logsumexp(-1).numpy()
    if scores.log_normalizer is None:
        raise AssertionError("the forest asks for normalizers")
    off = np.concatenate([scores.logits - logits.ravel(), scores.log_normalizer - normalizer])
    spread = float(expected.std(dim=1).mean())
    return bool(np.sqrt(np.mean(off**2)) <= _TOLERANCE[dtype] * max(spread, 1e-3))  # False for NaN, too


def _confirmed_windows(config: Any, run: PackedRun) -> tuple[int | None, ...]:
    """What the configuration declares, if the layers and the masks say the same."""
    declared, reported = declared_windows(config), run.calls
    if sorted(reported) != list(range(len(declared))):
        raise UnsupportedModelError(
            f"{len(declared)} layers are declared, and layers {sorted(reported)} attend"
        )
    for layer, window in enumerate(declared):
        if reported[layer].window != window:
            raise UnsupportedModelError(
                f"layer {layer} attends within {reported[layer].window} tokens, not {window} as declared"
            )
    masked, windows = run.mask_windows - {None}, set(declared) - {None}
    if windows - masked:
        raise UnsupportedModelError(f"layers attend within {windows} tokens, but its masks say {masked}")
    if masked - windows and not declares_layer_types(config):
        raise UnsupportedModelError(f"its masks hide what is {masked} tokens away, but no layer says so")
    return declared


@dataclass
class _Live:
    """Most bytes held at once by what operators made in a forward."""

    peak: int = 0


class _MeasuredModel(LoadedModel):
    """Measures its forwards."""

    @cached_property
    def live(self) -> _Live:
        return _Live()

    def node_rows(
        self, token_ids: torch.Tensor, positions: torch.Tensor, nodes: torch.Tensor
    ) -> torch.Tensor:
        if self.device.type == "cuda":
            before = torch.cuda.memory_allocated(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            rows = super().node_rows(token_ids, positions, nodes)
            self.live.peak = torch.cuda.max_memory_allocated(self.device) - before
            return rows
        with _LiveStorages(self.model) as storages:
            rows = super().node_rows(token_ids, positions, nodes)
        self.live.peak = storages.peak
        return rows


class _LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the storage of every tensor that an operator makes until it is garbage."""

    def __init__(self, model: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._held = 0
        self._known = {tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values()}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf.untyped_storage())
        return made

    def _see(self, storage: torch.UntypedStorage) -> None:
        key, nbytes = storage.data_ptr(), storage.nbytes()
        if key in self._known or not nbytes:
            return
        self._known.add(key)
        self._held += nbytes
        self.peak = max(self.peak, self._held)
        weakref.finalize(storage, self._forget, key, nbytes)

    def _forget(self, key: int, nbytes: int) -> None:
        self._known.discard(key)
        self._held -= nbytes
