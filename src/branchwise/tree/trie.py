"""Token tries: many token sequences, every shared prefix once, flattened into segments.

A world small enough to check by hand; ids are letters::

    abc, abd, xy        a ─ b ┬ c          depth first:  a b c d x y
                              └ d          segments:     [a b] [c] [d] [x y]
                        x ─ y              parents:       -    0   0    -
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from branchwise.backends.base import Int32Array, Segment

ROOT = -1
"""The node above every token: what a path of no tokens ends in."""


@dataclass(frozen=True)
class FlatTrie:
    """A trie in depth-first order.

    ``token_ids``: int32 ``[F]``. ``depths``: int32 ``[F]``, 0 for a top token. ``segments``: runs
    with one parent path, parents first; ``parent`` is None at the top. ``ends``: for each
    inserted sequence, the flat index of its last token, ROOT for the empty sequence.
    """

    token_ids: Int32Array
    depths: Int32Array
    segments: tuple[Segment, ...]
    ends: tuple[int, ...]


def merge(sequences: Iterable[Sequence[int]]) -> FlatTrie:
    """All sequences as one trie; children stand in the order in which they first appear."""
    tokens: list[int] = []
    children: list[dict[int, int]] = []
    top: dict[int, int] = {}
    last_nodes: list[int] = []
    for sequence in sequences:
        here, branches = ROOT, top
        for token in sequence:
            child = branches.get(token)
            if child is None:
                child = branches[token] = len(tokens)
                tokens.append(token)
                children.append({})
            here, branches = child, children[child]
        last_nodes.append(here)
    return _flatten(tokens, children, top, last_nodes)


def _flatten(
    tokens: list[int], children: list[dict[int, int]], top: dict[int, int], last_nodes: list[int]
) -> FlatTrie:
    flat_of = [ROOT] * len(tokens)
    order: list[int] = []
    depths: list[int] = []
    segments: list[Segment] = []
    pending: list[tuple[int, int | None, int]] = [(node, None, 0) for node in reversed(top.values())]
    while pending:
        node, parent, depth = pending.pop()
        start = len(order)
        while True:
            flat_of[node] = len(order)
            order.append(tokens[node])
            depths.append(depth)
            depth += 1
            below = children[node]
            if len(below) != 1:
                break
            (node,) = below.values()
        segments.append(Segment(start, len(order), parent))
        mine = len(segments) - 1
        pending += [(child, mine, depth) for child in reversed(below.values())]
    ends = tuple(flat_of[node] if node != ROOT else ROOT for node in last_nodes)
    return FlatTrie(np.array(order, np.int32), np.array(depths, np.int32), tuple(segments), ends)


def branch_points(candidates: Sequence[Sequence[int]]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Where candidates part: ``{path: the different next tokens, ascending}``, shortest path first.

    A path with a single next token is no branch point: that token is certain. Candidates must not
    be prefixes of one another (the row's terminator sees to that).
    """
    nexts: dict[tuple[int, ...], set[int]] = {}
    for candidate in candidates:
        for cut in range(len(candidate)):
            nexts.setdefault(tuple(candidate[:cut]), set()).add(candidate[cut])
    return {path: tuple(sorted(ids)) for path, ids in nexts.items() if len(ids) > 1}


def split_head(
    candidates: Sequence[tuple[int, ...]],
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """What all candidates start with, and what is left of each."""
    first, last = min(candidates), max(candidates)
    length = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:length], [candidate[length:] for candidate in candidates]
