"""The classic strategy on the same weights gives the numbers of the packed pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from backends.torch_models import VOCABULARY, backend
from branchwise.backends.base import Backend, CacheSlot, ClassicBackend, PackedBatch, RowBatch, Segment
from branchwise.backends.torch_classic import TorchSlot

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES = ["llama", "mistral", "qwen2", "gemma2", "gemma3_text", "gpt_oss", "gpt2", "gpt_neox", "granite"]
LENGTHS = (12, 30, 5)
ROWS = ((7, 8, 9), (11,), (7, 12), (13, 14, 15, 16, 17))
ALLOWED = 3


def prompts() -> list[list[int]]:
    random = np.random.default_rng(1)
    return [random.integers(3, VOCABULARY, length).tolist() for length in LENGTHS]


def allowed() -> np.ndarray:
    count = len(LENGTHS) * len(ROWS) * ALLOWED
    return np.random.default_rng(2).integers(0, VOCABULARY, count).astype(np.int32)


def row_batch(count: int, want_normalizer: bool = True) -> RowBatch:
    return RowBatch(
        token_ids=ROWS * count,
        allowed_ids=allowed()[: count * len(ROWS) * ALLOWED],
        allowed_offsets=ALLOWED * np.arange(count * len(ROWS) + 1),
        want_normalizer=want_normalizer,
    )


def packed(contexts: Sequence[Sequence[int]]) -> PackedBatch:
    """The same rows below the same prompts as a forest, nodes in the order of the rows."""
    ids: list[int] = []
    depths: list[int] = []
    segments: list[Segment] = []
    nodes = []
    for context in contexts:
        segments.append(Segment(len(ids), len(ids) + len(context), None))
        parent = len(segments) - 1
        ids += context
        depths += range(len(context))
        for row in ROWS:
            segments.append(Segment(len(ids), len(ids) + len(row), parent))
            ids += row
            depths += range(len(context), len(context) + len(row))
            nodes.append(len(ids) - 1)
    return PackedBatch(
        token_ids=np.array(ids, dtype=np.int32),
        positions=np.array(depths, dtype=np.int32),
        segments=tuple(segments),
        nodes=np.array(nodes),
        allowed_ids=allowed(),
        allowed_offsets=ALLOWED * np.arange(len(nodes) + 1),
    )


def per_row(slots: Sequence[CacheSlot]) -> list[CacheSlot]:
    return [slot for slot in slots for _ in ROWS]


@pytest.mark.parametrize("family", FAMILIES)
def test_classic_equals_packed(family: str) -> None:
    model = backend(family)
    slots = [model.prefill(prompt) for prompt in prompts()]
    assert [slot.length for slot in slots] == list(LENGTHS)
    scores = model.score_rows(row_batch(len(slots)), per_row(slots))
    wanted = model.score_packed(packed(prompts()))
    np.testing.assert_allclose(scores.logits, wanted.logits, atol=1e-4)
    np.testing.assert_allclose(scores.log_normalizer, wanted.log_normalizer, atol=1e-4)
    assert scores.tokens_computed == len(LENGTHS) * len(ROWS) * 5
    assert scores.kept is None


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_slot_serves_many_passes_unchanged(family: str) -> None:
    model = backend(family)
    slot = model.prefill(prompts()[0])
    assert isinstance(slot, TorchSlot)
    before = [(kv.keys.clone(), kv.values.clone()) for kv in slot.layers]
    first = model.score_rows(row_batch(1), per_row([slot]))
    second = model.score_rows(row_batch(1), per_row([slot]))
    assert first.logits.tobytes() == second.logits.tobytes()
    for kv, (keys, values) in zip(slot.layers, before, strict=True):
        assert kv.keys.equal(keys)
        assert kv.values.equal(values)
    assert slot.nbytes == slot.length * model.capabilities.kv_bytes_per_token


def test_normalizer_is_left_out_on_request() -> None:
    model = backend("llama")
    slots = per_row([model.prefill(prompts()[0])])
    without = model.score_rows(row_batch(1, want_normalizer=False), slots)
    assert without.log_normalizer is None
    assert np.array_equal(without.logits, model.score_rows(row_batch(1), slots).logits)


def test_no_rows() -> None:
    rows = RowBatch((), np.empty(0, dtype=np.int32), np.zeros(1, dtype=np.int64))
    scores = backend("llama").score_rows(rows, [])
    assert (len(scores.logits), scores.tokens_computed) == (0, 0)


def test_rows_without_slots_or_tokens_are_refused() -> None:
    model = backend("llama")
    slot = model.prefill([5, 6])
    with pytest.raises(ValueError, match="4 rows have 1 cache slots"):
        model.score_rows(row_batch(1), [slot])
    empty = RowBatch(((),), np.empty(0, dtype=np.int32), np.zeros(2, dtype=np.int64))
    with pytest.raises(ValueError, match="no tokens"):
        model.score_rows(empty, [slot])
    with pytest.raises(ValueError, match="another model"):
        backend("olmo2").score_rows(row_batch(1), per_row([slot]))


def test_it_is_a_backend_of_both_strategies() -> None:
    assert isinstance(backend("llama"), Backend)
    assert isinstance(backend("llama"), ClassicBackend)
