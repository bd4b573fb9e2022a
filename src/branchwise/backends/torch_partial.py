"""Attention over a part of the keys, and the sum of parts.

A softmax over a union of key sets is the mean of the softmaxes over the sets, weighted by their
normalizers (Milakov & Gimelshein 2018; Dao et al. 2022, section 3.1). So the keys of a prefix, of a
context and of an answer trie are read where they lie and never copied together.

Shapes: queries ``[H, G, n, D]`` (H key heads, G query heads on each), keys ``[H, m, D]``, values
``[H, m, D']``, a bias ``[n, m]`` of 0 and -inf. A part is ``[H, G, n, D']`` and its log-normalizer
``[H, G, n]`` in float32, below ``BLIND`` where a query sees no key of the part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

KEY_TOKENS = 2048  # most keys whose scores are held at once by the dense form
CAUSAL_TOKENS = 256  # the fused kernel computes both halves of a causal square: longer runs are cut
BLIND = -1e30  # the log-normalizer of no keys: finite, so that two of them have a difference

Part = tuple[torch.Tensor, torch.Tensor]

_fused = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_FUSED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Form:
    """What a layer does to scores: ``scale`` them, then cap them softly at ``softcap``."""

    scale: float
    softcap: float | None


@dataclass(frozen=True)
class Bias:
    """Which keys a query sees: ``values`` ``[n, m]`` of 0 and -inf, ``blind`` ``[n]`` or None.

    ``blind``: queries that see no key of the part.
    """

    values: torch.Tensor
    blind: torch.Tensor | None


def partial(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, form: Form, bias: Bias | None
) -> Part:
    """Attention of all queries to all keys (m > 0) that the bias leaves."""
    if _has_fused(queries, values, form):
        out, lse = _call_fused(queries, keys, values, form, None if bias is None else bias.values)
        if bias is not None and bias.blind is not None:
            lse = lse.masked_fill(bias.blind, BLIND)  # the kernel says 0 where it has seen no key
        return out, lse
    parts = []
    for start in range(0, keys.shape[1], KEY_TOKENS):
        block = slice(start, start + KEY_TOKENS)
        seen = None if bias is None else bias.values[:, block]
        parts.append(_dense_partial(queries, keys[:, block], values[:, block], form, seen))
    return merge(parts)


def causal(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, form: Form) -> Part:
    """Attention of n queries to their own n keys, each to itself and those before it."""
    if not _has_fused(queries, values, form):
        return partial(queries, keys, values, form, Bias(causal_bias(queries), None))
    count = queries.shape[2]
    if count <= CAUSAL_TOKENS:
        return _call_fused(queries, keys, values, form, None, is_causal=True)
    half = count // 2
    first = causal(queries[:, :, :half], keys[:, :half], values[:, :half], form)
    late = queries[:, :, half:]
    second = merge(
        [
            causal(late, keys[:, half:], values[:, half:], form),
            partial(late, keys[:, :half], values[:, :half], form, None),
        ]
    )
    return torch.cat([first[0], second[0].to(first[0].dtype)], dim=2), torch.cat([first[1], second[1]], dim=2)


def causal_bias(queries: torch.Tensor) -> torch.Tensor:
    """``[n, n]`` in the dtype of the queries."""
    count = queries.shape[-2]
    return torch.full((count, count), -math.inf, dtype=queries.dtype, device=queries.device).triu(1)


def merge(parts: list[Part]) -> Part:
    """The attention over the union of the parts' keys, in float32 if there are several parts.

    The first part must see at least one key at every query, or be the only one.
    """
    out, lse = parts[0]
    for other, other_lse in parts[1:]:
        out = torch.lerp(out.float(), other.float(), (other_lse - lse).sigmoid().unsqueeze(-1))
        lse = torch.logaddexp(lse, other_lse)
    return out, lse


def with_sinks(part: Part, sinks: torch.Tensor) -> torch.Tensor:
    """Attention with one more key per head, of score ``sinks`` ``[H * G]`` and value zero (gpt-oss)."""
    out, lse = part
    share = (lse - sinks.float().view(*lse.shape[:2], 1)).sigmoid()
    return out.float() * share.unsqueeze(-1)


def _has_fused(queries: torch.Tensor, values: torch.Tensor, form: Form) -> bool:
    return (
        _fused is not None
        and queries.device.type == "cpu"
        and queries.dtype in _FUSED_DTYPES
        and form.softcap is None
        and queries.shape[-1] == values.shape[-1]
    )


def _call_fused(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    form: Form,
    bias: torch.Tensor | None,
    *,
    is_causal: bool = False,
) -> Part:
    """The groups are the batch of the kernel: expanded keys cost nothing, copied queries would."""
    groups = queries.shape[1]
    out, lse = _fused(  # type: ignore[misc]
        queries.transpose(0, 1),
        keys.expand(groups, *keys.shape),
        values.expand(groups, *values.shape),
        is_causal=is_causal,
        attn_mask=None if bias is None else bias.to(queries.dtype),
        scale=form.scale,
    )
    return out.transpose(0, 1), lse.transpose(0, 1)


def _dense_partial(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    form: Form,
    bias: torch.Tensor | None,
) -> Part:
    heads, groups, count, _ = queries.shape
    flat = queries.reshape(heads, groups * count, -1).float()
    scores = torch.matmul(flat, keys.float().transpose(1, 2)).mul_(form.scale)
    if form.softcap is not None:
        scores = scores.div_(form.softcap).tanh_().mul_(form.softcap)
    scores = scores.view(heads, groups, count, -1)
    if bias is not None:
        scores += bias
    top = scores.amax(-1, keepdim=True).clamp_(min=BLIND)
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True).clamp_(min=torch.finfo(torch.float32).tiny)
    out = torch.matmul(weights.view(heads, groups * count, -1), values.float())
    out = out.view(heads, groups, count, -1) / total
    return out, (top + total.log()).squeeze(-1)
