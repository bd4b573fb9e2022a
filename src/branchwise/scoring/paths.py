"""Constrained-path log-probabilities: the softmax over allowed tokens, multiplied along a path.

At a branch point only the allowed next tokens compete: log P(token) = logit - logsumexp(allowed
logits). A candidate's log-probability is the sum over its branch points; the steps between them
are certain. It is the probability of sampling that candidate from the model when every other
token is masked out, which is how grammar-constrained decoding defines it (Willard & Louf 2023,
"Efficient Guided Generation for Large Language Models", section 2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from branchwise.backends.base import Float64Array, Int64Array


@dataclass(frozen=True)
class BranchScores:
    """One context's branch points.

    ``logp_allowed``: float64 ``[A]``, log-probability of each allowed token among those of its
    node. ``log_mass``: float64 ``[K]``, log of the share of the vocabulary's probability that
    fell on a node's allowed tokens; None without a normalizer.
    """

    logp_allowed: Float64Array
    log_mass: Float64Array | None


@dataclass(frozen=True)
class CandidateScores:
    """One row's candidates: log-probabilities and log legal masses, float64 ``[candidates]``."""

    logp: Float64Array
    log_mass: Float64Array | None


def branch_scores(
    logits: Float64Array, offsets: Int64Array, log_normalizer: Float64Array | None
) -> BranchScores:
    """Softmax over each node's allowed ids.

    ``logits``: float64 ``[A]``. ``offsets``: int64 ``[K + 1]``. ``log_normalizer``: float64
    ``[K]`` or None. Every node has at least one allowed id.
    """
    if len(offsets) == 1:
        empty = np.empty(0)
        return BranchScores(empty, None if log_normalizer is None else empty)
    starts, sizes = offsets[:-1], np.diff(offsets)
    peak = np.maximum.reduceat(logits, starts)
    total = np.add.reduceat(np.exp(logits - np.repeat(peak, sizes)), starts)
    log_total = peak + np.log(total)
    log_mass = None if log_normalizer is None else np.minimum(log_total - log_normalizer, 0.0)
    return BranchScores(logits - np.repeat(log_total, sizes), log_mass)


def candidate_scores(branches: BranchScores, paths: Int64Array, candidates: int) -> CandidateScores:
    """Sum the steps of each candidate's path.

    ``paths``: int64 ``[P, 3]``: candidate, node, allowed index of every step that is not certain.
    """
    which, nodes, allowed = paths[:, 0], paths[:, 1], paths[:, 2]
    logp = _sums(which, branches.logp_allowed[allowed], candidates)
    if branches.log_mass is None:
        return CandidateScores(logp, None)
    return CandidateScores(logp, _sums(which, branches.log_mass[nodes], candidates))


def _sums(which: Int64Array, values: Float64Array, count: int) -> Float64Array:
    """Sum of ``values`` per candidate, in path order."""
    result = np.zeros(count)
    np.add.at(result, which, values)
    return result
