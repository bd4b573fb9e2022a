"""Packed forests against brute force over root-to-leaf paths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.backends.fake import ByteTokenizer, FakeBackend, logits_of
from branchwise.tree.packing import pack, unique_tokens
from branchwise.tree.rows import CompiledSchema, compile_schema
from branchwise.tree.trie import merge
from worlds import TICKET, path_state

TOKENS = st.integers(0, 5)
PATHS = st.lists(st.lists(TOKENS, min_size=1, max_size=5), min_size=1, max_size=6)


def compiled_of(prefix: list[int], paths: list[list[int]]) -> CompiledSchema:
    """A compiled schema whose nodes are the ends of ``paths``, each asking for the ids 0 to 2."""
    forest = merge(paths)
    return CompiledSchema(
        layout="shared",
        answers="labels",
        prefix_ids=np.array(prefix, np.int32),
        suffix_ids=np.array([7, 8], np.int32),
        forest=forest,
        rows=(),
        nodes=np.array(forest.ends, np.int64),
        node_paths=tuple(map(tuple, paths)),
        allowed_ids=np.tile(np.arange(3, dtype=np.int32), len(paths)),
        allowed_offsets=np.arange(len(paths) + 1, dtype=np.int64) * 3,
    )


@settings(deadline=None)
@given(
    prefix=st.lists(TOKENS, min_size=1, max_size=4),
    contexts=st.lists(st.lists(TOKENS, min_size=1, max_size=7), min_size=1, max_size=7, unique_by=tuple),
    paths=st.one_of(PATHS, st.just([[]])),
)
def test_packed_scores_equal_brute_force_for_random_forests(prefix, contexts, paths):
    compiled = compiled_of(prefix, paths)
    arrays = [np.array(ids, np.int32) for ids in contexts]
    backend = FakeBackend()
    first = backend.score_packed(pack(compiled, arrays, prefix=None, want_normalizer=True))
    again = backend.score_packed(pack(compiled, arrays, prefix=first.kept, want_normalizer=True))
    expected = [
        logits_of(path_state([*prefix, *ids, 7, 8, *path]), 258)[:3] for ids in contexts for path in paths
    ]
    for scores in (first, again):
        assert np.array_equal(scores.logits.reshape(-1, 3), np.array(expected))
    assert again.tokens_computed == first.tokens_computed - len(prefix)


@given(
    contexts=st.lists(st.lists(TOKENS, min_size=1, max_size=7), min_size=1, max_size=7, unique_by=tuple),
)
def test_contexts_with_a_common_beginning_share_its_tokens(contexts):
    compiled = compiled_of([9], [[3, 4]])
    batch = pack(compiled, [np.array(ids, np.int32) for ids in contexts], prefix=None, want_normalizer=True)
    full = [(9, *ids, 7, 8) for ids in contexts]
    distinct = {path[:cut] for path in full for cut in range(1, len(path) + 1)}
    assert len(batch.token_ids) == len(distinct) + 2 * len(contexts)
    assert unique_tokens(compiled, [np.array(ids, np.int32) for ids in contexts]) == len(batch.token_ids)
    for number, segment in enumerate(batch.segments):
        assert segment.parent is None or segment.parent < number
        assert number == 0 or segment.start == batch.segments[number - 1].stop


def test_the_prefix_is_laid_out_once_and_kept():
    compiled = compile_schema(TICKET, ByteTokenizer(), layout="shared", answers="labels")
    batch = pack(compiled, [np.array([65, 66], np.int32)], prefix=None, want_normalizer=True)
    assert batch.keep == 0
    assert batch.token_ids[: len(compiled.prefix_ids)].tolist() == compiled.prefix_ids.tolist()
    kept = FakeBackend().score_packed(batch).kept
    cached = pack(compiled, [np.array([65, 66], np.int32)], prefix=kept, want_normalizer=False)
    assert cached.keep is None
    assert cached.positions[0] == len(compiled.prefix_ids)
    assert cached.token_ids.tolist() == batch.token_ids[len(compiled.prefix_ids) :].tolist()


def test_a_context_of_no_tokens_is_refused():
    compiled = compiled_of([1], [[2]])
    empty = CompiledSchema(**{**compiled.__dict__, "suffix_ids": np.empty(0, np.int32)})
    with pytest.raises(ValueError, match="no tokens"):
        pack(empty, [np.empty(0, np.int32)], prefix=FakeBackend()._hold(0, 3), want_normalizer=True)
