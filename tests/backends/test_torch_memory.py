"""Memory: what is counted, what is freed, and what an allocation that fails becomes."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from backends.torch_models import VOCABULARY, backend, build_model, forest, with_chunks
from branchwise.backends.fake import ByteTokenizer
from branchwise.backends.torch_backend import TorchBackend
from branchwise.backends.torch_device import choose_dtype, free_memory, is_memory_error
from branchwise.errors import BackendMemoryError

pytestmark = pytest.mark.usefixtures("one_thread")

PREFIX, CONTEXT, ROW = 20, 30, 3


def group(count: int, **options: Any) -> Any:
    """``count`` contexts with two rows each."""
    shape: list[tuple[int, int | None]] = []
    for _ in range(count):
        shape.append((CONTEXT, None))
        shape += [(ROW, len(shape) - 1)] * 2
    return forest(shape, **options)


def fresh(family: str = "llama") -> TorchBackend:
    return TorchBackend(build_model(family), ByteTokenizer(), name=family, revision="r")


def held(model: TorchBackend) -> int:
    gc.collect()
    return model._meter.held


def test_a_prefix_counts_until_it_is_garbage() -> None:
    model = fresh()
    scores = model.score_packed(forest([(PREFIX, None)], keep=0))
    assert held(model) == PREFIX * model.capabilities.kv_bytes_per_token
    del scores
    assert held(model) == 0


def test_a_slot_counts_until_it_is_garbage() -> None:
    model = fresh()
    slot = model.prefill(list(range(5, 15)))
    assert held(model) == slot.nbytes == 10 * model.capabilities.kv_bytes_per_token
    del slot
    assert held(model) == 0


@pytest.mark.parametrize("chunk", [40, 1 << 20])
def test_five_hundred_contexts_in_fours_hold_four_contexts_at_most(chunk: int) -> None:
    model = with_chunks(fresh(), chunk)
    kept = model.score_packed(forest([(PREFIX, None)], keep=0)).kept
    assert kept is not None
    tokens = 4 * (CONTEXT + 2 * ROW)
    logits = 16 * VOCABULARY * 4
    bound = kept.nbytes + max(tokens * model.capabilities.kv_bytes_per_token, logits)
    for seed in range(125):
        scores = model.score_packed(group(4, seed=seed, prefix=kept))
        assert scores.peak_bytes <= bound
    assert held(model) == kept.nbytes


def test_a_chunked_pass_holds_less_than_all_of_its_contexts() -> None:
    model = with_chunks(fresh(), 36)
    all_of_them = 40 * (CONTEXT + 2 * ROW) * model.capabilities.kv_bytes_per_token
    assert model.score_packed(group(40)).peak_bytes < all_of_them / 4


@pytest.mark.parametrize(
    "failure",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you"
        ),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 99 bytes."),
    ],
)
def test_a_failed_allocation_is_a_memory_error_and_leaves_nothing_behind(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fresh()
    batch = group(3)
    wanted = model.score_packed(batch)
    mlp = model.loaded.model.model.layers[2].mlp

    def fail(_: torch.Tensor) -> torch.Tensor:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(mlp, "forward", fail)
        with pytest.raises(BackendMemoryError, match="running 108 tokens") as caught:
            model.score_packed(batch)
        assert caught.value.__cause__ is failure
        with pytest.raises(BackendMemoryError, match="prefilling 2 tokens"):
            model.prefill([5, 6])
    assert held(model) == 0
    assert model.score_packed(batch).logits.tobytes() == wanted.logits.tobytes()


def test_tensors_of_a_failed_pass_are_free_while_its_error_is_handled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = fresh()
    alive: list[int] = []
    mlp = model.loaded.model.model.layers[1].mlp

    def fail(hidden: torch.Tensor) -> torch.Tensor:
        big = torch.zeros(hidden.shape)
        import weakref

        weakref.finalize(big, alive.append, 0)
        raise torch.OutOfMemoryError("out")

    monkeypatch.setattr(mlp, "forward", fail)
    with pytest.raises(BackendMemoryError):
        try:
            model.score_packed(group(1))
        except BackendMemoryError:
            assert alive == [0]
            raise


@pytest.mark.parametrize(
    "failure",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (memory)"),
        ValueError("memory"),
        KeyError("cuda"),
    ],
)
def test_other_failures_stay_what_they_are(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh()

    def fail(_: torch.Tensor) -> torch.Tensor:
        raise failure

    monkeypatch.setattr(model.loaded.model.model.layers[0].mlp, "forward", fail)
    with pytest.raises(type(failure)) as caught:
        model.score_packed(group(1))
    assert caught.value is failure
    assert held(model) == 0


def test_the_real_allocator_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 55)
    assert is_memory_error(caught.value)


def test_free_memory_is_less_than_all_there_is() -> None:
    assert 1 << 20 < free_memory(torch.device("cpu")) < 1 << 50


def test_automatic_format_follows_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    assert choose_dtype(None, cpu) == torch.bfloat16
    monkeypatch.setattr(
        torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False, "avx2": True}, raising=False
    )
    assert choose_dtype("auto", cpu) == torch.float32
    assert choose_dtype("float16", cpu) == torch.float16


def test_peak_counts_prefix_chunk_and_logits() -> None:
    model = backend("llama")
    batch = forest([(6, None)])
    peak = model.score_packed(batch).peak_bytes
    per_layer = model.capabilities.kv_bytes_per_token // 3
    assert peak == max(6 * per_layer, 16 * VOCABULARY * 4)
