"""The plan of a pass, against ancestors found by walking up from every token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.backends.base import PackedBatch, Segment
from branchwise.backends.torch_masks import block_ancestry
from branchwise.backends.torch_plan import BLOCK_TOKENS, Chunk, Source, Span, plan_chunks


@dataclass
class Prefix:
    length: int
    nbytes: int = 0


def batch_of(shape: list[tuple[int, int | None]], prefix: int = 0, keep: int | None = None) -> PackedBatch:
    segments: list[Segment] = []
    for length, parent in shape:
        start = segments[-1].stop if segments else 0
        segments.append(Segment(start, start + length, parent))
    tokens = np.zeros(segments[-1].stop if segments else 0, dtype=np.int32)
    none = np.empty(0, dtype=np.int64)
    return PackedBatch(
        token_ids=tokens,
        positions=tokens,
        segments=tuple(segments),
        nodes=none,
        allowed_ids=none.astype(np.int32),
        allowed_offsets=np.zeros(1, dtype=np.int64),
        prefix=Prefix(prefix) if prefix else None,
        keep=keep,
    )


def ancestors(batch: PackedBatch) -> dict[int, set[int]]:
    """For each token all it may see: itself, its ancestors, and -1, -2, ... for the prefix's tokens."""
    seen: dict[int, set[int]] = {}
    prefix = {-1 - i for i in range(batch.prefix.length if batch.prefix else 0)}
    for segment in batch.segments:
        above = prefix if segment.parent is None else seen[batch.segments[segment.parent].stop - 1]
        for token in range(segment.start, segment.stop):
            above = seen[token] = above | {token}
    return seen


class Replay:
    """Follows the chunks of a plan as the attention does, with token numbers instead of keys."""

    def __init__(self, batch: PackedBatch) -> None:
        self.batch = batch
        self.stored: dict[int, dict[int, int]] = {}
        self.seen: dict[int, list[int]] = {}

    def run(self, chunk: Chunk) -> None:
        for part in chunk.saved:
            buffer = self.stored.setdefault(part.segment, {})
            for i in range(part.stop - part.start):
                buffer[part.offset + i] = chunk.start + part.start + i
        for task in chunk.tasks:
            shared = [token for span in task.spans for token in self.keys(span, chunk)]
            count = task.stop - task.start
            own = np.tri(count, dtype=bool) if task.block is None else block_ancestry(task.block)
            for i in range(count):
                token = chunk.start + task.start + i
                assert token not in self.seen
                self.seen[token] = [*shared, *(chunk.start + task.start + np.flatnonzero(own[i])).tolist()]
        for segment in chunk.released:
            del self.stored[segment]

    def keys(self, span: Span, chunk: Chunk) -> list[int]:
        if span.source is Source.PREFIX:
            return [-1 - i for i in range(span.start, span.stop)]
        if span.source is Source.STORED:
            return [self.stored[span.segment][i] for i in range(span.start, span.stop)]
        return list(range(chunk.start + span.start, chunk.start + span.stop))


@st.composite
def shapes(draw: st.DrawFn) -> list[tuple[int, int | None]]:
    shape: list[tuple[int, int | None]] = []
    path: list[int] = []
    for index in range(draw(st.integers(1, 14))):
        path = path[: draw(st.integers(0, len(path)))]
        shape.append((draw(st.sampled_from([1, 2, 3, 8, 31, 33, 70])), path[-1] if path else None))
        path.append(index)
    return shape


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    shape=shapes(),
    chunk_tokens=st.sampled_from([1, 2, 7, 40, 100, 10_000]),
    piece_tokens=st.sampled_from([1, 5, 10_000]),
    prefix=st.sampled_from([0, 6]),
    keep=st.booleans(),
)
def test_every_token_sees_its_ancestors_once_and_nothing_else(
    shape: list[tuple[int, int | None]], chunk_tokens: int, piece_tokens: int, prefix: int, keep: bool
) -> None:
    batch = batch_of(shape, 0 if keep else prefix, keep=0 if keep else None)
    replay = Replay(batch)
    chunks = plan_chunks(batch, chunk_tokens=chunk_tokens, piece_tokens=piece_tokens)
    for chunk in chunks:
        assert chunk.stop - chunk.start <= max(1, 1.5 * chunk_tokens)
        replay.run(chunk)
    wanted = ancestors(batch)
    assert {token: sorted(seen) for token, seen in replay.seen.items()} == {
        token: sorted(seen) for token, seen in wanted.items()
    }
    assert set(replay.stored) == ({0} if keep else set())
    if keep:
        assert len(replay.stored[0]) == shape[0][0]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(shape=shapes(), chunk_tokens=st.sampled_from([1, 7, 40]))
