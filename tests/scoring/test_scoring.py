"""Scoring against closed forms, SciPy and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import log_softmax as scipy_log_softmax
from scipy.special import logsumexp

from branchwise.scoring.distribution import TIE_NATS, distribution, level_moments, log_softmax
from branchwise.scoring.multi import multi_scores
from branchwise.scoring.paths import CandidateScores, branch_scores, candidate_scores

LOGITS = hnp.arrays(np.float64, st.integers(1, 12), elements=st.floats(-1e4, 1e4))


@given(st.lists(LOGITS, min_size=1, max_size=6))
def test_branch_scores_are_the_log_softmax_of_each_node(nodes):
    offsets = np.concatenate([[0], np.cumsum([len(node) for node in nodes])])
    normalizer = np.array([logsumexp(node) + 1.5 for node in nodes])
    found = branch_scores(np.concatenate(nodes), offsets, normalizer)
    expected = np.concatenate([scipy_log_softmax(node) for node in nodes])
    assert found.logp_allowed == pytest.approx(expected, abs=1e-9)
    assert found.log_mass == pytest.approx(np.full(len(nodes), -1.5), abs=1e-9)


def test_no_nodes_give_no_scores():
    found = branch_scores(np.empty(0), np.zeros(1, np.int64), np.empty(0))
    assert len(found.logp_allowed) == len(found.log_mass) == 0


def test_candidates_multiply_the_factors_along_their_paths():
    """Two nodes: 'a' or 'b' at the first (1:3), then 'c' or 'd' below 'b' (1:1)."""
    logits = np.log(np.array([1.0, 3.0, 2.0, 2.0]))
    normalizer = np.log(np.array([8.0, 16.0]))
    branches = branch_scores(logits, np.array([0, 2, 4]), normalizer)
    paths = np.array([[0, 0, 0], [1, 0, 1], [1, 1, 2], [2, 0, 1], [2, 1, 3]])
    found = candidate_scores(branches, paths, 3)
    assert np.exp(found.logp) == pytest.approx([1 / 4, 3 / 8, 3 / 8])
    assert np.exp(found.log_mass) == pytest.approx([1 / 2, 1 / 8, 1 / 8])


def test_tiny_legal_mass_stays_finite_in_log_space():
    branches = branch_scores(np.array([-1000.0, -1001.0]), np.array([0, 2]), np.array([0.0]))
    assert branches.log_mass[0] == pytest.approx(-1000 + math.log(1 + math.exp(-1)))
    assert np.isfinite(branches.logp_allowed).all()


def test_legal_mass_is_never_above_one_by_rounding():
    branches = branch_scores(np.array([0.0, 0.0]), np.array([0, 2]), np.array([math.log(2) - 1e-12]))
    assert branches.log_mass[0] == 0.0


@given(LOGITS, st.floats(0.05, 20))
def test_a_distribution_is_the_tempered_softmax(logits, temperature):
    logp = log_softmax(logits)
    found = distribution(logp, temperature)
    assert found.prob == pytest.approx(np.exp(scipy_log_softmax(logits / temperature)), abs=1e-9)
    assert found.prob.sum() == pytest.approx(1)
    assert sorted(found.order) == list(range(len(logits)))
    ranked = found.logp[found.order]
    assert (np.diff(ranked) <= TIE_NATS).all()
    if len(logits) > 1:
        assert found.log_score_margin == pytest.approx(ranked[0] - ranked[1], abs=1e-12)


def test_ties_go_to_the_option_listed_first_and_are_flagged():
    tied = distribution(log_softmax(np.array([0.0, 2.0, 2.0, 1.0, 1.0])), 1.0)
    assert tied.order.tolist() == [1, 2, 3, 4, 0]
    assert tied.tie
    assert tied.margin == 0
    almost = distribution(log_softmax(np.array([2.0, 2.0 + 1e-12])), 1.0)
    assert almost.order.tolist() == [0, 1]
    clear = distribution(log_softmax(np.array([2.0, 2.001])), 1.0)
    assert clear.order.tolist() == [1, 0]
    assert not clear.tie


def test_a_single_option_is_certain():
    found = distribution(np.zeros(1), 1.0)
    assert (found.prob.tolist(), found.margin, found.tie) == ([1.0], 1.0, False)


@given(hnp.arrays(np.float64, st.integers(1, 10), elements=st.floats(0.01, 1)))
def test_level_moments_are_mean_and_variance_of_the_index(weights):
    prob = weights / weights.sum()
    expected, variance = level_moments(prob)
    mean = sum(i * p for i, p in enumerate(prob))
    assert expected == pytest.approx(mean)
    assert variance == pytest.approx(sum(p * (i - mean) ** 2 for i, p in enumerate(prob)), abs=1e-9)


def pair(p_yes: float, mass: float = 0.5) -> CandidateScores:
    return CandidateScores(np.log([p_yes, 1 - p_yes]), np.log([mass, mass]))


def test_each_option_of_a_multi_question_is_decided_by_itself():
    found = multi_scores([pair(0.9, 0.8), pair(0.3, 0.4), pair(0.6)], 1.0)
    assert found.chosen.tolist() == [True, False, True]
    assert found.prob_yes == pytest.approx([0.9, 0.3, 0.6])
    assert found.probability == pytest.approx(0.9 * 0.7 * 0.6)
    assert found.margin == pytest.approx(0.2)
    assert found.log_score_margin == pytest.approx(math.log(0.6 / 0.4))
    assert math.exp(found.log_mass) == pytest.approx(0.4)


def test_a_tied_option_counts_as_yes_and_is_flagged():
    found = multi_scores([pair(0.5), pair(0.9)], 1.0)
    assert found.chosen.tolist() == [True, True]
    assert found.tie


def test_many_options_do_not_underflow_into_a_wrong_answer():
    found = multi_scores([pair(0.9)] * 255, 1.0)
    assert found.probability == pytest.approx(0.9**255, rel=1e-9)
    assert found.chosen.all()


def test_temperature_moves_probabilities_and_no_decision():
    found = multi_scores([pair(0.9), pair(0.2)], 4.0)
    assert found.chosen.tolist() == [True, False]
    odds = (0.9 / 0.1) ** 0.25
    assert found.prob_yes[0] == pytest.approx(odds / (1 + odds))
    assert found.logp_yes == pytest.approx(np.log([0.9, 0.2]))
