"""How a packed forest is run: chunks of tokens, and what the tokens of each attend to.

Everything here is structure: integers from the batch's segments, no tensors. A plan depends on the
batch's shape alone, and the pieces of one context do not depend on its neighbours as long as it
fills a chunk of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from branchwise.backends.base import PackedBatch, Segment

BLOCK_SEGMENT = 32  # longest segment that is attended to inside a block
BLOCK_TOKENS = 256  # most tokens of a block: its mask is dense


class Source(Enum):
    """Where the keys of a span are."""

    PREFIX = "prefix"  # the handle's tensors
    STORED = "stored"  # the buffer of a segment that more than one chunk reads
    CHUNK = "chunk"  # the running chunk's own tensors


@dataclass(frozen=True, slots=True)
class Span:
    """Keys ``[start, stop)`` of a source, all of them ancestors of a task's queries.

    ``depth``: the position of the first key; depths ascend by one.
    """

    source: Source
    segment: int
    start: int
    stop: int
    depth: int


@dataclass(frozen=True, slots=True)
class Task:
    """Queries ``[start, stop)`` of a chunk: they attend to all ``spans`` and to each other.

    ``depth``: the position of the first query. ``block``: how they attend to each other: None for
    a run of tokens (causal), or the segments of a subforest as (length, parent in the block, -1 for
    none). ``depths``: int64 ``[n]``, position of each query.
    """

    start: int
    stop: int
    spans: tuple[Span, ...]
    depths: npt.NDArray[np.int64]
    block: tuple[tuple[int, int], ...] | None


@dataclass(frozen=True, slots=True)
class Saved:
    """Chunk tokens ``[start, stop)`` go to a segment's buffer at ``offset``."""

    segment: int
    start: int
    stop: int
    offset: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens ``[start, stop)`` of the batch, run through the model together.

    ``released``: segments whose buffers nothing reads after this chunk.
    """

    start: int
    stop: int
    tasks: tuple[Task, ...]
    saved: tuple[Saved, ...]
    released: tuple[int, ...]


def plan_chunks(batch: PackedBatch, *, chunk_tokens: int, piece_tokens: int) -> list[Chunk]:
    """The batch cut into chunks of about ``chunk_tokens`` (at most one and a half times that).

    A run of queries has at most ``piece_tokens``, which bounds dense masks and scores.
    """
    forest = _Forest(batch)
    borders = _chunk_borders(forest, chunk_tokens)
    return _Planner(forest, borders, piece_tokens).chunks()


class _Forest:
    """Segments with what can be said about the subtree of each."""

    def __init__(self, batch: PackedBatch) -> None:
        self.segments = batch.segments
        self.keep = batch.keep
        self.prefix_length = batch.prefix.length if batch.prefix is not None else 0
        count = len(self.segments)
        self.subtree_stop = [segment.stop for segment in self.segments]  # in tokens
        self.after = list(range(1, count + 1))  # the first segment beyond the subtree
        self.longest = [segment.stop - segment.start for segment in self.segments]
        for i in range(count - 1, -1, -1):
            parent = self.segments[i].parent
            if parent is not None:
                self.subtree_stop[parent] = max(self.subtree_stop[parent], self.subtree_stop[i])
                self.after[parent] = max(self.after[parent], self.after[i])
                self.longest[parent] = max(self.longest[parent], self.longest[i])
        self.depth = [0] * count
        for i, segment in enumerate(self.segments):
            self.depth[i] = (
                self.prefix_length
                if segment.parent is None
                else self.depth[segment.parent] + _length(self.segments[segment.parent])
            )

    def ancestors(self, index: int) -> list[int]:
        found = []
        parent = self.segments[index].parent
        while parent is not None:
            found.append(parent)
            parent = self.segments[parent].parent
        return found[::-1]


def _length(segment: Segment) -> int:
    return segment.stop - segment.start


def _chunk_borders(forest: _Forest, chunk_tokens: int) -> list[int]:
    """Token indices at which chunks start, and the end.

    A subtree that fits into a chunk stays whole, and so does all that hangs below a segment.
    """
    units: list[int] = []  # ends of the runs that are not cut
    i = 0
    while i < len(forest.segments):
        segment = forest.segments[i]
        if forest.subtree_stop[i] - segment.start <= chunk_tokens:
            units.append(forest.subtree_stop[i])
            i = forest.after[i]
            continue
        parts = max(1, -(-_length(segment) // chunk_tokens))
        units += [segment.start + _length(segment) * (part + 1) // parts for part in range(parts)]
        if forest.subtree_stop[i] - segment.stop <= chunk_tokens:
            units.append(forest.subtree_stop[i])
            i = forest.after[i]
        else:
            i += 1
    borders, last = [0], 0
    for unit in units:
        filled = last - borders[-1]
        if filled >= chunk_tokens // 2 and filled + unit - last > chunk_tokens and filled:
            borders.append(last)
        last = unit
    return [*borders, last] if last > borders[-1] else borders


class _Planner:
    def __init__(self, forest: _Forest, borders: Sequence[int], piece_tokens: int) -> None:
        self.forest = forest
        self.borders = borders
        self.piece_tokens = piece_tokens
        starts = np.asarray(borders[:-1])
        firsts = np.array([segment.start for segment in forest.segments], dtype=np.int64)
        lasts = np.array(forest.subtree_stop, dtype=np.int64) - 1
        first_chunk = np.searchsorted(starts, firsts, side="right") - 1
        self.last_chunk = np.searchsorted(starts, lasts, side="right") - 1
        self.stored = first_chunk < self.last_chunk
        if forest.keep is not None:
            self.stored[forest.keep] = True

    def chunks(self) -> list[Chunk]:
        released: dict[int, list[int]] = {}
        for index in np.flatnonzero(self.stored):
            if index != self.forest.keep:
                released.setdefault(int(self.last_chunk[index]), []).append(int(index))
        found, segment = [], 0
        for number, (start, stop) in enumerate(pairwise(self.borders)):
            tasks, saved, segment = self._chunk(start, stop, segment)
            found.append(Chunk(start, stop, tuple(tasks), tuple(saved), tuple(released.get(number, ()))))
        return found

    def _chunk(self, start: int, stop: int, index: int) -> tuple[list[Task], list[Saved], int]:
        """Tasks and saved ranges of tokens ``[start, stop)``; ``index``: the first segment in it."""
        forest, tasks, saved = self.forest, [], []
        at = start
        while at < stop:
            segment = forest.segments[index]
            if at == segment.start and (beyond := self._block_end(index, stop)) > index + 1:
                tasks.append(self._block(index, beyond, start))
                saved += [self._save(i, start, start, stop) for i in range(index, beyond) if self.stored[i]]
                index = beyond
                at = forest.segments[index].start if index < len(forest.segments) else stop
                continue
            end = min(segment.stop, stop)
            if self.stored[index] and at < end:
                saved.append(self._save(index, at, start, end))
            while at < end:
                until = min(end, at + self.piece_tokens)
                tasks.append(self._run(index, at, until, start))
                at = until
            if at == segment.stop:
                index += 1
        return tasks, saved, index

    def _block_end(self, index: int, stop: int) -> int:
        """One past the last segment of the block that starts with segment ``index``.

        A block is a run of whole sibling subtrees of short segments, inside the chunk. What hangs
        from the root or from the kept prefix is never in one: contexts are run each by itself, so
        that their numbers don't depend on their neighbours.
        """
        forest = self.forest
        first, parent = forest.segments[index].start, forest.segments[index].parent
        beyond = index
        while (
            parent not in (None, forest.keep)
            and beyond < len(forest.segments)
            and forest.segments[beyond].parent == parent
            and forest.longest[beyond] <= BLOCK_SEGMENT
            and forest.subtree_stop[beyond] <= min(stop, first + BLOCK_TOKENS)
        ):
            beyond = forest.after[beyond]
        return beyond

    def _block(self, index: int, beyond: int, chunk_start: int) -> Task:
        forest = self.forest
        members = forest.segments[index:beyond]
        block, depths = [], []
        for i, segment in enumerate(members, start=index):
            inside = segment.parent is not None and segment.parent >= index
            block.append((_length(segment), segment.parent - index if inside else -1))  # type: ignore[operator]
            depths.append(np.arange(forest.depth[i], forest.depth[i] + _length(segment)))
        return Task(
            members[0].start - chunk_start,
            members[-1].stop - chunk_start,
            self._spans(index, 0, chunk_start),
            np.concatenate(depths),
            tuple(block),
        )

    def _run(self, index: int, start: int, stop: int, chunk_start: int) -> Task:
        offset = start - self.forest.segments[index].start
        depth = self.forest.depth[index] + offset
        return Task(
            start - chunk_start,
            stop - chunk_start,
            self._spans(index, offset, chunk_start),
            np.arange(depth, depth + stop - start),
            None,
        )

    def _spans(self, index: int, offset: int, chunk_start: int) -> tuple[Span, ...]:
        """All that a token at ``offset`` of a segment descends from, before that segment's piece."""
        forest, found = self.forest, []
        if forest.prefix_length:
            found.append(Span(Source.PREFIX, -1, 0, forest.prefix_length, 0))
        whole = [(i, _length(forest.segments[i])) for i in forest.ancestors(index)]
        for i, length in [*whole, (index, offset)]:
            if length == 0:
                continue
            if self.stored[i]:
                found.append(Span(Source.STORED, i, 0, length, forest.depth[i]))
            else:
                start = forest.segments[i].start - chunk_start
                found.append(Span(Source.CHUNK, i, start, start + length, forest.depth[i]))
        return tuple(found)

    def _save(self, index: int, start: int, chunk_start: int, stop: int) -> Saved:
        segment = self.forest.segments[index]
        first = max(start, segment.start)
        last = min(stop, segment.stop)
        return Saved(index, first - chunk_start, last - chunk_start, first - segment.start)