def test_depths_count_from_the_root(shape: list[tuple[int, int | None]], chunk_tokens: int) -> None:
    batch = batch_of(shape, prefix=6)
    wanted = {token: len(seen) - 1 for token, seen in ancestors(batch).items()}
    for chunk in plan_chunks(batch, chunk_tokens=chunk_tokens, piece_tokens=3):
        for task in chunk.tasks:
            tokens = range(chunk.start + task.start, chunk.start + task.stop)
            assert task.depths.tolist() == [wanted[token] for token in tokens]
            for span in task.spans:
                if span.source is Source.CHUNK:
                    assert span.depth == wanted[chunk.start + span.start]


def contexts(count: int, length: int) -> list[tuple[int, int | None]]:
    """A prefix of 300 and below it ``count`` contexts of ``length`` tokens, each with ten rows of 8."""
    shape: list[tuple[int, int | None]] = [(300, None)]
    for _ in range(count):
        shape.append((length, 0))
        at = len(shape) - 1
        shape += [(8, at)] * 10
    return shape


def test_a_context_that_fills_a_chunk_has_it_alone() -> None:
    chunks = plan_chunks(batch_of(contexts(5, 400), keep=0), chunk_tokens=512, piece_tokens=1024)
    assert [(chunk.start, chunk.stop) for chunk in chunks] == [
        (0, 300),
        *((300 + 480 * i, 780 + 480 * i) for i in range(5)),
    ]
    assert chunks[1].tasks[0].spans == (Span(Source.STORED, 0, 0, 300, 0),)


def test_a_long_context_is_cut_evenly() -> None:
    batch = batch_of(contexts(1, 1500), keep=0)
    chunks = plan_chunks(batch, chunk_tokens=512, piece_tokens=1024)
    assert [chunk.stop - chunk.start for chunk in chunks] == [300, 500, 500, 500, 80]


def test_rows_of_a_context_are_one_block() -> None:
    (chunk,) = plan_chunks(batch_of([(40, None), *[(8, 0)] * 10]), chunk_tokens=512, piece_tokens=1024)
    assert [(task.start, task.stop, task.block is None) for task in chunk.tasks] == [
        (0, 40, True),
        (40, 120, False),
    ]


def test_short_contexts_are_never_one_block() -> None:
    context: list[tuple[int, int | None]] = [(5, 0), (3, 1), (4, 1)]
    shape: list[tuple[int, int | None]] = [(9, None), *context, (5, 0), (3, 4), (4, 4)]
    (chunk,) = plan_chunks(batch_of(shape, keep=0), chunk_tokens=512, piece_tokens=1024)
    assert [(task.start, task.stop) for task in chunk.tasks] == [
        (0, 9),
        (9, 14),
        (14, 21),
        (21, 26),
        (26, 33),
    ]
    below = [
        (length, None if parent == 0 else parent - 1) for length, parent in shape[1:] if parent is not None
    ]
    (chunk,) = plan_chunks(batch_of(below, prefix=9), chunk_tokens=512, piece_tokens=1024)
    assert [(task.start, task.stop) for task in chunk.tasks] == [(0, 5), (5, 12), (12, 17), (17, 24)]


def test_blocks_are_bounded() -> None:
    (chunk,) = plan_chunks(batch_of([(40, None), *[(8, 0)] * 100]), chunk_tokens=2000, piece_tokens=1024)
    assert max(task.stop - task.start for task in chunk.tasks) <= BLOCK_TOKENS
    assert len(chunk.tasks) == 1 + 800 // BLOCK_TOKENS + 1


def test_block_ancestry_of_a_tree_drawn_by_hand() -> None:
    # a b ─┬─ c ─── d
    #      └─ e
    seen = block_ancestry(((2, -1), (1, 0), (1, 1), (1, 0)))
    assert ["".join("x" if value else "." for value in row) for row in seen] == [
        "x....",
        "xx...",
        "xxx..",
        "xxxx.",
        "xx..x",
    ]


@pytest.mark.parametrize("chunk_tokens", [1, 512])
def test_a_batch_without_tokens_has_no_chunks(chunk_tokens: int) -> None:
    assert plan_chunks(batch_of([]), chunk_tokens=chunk_tokens, piece_tokens=8) == []
