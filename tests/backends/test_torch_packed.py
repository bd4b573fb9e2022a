"""A packed pass gives the numbers of plain forwards, one per path, with the model's own attention."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.torch_models import FAMILIES, backend, expected, forest, with_chunks
from branchwise.backends import torch_partial
from branchwise.backends.base import NodeScores
from branchwise.backends.torch_kv import TorchPrefix

pytestmark = pytest.mark.usefixtures("one_thread")

# prefix ─┬─ shared ─┬─ context ─┬─ row ─┬─ branch
#         │          │           │       └─ branch ── branch
#         │          │           └─ row
#         │          └─ context ── row
#         └─ context (long) ─┬─ row
#                            └─ row
FOREST = [
    (9, None),
    (4, 0),
    (11, 1),
    (3, 2),
    (1, 3),
    (2, 3),
    (1, 5),
    (4, 2),
    (6, 1),
    (2, 8),
    (40, 0),
    (3, 10),
    (2, 10),
]
BELOW_PREFIX = [
    (length, None if parent == 0 else parent - 1) for length, parent in FOREST[1:] if parent is not None
]
TIGHT = 1e-5


def assert_close(scores: NodeScores, wanted: tuple[np.ndarray, np.ndarray], tolerance: float = TIGHT) -> None:
    logits, normalizer = wanted
    np.testing.assert_allclose(scores.logits, logits, rtol=0, atol=tolerance)
    np.testing.assert_allclose(scores.log_normalizer, normalizer, rtol=0, atol=tolerance)


@pytest.mark.parametrize("family", FAMILIES)
def test_forest_equals_plain_forwards(family: str) -> None:
    batch = forest(FOREST)
    scores = backend(family).score_packed(batch)
    assert_close(scores, expected(backend(family).loaded.model, batch))
    assert scores.tokens_computed == len(batch.token_ids)
    assert scores.kept is None


@pytest.mark.parametrize("family", FAMILIES)
def test_kept_prefix_serves_later_passes_unchanged(family: str) -> None:
    model = backend(family)
    first = forest(FOREST[:1], keep=0)
    kept = model.score_packed(first).kept
    assert isinstance(kept, TorchPrefix)
    assert (kept.length, kept.nbytes) == (9, 9 * model.capabilities.kv_bytes_per_token)
    before = [(kv.keys.clone(), kv.values.clone()) for kv in kept.layers]
    for seed in (1, 2, 1):
        batch = forest(BELOW_PREFIX, seed=seed, prefix=kept)
        scores = model.score_packed(batch)
        assert_close(scores, expected(model.loaded.model, batch, first.token_ids.tolist()))
        assert scores.tokens_computed == len(batch.token_ids)
    for kv, (keys, values) in zip(kept.layers, before, strict=True):
        assert kv.keys.equal(keys)
        assert kv.values.equal(values)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss", "gpt2"])
@pytest.mark.parametrize(("chunk", "piece"), [(1, 1), (3, 2), (5, 64), (16, 7), (40, 3), (1000, 4)])
def test_cuts_do_not_change_values(family: str, chunk: int, piece: int) -> None:
    batch = forest(FOREST, keep=0)
    scores = with_chunks(backend(family), chunk, piece).score_packed(batch)
    assert_close(scores, expected(backend(family).loaded.model, batch))
    assert scores.tokens_computed == len(batch.token_ids)
    assert isinstance(scores.kept, TorchPrefix)
    below = forest(BELOW_PREFIX, seed=3, prefix=scores.kept)
    again = with_chunks(backend(family), chunk, piece).score_packed(below)
    prefix_ids = batch.token_ids[:9].tolist()
    assert_close(again, expected(backend(family).loaded.model, below, prefix_ids))


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3_text", "gpt_oss", "deepseek_v3"])
def test_devices_without_the_fused_kernel_give_the_same(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_partial, "_fused", None)
    monkeypatch.setattr(torch_partial, "KEY_TOKENS", 8)
    batch = forest(FOREST)
    assert_close(backend(family).score_packed(batch), expected(backend(family).loaded.model, batch))


@st.composite
def shapes(draw: st.DrawFn) -> list[tuple[int, int | None]]:
    """Random forests of up to nine segments, depth first."""
    shape: list[tuple[int, int | None]] = []
    path: list[int] = []  # the segments on the way to the one before
    for index in range(draw(st.integers(1, 9))):
        path = path[: draw(st.integers(0, len(path)))]
        shape.append((draw(st.sampled_from([1, 1, 2, 3, 5, 12, 34])), path[-1] if path else None))
        path.append(index)
    return shape


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    shape=shapes(),
    family=st.sampled_from(["llama", "mistral", "gemma2", "gemma3_text", "gpt_oss", "smollm3"]),
    chunk=st.sampled_from([1, 4, 10, 33, 1000]),
    piece=st.sampled_from([1, 5, 1000]),
    below=st.booleans(),
)
def test_random_forests_equal_plain_forwards(
    shape: list[tuple[int, int | None]], family: str, chunk: int, piece: int, below: bool
) -> None:
    model = with_chunks(backend(family), chunk, piece)
    root = forest([(10, None)], seed=7, keep=0)
    kept = model.score_packed(root).kept if below else None
    batch = forest(shape, seed=len(shape), prefix=kept)
    scores = model.score_packed(batch)
    assert_close(
        scores, expected(backend(family).loaded.model, batch, root.token_ids.tolist() if below else ())
    )


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_oss"])
def test_a_context_does_not_see_its_neighbours(family: str) -> None:
    """One context alone, and the same one between others: the same bytes, where products are of
    sixteen rows or more."""
    model = with_chunks(backend(family), 40)
    kept = model.score_packed(forest([(30, None)], keep=0)).kept
    context = [(36, None), (3, 0), (4, 0)]
    alone = forest(context, seed=5, prefix=kept)
    three = forest([*context, *((n, None if p is None else p + 3) for n, p in context)], seed=5, prefix=kept)
    assert np.array_equal(alone.token_ids, three.token_ids[: len(alone.token_ids)])
    one, both = model.score_packed(alone), model.score_packed(three)
    rows = [int(np.flatnonzero(three.nodes == node)[0]) for node in alone.nodes]
    assert one.log_normalizer is not None
    assert both.log_normalizer is not None
    assert np.array_equal(one.log_normalizer, both.log_normalizer[rows])


@pytest.mark.parametrize("family", ["llama", "mixtral", "gemma2"])
def test_the_same_batch_gives_the_same_bytes(family: str) -> None:
    batch = forest(FOREST)
    first, second = backend(family).score_packed(batch), backend(family).score_packed(batch)
    assert first.logits.tobytes() == second.logits.tobytes()
    assert first.log_normalizer is not None
    assert second.log_normalizer is not None
    assert first.log_normalizer.tobytes() == second.log_normalizer.tobytes()


@pytest.mark.parametrize("family", ["llama", "gemma2", "granite", "cohere", "phi", "gpt_neox"])
def test_logits_do_not_depend_on_the_normalizer(family: str) -> None:
    with_it = backend(family).score_packed(forest(FOREST))
    without = backend(family).score_packed(forest(FOREST, want_normalizer=False))
    assert without.log_normalizer is None
    assert np.array_equal(with_it.logits, without.logits)


def test_a_pass_without_nodes_makes_a_prefix() -> None:
    batch = forest([(6, None)], keep=0)
    empty = np.empty(0, dtype=np.int64)
    bare = type(batch)(
        token_ids=batch.token_ids,
        positions=batch.positions,
        segments=batch.segments,
        nodes=empty,
        allowed_ids=empty.astype(np.int32),
        allowed_offsets=np.zeros(1, dtype=np.int64),
        keep=0,
    )
    scores = backend("llama").score_packed(bare)
    assert scores.kept is not None
    assert len(scores.logits) == 0
    assert scores.log_normalizer is not None
    assert len(scores.log_normalizer) == 0


def test_a_prefix_of_another_model_is_refused() -> None:
    kept = backend("llama").score_packed(forest([(6, None)], keep=0)).kept
    with pytest.raises(ValueError, match="another model"):
        backend("olmo2").score_packed(forest([(2, None)], prefix=kept))
