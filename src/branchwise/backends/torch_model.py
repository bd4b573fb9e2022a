"""A model in memory, and one forward of it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from branchwise.backends.base import Int32Array
from branchwise.backends.torch_head import NodeHead


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model with what was found out about it.

    ``windows``: each layer's sliding window (empty before the probe has confirmed them).
    ``chunk_tokens``, ``piece_tokens``: see :func:`branchwise.backends.torch_plan.plan_chunks`.
    """

    model: Any
    head: NodeHead
    device: torch.device
    dtype: torch.dtype
    windows: tuple[int | None, ...]
    chunk_tokens: int
    piece_tokens: int

    @cached_property
    def _cache_argument(self) -> str:
        """What this version of transformers calls the argument that takes a cache."""
        names = inspect.signature(self.model.base_model.forward).parameters
        return "cache" if "cache" in names else "past_key_values"

    @cached_property
    def _keeps_logits(self) -> bool:
        """Whether the model can leave out the logits of other positions."""
        return "logits_to_keep" in inspect.signature(self.model.forward).parameters

    def ids(self, token_ids: Int32Array) -> torch.Tensor:
        """int64 on the device, of the same shape."""
        return torch.from_numpy(token_ids.astype(np.int64)).to(self.device)

    def node_rows(
        self, token_ids: torch.Tensor, positions: torch.Tensor, nodes: torch.Tensor
    ) -> torch.Tensor:
        """One sequence ``[T]`` through the model; what the head reads at ``nodes`` ``[K]``."""
        inputs = {"input_ids": token_ids[None], "position_ids": positions[None], "use_cache": False}
        if self.head.reads_hidden:
            return self.model.base_model(**inputs).last_hidden_state[0, nodes]  # type: ignore[no-any-return]
        if self._keeps_logits:
            return self.model(**inputs, logits_to_keep=nodes).logits[0]  # type: ignore[no-any-return]
        return self.model(**inputs).logits[0, nodes]  # type: ignore[no-any-return]

    def fill_cache(self, inputs: dict[str, torch.Tensor], cache: Any) -> None:
        """Sequences ``[B, W]`` through the model for their keys and values alone."""
        self.model.base_model(**inputs, **{self._cache_argument: cache}, use_cache=True)

    def cached_rows(
        self, inputs: dict[str, torch.Tensor], cache: Any, at: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """Sequences ``[B, W]`` after a cache, which grows; what the head reads at ``at``."""
        arguments = {**inputs, self._cache_argument: cache, "use_cache": True}
        if self.head.reads_hidden:
            return self.model.base_model(**arguments).last_hidden_state[at]  # type: ignore[no-any-return]
        return self.model(**arguments).logits[at]  # type: ignore[no-any-return]
