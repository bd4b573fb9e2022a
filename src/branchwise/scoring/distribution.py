"""A question's distribution over its options, and what is read off it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from branchwise.backends.base import Float64Array

TIE_NATS = 1e-9
"""Two log-probabilities closer than this (nats) are a tie; the option listed first wins."""


@dataclass(frozen=True)
class Distribution:
    """One of N options.

    ``logp``: float64 ``[N]`` at temperature 1. ``prob``: float64 ``[N]`` at the asked
    temperature, sums to 1. ``order``: int64 ``[N]``, option indices, most likely first, ties in
    option order. ``margin`` is the difference of the best two probabilities,
    ``log_score_margin`` of their log-probabilities in nats. A single option is certain: its
    margin is 1 and its log-score margin, having no rival, 0.
    """

    logp: Float64Array
    prob: Float64Array
    order: NDArray[np.int64]
    margin: float
    log_score_margin: float
    tie: bool


def log_softmax(scores: Float64Array) -> Float64Array:
    """Natural log of the softmax over the last axis, shifted by its peak."""
    shifted = scores - scores.max(axis=-1, keepdims=True)
    result: Float64Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def distribution(logp: Float64Array, temperature: float) -> Distribution:
    """The distribution of N >= 1 options with log-probabilities ``logp``; T divides once, here."""
    prob = np.exp(log_softmax(logp / temperature))
    order = _ranked(logp)
    if len(logp) == 1:
        return Distribution(logp, prob, order, 1.0, 0.0, tie=False)
    best, second = order[0], order[1]
    gap = float(logp[best] - logp[second])
    tie = gap <= TIE_NATS
    return Distribution(logp, prob, order, float(prob[best] - prob[second]), gap, tie)


def _ranked(logp: Float64Array) -> NDArray[np.int64]:
    """Indices, best first; options within TIE_NATS of the best one at hand keep their own order."""
    remaining = np.argsort(-logp, kind="stable")
    ranked: list[int] = []
    start = 0
    while start < len(remaining):
        level = logp[remaining[start]]
        stop = start
        while stop < len(remaining) and level - logp[remaining[stop]] <= TIE_NATS:
            stop += 1
        ranked += sorted(int(i) for i in remaining[start:stop])
        start = stop
    return np.array(ranked, np.int64)


def level_moments(prob: Float64Array) -> tuple[float, float]:
    """Mean and variance of the level's index under ``prob`` (float64 ``[levels]``, sums to 1)."""
    index = np.arange(len(prob))
    expected = float(prob @ index)
    return expected, float(prob @ (index - expected) ** 2)
