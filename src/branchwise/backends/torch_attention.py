"""Our attention, at the extension point that transformers has for it.

A model that is loaded with ``attn_implementation="branchwise"`` calls :func:`attend` in every layer.
While a packed pass runs, a context variable holds that pass and its tokens attend to their
ancestors. At all other times the model attends as with "sdpa", so that the classic strategy and text
generation run on the same weights at full speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

from branchwise.backends.torch_kv import LayerKV, Meter, SegmentStore, TorchPrefix
from branchwise.backends.torch_masks import MaskBuilder
from branchwise.backends.torch_partial import (
    Bias,
    Form,
    Part,
    causal,
    causal_bias,
    merge,
    partial,
    with_sinks,
)
from branchwise.backends.torch_plan import Chunk, Source, Span, Task
from branchwise.errors import UnsupportedModelError

IMPLEMENTATION = "branchwise"

# What layers hand on to attention without a meaning for it.
_IGNORED = frozenset(
    {
        "cache_position",
        "dropout",
        "layer_idx",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)


@dataclass(frozen=True)
class LayerCall:
    """What a layer asked for besides queries, keys and values. ``kv_bytes``: of one token."""

    layer: int
    form: Form
    window: int | None
    sinks: torch.Tensor | None
    kv_bytes: int


@dataclass(frozen=True)
class ForestPass:
    """One chunk of a packed pass, as long as the model runs it.

    ``windows``: each layer's sliding window as the configuration declares it, or None while that is
    being found out. ``calls``: the layers that have attended, in order, with what they asked for.
    ``mask_windows``: the windows of the masks that the model would have built.
    """

    chunk: Chunk
    store: SegmentStore
    prefix: TorchPrefix | None
    masks: MaskBuilder
    meter: Meter
    windows: tuple[int | None, ...]
    calls: dict[int, LayerCall]
    mask_windows: set[int | None]

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: LayerCall
    ) -> torch.Tensor:
        """``query`` ``[1, H * G, T, D]``, ``key`` and ``value`` ``[1, H, T, D]`` → ``[1, T, H * G, D']``."""
        keys, values = key[0], value[0]
        tokens, heads, width = query.shape[2], keys.shape[0], values.shape[-1]
        queries = query[0].view(heads, -1, tokens, query.shape[-1])
        out = query.new_empty(1, tokens, query.shape[1], width)
        target = out.view(tokens, heads, -1, width).permute(1, 2, 0, 3)
        with self.meter.holding(key.nbytes + value.nbytes):
            self.store.write(self.chunk, call.layer, keys, values)
            here = LayerKV(keys, values)
            for task in self.chunk.tasks:
                rows = slice(task.start, task.stop)
                part = self._task(task, queries[:, :, rows], here, call)
                target[:, :, rows] = part[0] if call.sinks is None else with_sinks(part, call.sinks)
        return out

    def _task(self, task: Task, queries: torch.Tensor, here: LayerKV, call: LayerCall) -> Part:
        own = slice(task.start, task.stop)
        bias = self.masks.own(task, call.window)
        if bias is None:
            parts = [causal(queries, here.keys[:, own], here.values[:, own], call.form)]
        else:
            parts = [partial(queries, here.keys[:, own], here.values[:, own], call.form, bias)]
        for span, seen in self.masks.spans(task, call.window):
            kv = self._source(span, call.layer, here)
            part = slice(span.start, span.stop)
            parts.append(partial(queries, kv.keys[:, part], kv.values[:, part], call.form, seen))
        return merge(parts)

    def _source(self, span: Span, layer: int, here: LayerKV) -> LayerKV:
        if span.source is Source.CHUNK:
            return here
        if span.source is Source.STORED:
            return self.store.read(span.segment, layer)
        if self.prefix is None:
            raise AssertionError("a span reads the prefix of a pass that has none")
        return self.prefix.layers[layer]


_ACTIVE: ContextVar[ForestPass | None] = ContextVar("branchwise_forest_pass", default=None)


@contextmanager
def running(forest_pass: ForestPass) -> Iterator[None]:
    """Calls of the model inside attend within the forest."""
    token = _ACTIVE.set(forest_pass)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def register() -> None:
    """Make "branchwise" known to transformers. Doing it again changes nothing."""
    AttentionInterface.register(IMPLEMENTATION, attend)
    AttentionMaskInterface.register(IMPLEMENTATION, mask)


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function of a layer."""
    active = _ACTIVE.get()
    form = Form(query.shape[-1] ** -0.5 if scaling is None else float(scaling), kwargs.get("softcap"))
    if active is None and form.softcap is None and kwargs.get("s_aux") is None:
        plain = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        return plain  # type: ignore[no-any-return]
    if active is None:
        return _attend_densely(query, key, value, attention_mask, form, kwargs.get("s_aux")), None
    if attention_mask is not None:
        raise UnsupportedModelError(f"{type(module).__name__} attends under a mask of its own")
    kv_bytes = (key.nbytes + value.nbytes) // query.shape[2]
    call = _read_call(module, form, kv_bytes, kwargs)
    if call.layer in active.calls:
        raise UnsupportedModelError(f"layer {call.layer} attends more than once in a pass")
    active.calls[call.layer] = call
    if active.windows and active.windows[call.layer] != call.window:
        raise UnsupportedModelError(
            f"layer {call.layer} attends within a window of {call.window} tokens, where its "
            f"configuration declares {active.windows[call.layer]}"
        )
    return active.attend(query, key, value, call), None


def mask(*args: Any, local_size: int | None = None, **kwargs: Any) -> torch.Tensor | None:
    """The mask function: none while a packed pass runs (its structure is the mask), else sdpa's."""
    active = _ACTIVE.get()
    if active is None:
        return sdpa_mask(*args, local_size=local_size, **kwargs)  # type: ignore[no-any-return]
    active.mask_windows.add(local_size)
    return None


def _read_call(module: nn.Module, form: Form, kv_bytes: int, kwargs: Mapping[str, Any]) -> LayerCall:
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise UnsupportedModelError(f"{type(module).__name__} does not say which layer it is (layer_idx)")
    if kwargs.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise UnsupportedModelError(f"layer {layer} attends to later tokens (is_causal is False)")
    read = {"softcap", "sliding_window", "s_aux", "is_causal"}
    unknown = [
        name
        for name, given in kwargs.items()
        if given is not None and given is not False and name not in read | _IGNORED
    ]
    if unknown:
        raise UnsupportedModelError(f"layer {layer} attends with {', '.join(sorted(unknown))}, unknown here")
    window = kwargs.get("sliding_window", getattr(module, "sliding_window", None))
    return LayerCall(layer, form, window, kwargs.get("s_aux"), kv_bytes)


def _attend_densely(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    form: Form,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """What "sdpa" would do if it knew soft caps and sinks; ``attention_mask`` is bool ``[B, 1, n, m]``."""
    rows = []
    for item in range(query.shape[0]):
        queries = query[item].view(key.shape[1], -1, *query.shape[2:])
        if attention_mask is not None:
            seen = attention_mask[min(item, len(attention_mask) - 1), 0]
            values = torch.zeros_like(seen, dtype=torch.float32).masked_fill_(~seen, -torch.inf)
            part = partial(queries, key[item], value[item], form, Bias(values, None))
        elif query.shape[2] > 1:
            part = partial(queries, key[item], value[item], form, Bias(causal_bias(queries), None))
        else:
            part = partial(queries, key[item], value[item], form, None)
        out = part[0] if sinks is None else with_sinks(part, sinks)
        rows.append(out.flatten(0, 1).transpose(0, 1).to(query.dtype))
    return torch.stack(rows)
