"""A group of contexts as one flat forest: prefix, contexts, and the answer trie below each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from branchwise.backends.base import Int32Array, PackedBatch, PrefixHandle, Segment
from branchwise.tree.rows import CompiledSchema


@dataclass
class _Layout:
    """The forest as it grows: arrays to be joined, segments, and where each context's trie lies."""

    below: int  # tokens of the cached prefix
    arrays: list[Int32Array] = field(default_factory=list)
    depths: list[Int32Array] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    length: int = 0
    depth_at: list[int] = field(default_factory=list)  # tokens on the path that ends with a segment

    def add(self, ids: Int32Array, parent: int | None) -> int:
        start = self.below if parent is None else self.depth_at[parent]
        stop = self.length + len(ids)
        self.arrays.append(ids)
        self.depths.append(np.arange(start, start + len(ids), dtype=np.int32))
        self.segments.append(Segment(self.length, stop, parent))
        self.depth_at.append(start + len(ids))
        self.length = stop
        return len(self.segments) - 1


def pack(
    compiled: CompiledSchema,
    contexts: Sequence[Int32Array],
    *,
    prefix: PrefixHandle | None,
    want_normalizer: bool,
) -> PackedBatch:
    """One pass over ``contexts`` (fenced, int32 ids), each with all rows of ``compiled`` below it.

    Without ``prefix`` the schema's own prefix is the first segment, and is to be kept. Contexts
    that start with the same tokens share them. Nodes are in the order of ``contexts``: those of
    context i are ``[i * K, (i + 1) * K)``, K nodes of the compiled schema.
    """
    layout = _Layout(below=prefix.length if prefix is not None else 0)
    top = None if prefix is not None else layout.add(compiled.prefix_ids, None)
    full = [np.concatenate([ids, compiled.suffix_ids]) for ids in contexts]
    trie_starts = _lay_out(layout, compiled, full, top)
    nodes = [np.where(compiled.nodes >= 0, compiled.nodes + start, last) for start, last in trie_starts]
    allowed_ids, allowed_offsets = compiled.allowed_for(len(contexts))
    return PackedBatch(
        token_ids=np.concatenate([*layout.arrays, np.empty(0, np.int32)]),
        positions=np.concatenate([*layout.depths, np.empty(0, np.int32)]),
        segments=tuple(layout.segments),
        nodes=np.concatenate([*nodes, np.empty(0, np.int64)]),
        allowed_ids=allowed_ids,
        allowed_offsets=allowed_offsets,
        prefix=prefix,
        keep=top,
        want_normalizer=want_normalizer,
    )


def unique_tokens(compiled: CompiledSchema, contexts: Sequence[Int32Array]) -> int:
    """How many tokens :func:`pack` lays out without a cached prefix: each shared beginning once."""
    ordered = sorted(contexts, key=lambda ids: ids.tolist())
    own = sum(len(ids) + len(compiled.suffix_ids) + len(compiled.forest.token_ids) for ids in contexts)
    shared = sum(_common(left, right) for left, right in pairwise(ordered))
    return len(compiled.prefix_ids) + own - shared


def _lay_out(
    layout: _Layout, compiled: CompiledSchema, contexts: list[Int32Array], top: int | None
) -> list[tuple[int, int]]:
    """Add all contexts as a radix tree; for each, where its answer trie and its last token lie."""
    order = sorted(range(len(contexts)), key=lambda i: contexts[i].tolist())
    ordered = [contexts[i] for i in order]
    shared = [_common(left, right) for left, right in pairwise(ordered)]
    found: dict[int, tuple[int, int]] = {}
    pending: list[tuple[int, int, int, int | None]] = [(0, len(ordered), 0, top)]
    while pending:
        first, stop, depth, parent = pending.pop()
        if first == stop:
            continue
        reach = min(shared[first : stop - 1], default=len(ordered[first]))
        if reach > depth:
            parent = layout.add(ordered[first][depth:reach], parent)
        if len(ordered[first]) == reach:
            if parent is None:
                raise ValueError("a context has no tokens")
            found[order[first]] = (_add_trie(layout, compiled, parent), layout.segments[parent].stop - 1)
            first += 1
        pending += reversed(_parts(shared, first, stop, reach, parent))
    return [found[i] for i in range(len(contexts))]


def _parts(
    shared: list[int], first: int, stop: int, reach: int, parent: int | None
) -> list[tuple[int, int, int, int | None]]:
    """The runs of ``[first, stop)`` whose neighbours share more than ``reach`` tokens."""
    borders = [i for i in range(first + 1, stop) if shared[i - 1] <= reach]
    starts = [first, *borders]
    return [(a, b, reach, parent) for a, b in zip(starts, [*borders, stop], strict=True) if a < b]


def _add_trie(layout: _Layout, compiled: CompiledSchema, parent: int) -> int:
    """The answer trie below segment ``parent``; the index of its first token."""
    start, base = layout.length, len(layout.segments)
    for segment in compiled.forest.segments:
        ids = compiled.forest.token_ids[segment.start : segment.stop]
        layout.add(ids, parent if segment.parent is None else base + segment.parent)
    return start


def _common(left: Int32Array, right: Int32Array) -> int:
    """How many tokens two sequences start with alike."""
    length = min(len(left), len(right))
    different = np.flatnonzero(left[:length] != right[:length])
    return int(different[0]) if len(different) else length
