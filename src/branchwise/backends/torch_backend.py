"""Hugging Face models in PyTorch: the default runtime, for both strategies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from branchwise.backends.base import (
    CacheSlot,
    Capabilities,
    ModelIdentity,
    NodeScores,
    PackedBatch,
    RowBatch,
)
from branchwise.backends.tokenizer import Tokenizer
from branchwise.backends.torch_classic import prefill, score_rows
from branchwise.backends.torch_device import (
    CHUNK_TOKENS,
    PIECE_TOKENS,
    TOKEN_BUDGETS,
    choose_device,
    choose_dtype,
    dtype_name,
    free_memory,
    memory_errors,
)
from branchwise.backends.torch_families import declared_finish, max_positions
from branchwise.backends.torch_head import head_of
from branchwise.backends.torch_kv import Meter
from branchwise.backends.torch_load import load_model
from branchwise.backends.torch_model import LoadedModel
from branchwise.backends.torch_packed import PackedRun
from branchwise.backends.torch_probe import probe


class TorchBackend:
    """Backend and classic backend over one model.

    Same input, same bytes out. On a processor, a node's numbers don't depend on the other contexts
    of the pass beyond the rounding of matrix products with fewer than about 16 rows. One pass at a
    time: calls from several threads must be kept apart by the caller. ``loaded``: the model and what
    was found out about it.
    """

    def __init__(self, model: Any, tokenizer: Tokenizer, *, name: str, revision: str) -> None:
        """``model``: a causal language model of transformers, loaded with our attention.

        Raises :class:`~branchwise.errors.UnsupportedModelError` when a packed pass would not give
        the model's own numbers.
        """
        device, dtype = model.device, model.dtype
        self._meter = Meter()
        self.tokenizer = tokenizer
        loaded = LoadedModel(
            model=model,
            head=head_of(model, declared_finish(model.config)),
            device=device,
            dtype=dtype,
            windows=(),
            chunk_tokens=CHUNK_TOKENS[device.type],
            piece_tokens=PIECE_TOKENS[device.type],
        )
        with torch.inference_mode(), memory_errors("checking the model"):
            findings = probe(loaded)
        self.loaded = findings.loaded
        self.identity = ModelIdentity(
            name=name,
            revision=revision,
            backend="torch",
            device=str(device),
            dtype=dtype_name(dtype),
            parameters=sum(parameter.numel() for parameter in model.parameters()),
        )
        self.capabilities = Capabilities(
            packed=True,
            classic=True,
            max_positions=max_positions(model.config),
            kv_bytes_per_token=findings.kv_bytes_per_token,
            pass_bytes_per_token=findings.pass_bytes_per_token,
            memory_budget=free_memory(device) // 2,
            token_budget=TOKEN_BUDGETS[device.type],
        )

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        name: str,
        revision: str,
        tokenizer: Tokenizer,
        device: str | None = None,
        dtype: str | None = None,
    ) -> TorchBackend:
        """The model in ``folder`` (``config.json`` and safetensors); code in it is never run.

        ``device``: "cuda", "cuda:1", "mps" or "cpu"; the fastest that is here if None. ``dtype``:
        "float32", "bfloat16" or "float16"; what the device is fast at if None. Raises
        :class:`~branchwise.errors.ConfigError` for a device or dtype that can't be had, and
        :class:`~branchwise.errors.ModelError` for a model that can't be.
        """
        chosen = choose_device(device)
        with memory_errors("loading the model"):
            model = load_model(folder, chosen, choose_dtype(dtype, chosen))
        return cls(model, tokenizer, name=name, revision=revision)

    def score_packed(self, batch: PackedBatch) -> NodeScores:
        """One forward per chunk of the forest; every token is computed once, none is padded."""
        with memory_errors(f"running {len(batch.token_ids)} tokens"), torch.inference_mode():
            return PackedRun(self.loaded, batch, self._meter).score()

    def prefill(self, token_ids: Sequence[int]) -> CacheSlot:
        """Keys and values of one prompt."""
        with memory_errors(f"prefilling {len(token_ids)} tokens"), torch.inference_mode():
            return prefill(self.loaded, token_ids, self._meter)

    def score_rows(self, rows: RowBatch, cache_slots: Sequence[CacheSlot]) -> NodeScores:
        """One forward over all rows, each with a copy of its slot's keys and values."""
        with memory_errors(f"running {len(rows.token_ids)} rows"), torch.inference_mode():
            return score_rows(self.loaded, rows, cache_slots, self._meter)
