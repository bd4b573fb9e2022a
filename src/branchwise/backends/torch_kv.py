"""Keys and values that outlive a chunk, and the count of bytes that are held."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from branchwise.backends.torch_plan import Chunk


class Meter:
    """Bytes of keys, values and logits held now, and the most since the last ``restart``."""

    def __init__(self) -> None:
        self.held = 0
        self.peak = 0

    def restart(self) -> None:
        self.peak = self.held

    def add(self, nbytes: int) -> None:
        self.held += nbytes
        self.peak = max(self.peak, self.held)

    def remove(self, nbytes: int) -> None:
        self.held -= nbytes

    @contextmanager
    def holding(self, nbytes: int) -> Iterator[None]:
        self.add(nbytes)
        try:
            yield
        finally:
            self.remove(nbytes)

    def follow(self, owner: object, nbytes: int) -> None:
        """Count ``nbytes`` as held until ``owner`` is garbage."""
        self.add(nbytes)
        weakref.finalize(owner, self.remove, nbytes)


@dataclass(eq=False)
class LayerKV:
    """Keys ``[H, n, D]`` and values ``[H, n, D']`` of one layer, after rotation, in the model's dtype."""

    keys: torch.Tensor
    values: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes


@dataclass(eq=False)
class TorchPrefix:
    """A kept root path. Never written to after the pass that made it."""

    layers: tuple[LayerKV, ...]
    length: int
    nbytes: int
    owner: object  # the model that made it: its keys mean nothing to another


class SegmentStore:
    """Buffers of the segments that more than one chunk reads, one per layer and segment.

    A buffer is as long as its segment and is filled chunk by chunk: a layer writes its part before
    it reads.
    """

    def __init__(self, lengths: Sequence[int], meter: Meter) -> None:
        self._lengths = lengths
        self._meter = meter
        self._layers: dict[int, dict[int, LayerKV]] = {}

    def write(self, chunk: Chunk, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Copy the saved ranges of ``keys`` and ``values``, ``[H, T, D]`` of the chunk's tokens."""
        for part in chunk.saved:
            held = self._layers.setdefault(part.segment, {})
            if layer not in held:
                length = self._lengths[part.segment]
                held[layer] = LayerKV(
                    keys.new_empty(keys.shape[0], length, keys.shape[2]),
                    values.new_empty(values.shape[0], length, values.shape[2]),
                )
                self._meter.add(held[layer].nbytes)
            until = part.offset + part.stop - part.start
            held[layer].keys[:, part.offset : until] = keys[:, part.start : part.stop]
            held[layer].values[:, part.offset : until] = values[:, part.start : part.stop]

    def read(self, segment: int, layer: int) -> LayerKV:
        return self._layers[segment][layer]

    def release(self, segments: Sequence[int]) -> None:
        for segment in segments:
            for kv in self._layers.pop(segment, {}).values():
                self._meter.remove(kv.nbytes)

    def close(self) -> None:
        self.release(list(self._layers))

    def keep(self, segment: int, owner: object) -> TorchPrefix:
        """Take a segment's buffers out of the store. They count as held until the handle is garbage."""
        layers = self._layers.pop(segment)
        ordered = tuple(layers[index] for index in sorted(layers))
        nbytes = sum(kv.nbytes for kv in ordered)
        handle = TorchPrefix(ordered, self._lengths[segment], nbytes, owner)
        weakref.finalize(handle, self._meter.remove, nbytes)
        return handle
