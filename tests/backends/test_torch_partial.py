"""Attention over parts of the keys, against a softmax over all of them in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from branchwise.backends.torch_masks import MaskBuilder
from branchwise.backends.torch_partial import (
    BLIND,
    CAUSAL_TOKENS,
    KEY_TOKENS,
    Bias,
    Form,
    causal,
    causal_bias,
    merge,
    partial,
    with_sinks,
)
from branchwise.backends.torch_plan import Source, Span, Task

pytestmark = pytest.mark.usefixtures("one_thread")

HEADS, GROUPS = 2, 3
FORMS = [Form(0.3, None), Form(0.3, 2.0)]


def draw(count: int, keys: int, width: int = 16, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Queries, keys and values as a layer has them: views of ``[T, heads * width]``."""
    torch.manual_seed(count * 1000 + keys)
    queries = torch.randn(count, HEADS * GROUPS * width, dtype=dtype)
    pair = [
        torch.randn(keys, HEADS * width, dtype=dtype).view(keys, HEADS, width).transpose(0, 1) for _ in "kv"
    ]
    return [
        queries.view(count, HEADS * GROUPS, width).transpose(0, 1).view(HEADS, GROUPS, count, width),
        *pair,
    ]


def oracle(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, form: Form, seen: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = torch.einsum("hgnd,hmd->hgnm", queries.double(), keys.double()) * form.scale
    if form.softcap is not None:
        scores = form.softcap * torch.tanh(scores / form.softcap)
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    weights = torch.softmax(scores, dim=-1).nan_to_num()
    return torch.einsum("hgnm,hmd->hgnd", weights, values.double()), torch.logsumexp(scores, dim=-1)


def as_bias(seen: torch.Tensor) -> Bias:
    blind = ~seen.any(dim=1)
    return Bias(torch.zeros(seen.shape).masked_fill(~seen, -math.inf), blind if blind.any() else None)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("count", "keys"), [(1, 1), (5, 9), (40, 3), (7, KEY_TOKENS + 50)])
def test_partial_equals_softmax(form: Form, count: int, keys: int) -> None:
    tensors = draw(count, keys)
    found, wanted = partial(*tensors, form, None), oracle(*tensors, form, None)
    for got, true in zip(found, wanted, strict=True):
        torch.testing.assert_close(got.double(), true, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_partial_under_a_bias(form: Form) -> None:
    tensors = draw(30, 20)
    seen = torch.rand(30, 20) < 0.4
    seen[3] = False
    out, lse = partial(*tensors, form, as_bias(seen))
    true_out, true_lse = oracle(*tensors, form, seen)
    sighted = seen.any(dim=1)
    torch.testing.assert_close(out.double(), true_out, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse[..., sighted].double(), true_lse[..., sighted], rtol=1e-5, atol=1e-5)
    assert bool((lse[..., ~sighted] <= BLIND).all())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [1, 2, 17, CAUSAL_TOKENS, CAUSAL_TOKENS + 1, 3 * CAUSAL_TOKENS])
def test_causal_equals_masked_softmax(form: Form, count: int) -> None:
    tensors = draw(count, count)
    seen = torch.ones(count, count, dtype=torch.bool).tril()
    for got, true in zip(causal(*tensors, form), oracle(*tensors, form, seen), strict=True):
        torch.testing.assert_close(got.double(), true, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_merged_parts_equal_the_whole(form: Form) -> None:
    """Three parts, of which a query sees none of the second."""
    queries, keys, values = draw(6, 30)
    seen = torch.ones(6, 30, dtype=torch.bool)
    seen[4, 10:20] = False
    parts = [
        partial(queries, keys[:, part], values[:, part], form, as_bias(seen[:, part]))
        for part in (slice(0, 10), slice(10, 20), slice(20, 30))
    ]
    for got, true in zip(merge(parts), oracle(queries, keys, values, form, seen), strict=True):
        torch.testing.assert_close(got.double(), true, rtol=1e-5, atol=1e-5)


def test_sinks_are_keys_without_value() -> None:
    queries, keys, values = draw(4, 9)
    sinks = torch.randn(HEADS * GROUPS)
    found = with_sinks(partial(queries, keys, values, FORMS[0], None), sinks)
    scores = torch.einsum("hgnd,hmd->hgnm", queries.double(), keys.double()) * FORMS[0].scale
    extra = sinks.double().view(HEADS, GROUPS, 1, 1).expand(-1, -1, 4, 1)
    weights = torch.softmax(torch.cat([scores, extra], dim=-1), dim=-1)[..., :-1]
    wanted = torch.einsum("hgnm,hmd->hgnd", weights, values.double())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_good_as_its_rounding(dtype: torch.dtype) -> None:
    tensors = draw(50, 60, width=32, dtype=dtype)
    out, lse = merge([partial(*tensors, FORMS[0], None), partial(*tensors, FORMS[0], None)])
    true_out, true_lse = oracle(*tensors, FORMS[0], None)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), true_out, rtol=0, atol=3e-2)
    torch.testing.assert_close(lse.double(), true_lse + math.log(2), rtol=0, atol=1e-3)


def test_values_may_be_narrower_than_keys() -> None:
    queries, keys, values = draw(5, 8)
    found = partial(queries, keys, values[..., :6], FORMS[0], None)[0]
    wanted = oracle(queries, keys, values[..., :6], FORMS[0], None)[0]
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


def test_causal_bias_drawn_by_hand() -> None:
    assert causal_bias(torch.zeros(1, 1, 3, 2)).tolist() == [
        [0, -math.inf, -math.inf],
        [0, 0, -math.inf],
        [0, 0, 0],
    ]


class TestWindows:
    """A token at depth p sees depth q when p - q < window."""

    builder = MaskBuilder(torch.float32, torch.device("cpu"))

    def task(self, depth: int, count: int, *spans: Span) -> Task:
        return Task(0, count, spans, np.arange(depth, depth + count), None)

    def test_a_far_span_is_left_out_and_a_near_one_is_whole(self) -> None:
        far, near = Span(Source.PREFIX, -1, 0, 10, 0), Span(Source.CHUNK, 0, 4, 8, 18)
        found = self.builder.spans(self.task(22, 2, far, near), 6)
        assert found == ((near, None),)

    def test_the_edge_of_a_window_is_cut_and_masked(self) -> None:
        span = Span(Source.STORED, 3, 0, 10, 5)
        ((kept, bias),) = self.builder.spans(self.task(15, 3, span), 4)
        assert kept == Span(Source.STORED, 3, 7, 10, 12)
        assert bias is not None
        assert (bias.values == 0).tolist() == [[True, True, True], [False, True, True], [False, False, True]]
        assert bias.blind is None

    def test_queries_beyond_the_window_are_blind(self) -> None:
        ((kept, bias),) = self.builder.spans(self.task(15, 4, Span(Source.PREFIX, -1, 0, 15, 0)), 3)
        assert (kept.start, kept.stop) == (13, 15)
        assert bias is not None
        assert bias.blind is not None
        assert bias.blind.tolist() == [False, False, True, True]

    def test_a_window_that_is_never_left_changes_nothing(self) -> None:
        span = Span(Source.PREFIX, -1, 0, 3, 0)
        task = self.task(3, 3, span)
        assert self.builder.spans(task, 6) == ((span, None),)
        assert self.builder.own(task, 6) is None

    def test_a_run_longer_than_the_window_is_a_band(self) -> None:
        bias = self.builder.own(self.task(0, 4), 2)
        assert bias is not None
        assert (bias.values == 0).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
