"""Logits at nodes, against a plain product in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from branchwise.backends import torch_head
from branchwise.backends.base import Int64Array
from branchwise.backends.torch_head import Answers, Head, NodeHead, WholeHead, head_of
from branchwise.backends.torch_kv import Meter

pytestmark = pytest.mark.usefixtures("one_thread")

NODES, WIDTH, VOCABULARY = 7, 24, 90
HIDDEN = torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.randn(VOCABULARY, WIDTH, generator=torch.Generator().manual_seed(1))
BIAS = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(2))
SIZES = np.array([3, 1, 0, 5, 2, 4, 1])
OFFSETS: Int64Array = np.concatenate([[0], np.cumsum(SIZES)]).astype(np.int64)
IDS = np.random.default_rng(3).integers(0, VOCABULARY, OFFSETS[-1]).astype(np.int32)


def cap(logits: torch.Tensor) -> torch.Tensor:
    return 3 * torch.tanh(logits / 3)


def score(head: NodeHead, rows: torch.Tensor, want_normalizer: bool = True) -> Answers:
    answers = Answers(IDS, OFFSETS, want_normalizer)
    head.score(rows, np.arange(NODES), answers, Meter())
    return answers


def oracle() -> tuple[np.ndarray, np.ndarray]:
    logits = cap(HIDDEN.double() @ WEIGHT.double().T + BIAS.double())
    wanted = logits[
        torch.from_numpy(np.repeat(np.arange(NODES), SIZES)), torch.from_numpy(IDS.astype(np.int64))
    ]
    return wanted.numpy(), logits.logsumexp(-1).numpy()


@pytest.mark.parametrize("bound", [1, 2 * 16 * 4 * VOCABULARY, 64 << 20])
def test_head_equals_a_plain_product(bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_head, "LOGIT_BYTES", bound)
    answers = score(Head(WEIGHT, BIAS, cap), HIDDEN)
    logits, normalizer = oracle()
    np.testing.assert_allclose(answers.logits, logits, atol=1e-5)
    np.testing.assert_allclose(answers.log_normalizer, normalizer, atol=1e-5)


def test_whole_head_reads_the_models_own_logits() -> None:
    answers = score(WholeHead(), cap(HIDDEN @ WEIGHT.T + BIAS))
    logits, normalizer = oracle()
    np.testing.assert_allclose(answers.logits, logits, atol=1e-5)
    np.testing.assert_allclose(answers.log_normalizer, normalizer, atol=1e-5)


def test_allowed_logits_are_the_same_without_the_normalizer() -> None:
    head = Head(WEIGHT, BIAS, cap)
    alone = score(head, HIDDEN, want_normalizer=False)
    assert alone.log_normalizer is None
    assert np.array_equal(alone.logits, score(head, HIDDEN).logits)


def test_nodes_may_come_in_any_order_and_in_parts() -> None:
    head, answers = Head(WEIGHT, BIAS, cap), Answers(IDS, OFFSETS, True)
    for nodes in (np.array([5, 0]), np.array([6, 2, 1]), np.array([4, 3])):
        head.score(HIDDEN[torch.from_numpy(nodes)], nodes, answers, Meter())
    whole = score(head, HIDDEN)
    assert np.array_equal(answers.logits, whole.logits)
    assert np.array_equal(answers.log_normalizer, whole.log_normalizer)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_allowed_logits_are_not_rounded_and_legal_mass_is_at_most_one(
    dtype: torch.dtype,
) -> None:
    hidden, weight = HIDDEN.to(dtype), WEIGHT.to(dtype)
    answers = Answers(np.arange(VOCABULARY, dtype=np.int32), np.array([0, VOCABULARY]), True)
    Head(weight, None, lambda logits: logits).score(hidden[:1], np.array([0]), answers, Meter())
    exact = (weight.double() @ hidden[0].double()).numpy()
    np.testing.assert_allclose(answers.logits, exact, atol=1e-5)
    assert answers.log_normalizer is not None
    assert np.logaddexp.reduce(answers.logits) - answers.log_normalizer[0] == pytest.approx(0, abs=1e-6)


def test_logits_held_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_head, "LOGIT_BYTES", 1)
    meter = Meter()
    rows = HIDDEN.repeat(20, 1)
    count = len(rows)
    answers = Answers(np.zeros(count, dtype=np.int32), np.arange(count + 1), True)
    Head(WEIGHT, BIAS, cap).score(rows, np.arange(count), answers, meter)
    assert meter.peak == torch_head.LEAST_ROWS * VOCABULARY * 4
    assert meter.held == 0


def test_only_a_linear_layer_on_a_base_model_is_taken_apart() -> None:
    class Scaled(torch.nn.Linear):
        pass

    @dataclass
    class Model:
        layer: torch.nn.Module | None
        base_model: object = None

        def get_output_embeddings(self) -> torch.nn.Module | None:
            return self.layer

    def same(logits: torch.Tensor) -> torch.Tensor:
        return logits

    assert isinstance(head_of(Model(torch.nn.Linear(3, 4)), same), Head)
    assert isinstance(head_of(Model(Scaled(3, 4)), same), WholeHead)
    assert isinstance(head_of(Model(None), same), WholeHead)
    bare = Model(torch.nn.Linear(3, 4))
    bare.base_model = bare
    assert isinstance(head_of(bare, same), WholeHead)
