"""Tries and packing, in worlds small enough to check by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from branchwise.backends.base import Segment
from branchwise.tree.trie import ROOT, branch_points, merge, split_head

SEQUENCES = st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=12)


def spelled(word: str) -> list[int]:
    return [ord(letter) for letter in word]


def test_the_drawn_world():
    trie = merge(map(spelled, ["abc", "abd", "xy", ""]))
    assert "".join(map(chr, trie.token_ids)) == "abcdxy"
    assert trie.depths.tolist() == [0, 1, 2, 2, 0, 1]
    assert trie.segments == (
        Segment(0, 2, None),
        Segment(2, 3, 0),
        Segment(3, 4, 0),
        Segment(4, 6, None),
    )
    assert trie.ends == (2, 3, 5, ROOT)


def test_a_sequence_that_ends_inside_another_shares_its_tokens():
    trie = merge(map(spelled, ["abc", "ab", "abc"]))
    assert "".join(map(chr, trie.token_ids)) == "abc"
    assert trie.ends == (2, 1, 2)


@given(SEQUENCES)
def test_a_trie_holds_every_distinct_path_once(sequences):
    trie = merge(sequences)
    distinct = {tuple(s[:cut]) for s in sequences for cut in range(1, len(s) + 1)}
    assert len(trie.token_ids) == len(distinct)
    found, path_to = set(), {None: ()}
    for number, segment in enumerate(trie.segments):
        assert segment.parent is None or segment.parent < number
        path = path_to[segment.parent]
        for place in range(segment.start, segment.stop):
            assert trie.depths[place] == len(path)
            path = (*path, int(trie.token_ids[place]))
            found.add(path)
            for sequence, end in zip(sequences, trie.ends, strict=True):
                if end == place:
                    assert path == tuple(sequence)
        path_to[number] = path
    assert found == distinct
    starts = [segment.start for segment in trie.segments]
    stops = [segment.stop for segment in trie.segments]
    assert starts == [0, *stops[:-1]] if starts else not distinct


def test_branch_points_are_where_two_or_more_tokens_compete():
    candidates = [spelled(word) for word in ("red\n", "rose\n", "rosé\n", "tan\n")]
    found = branch_points(candidates)
    assert {"".join(map(chr, path)): "".join(map(chr, ids)) for path, ids in found.items()} == {
        "": "rt",
        "r": "eo",
        "ros": "eé",
    }
    assert branch_points([spelled("only\n")]) == {}


def test_a_candidate_that_is_a_prefix_of_another_is_closed_by_the_terminator():
    found = branch_points([spelled("bill\n"), spelled("billing\n")])
    assert {"".join(map(chr, path)): "".join(map(chr, ids)) for path, ids in found.items()} == {"bill": "\ni"}


@given(st.lists(st.text("abc", min_size=1, max_size=5), min_size=2, max_size=12, unique=True))
def test_branch_factors_of_all_candidates_sum_to_one(words):
    """With uniform choices at every branch point, the candidates' probabilities sum to 1."""
    candidates = [(*spelled(word), 10) for word in words]
    points = branch_points(candidates)
    total = 0.0
    for candidate in candidates:
        probability = 1.0
        for cut in range(len(candidate)):
            probability /= len(points.get(candidate[:cut], (0,)))
        total += probability
    assert np.isclose(total, 1.0)


@given(st.lists(st.tuples(*[st.integers(0, 1)] * 5), min_size=1, max_size=6))
def test_the_head_is_the_longest_common_beginning(candidates):
    head, tails = split_head(candidates)
    assert [head + tail for tail in tails] == candidates
    assert len({tail[:1] for tail in tails}) > 1 or tails[0] == ()
