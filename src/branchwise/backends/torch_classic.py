"""The classic strategy: a prefill per context, then one pass over all rows of all contexts.

The rows' caches are merged once: prompts padded on the left to one length, rows on the right, one
copy of a prompt's keys and values per row. A slot's own tensors are never written to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional
from transformers.cache_utils import DynamicCache

from branchwise.backends.base import CacheSlot, NodeScores, RowBatch
from branchwise.backends.torch_head import Answers
from branchwise.backends.torch_kv import LayerKV, Meter
from branchwise.backends.torch_model import LoadedModel


@dataclass(eq=False)
class TorchSlot:
    """Keys and values of one context's prompt. Freed when it is garbage."""

    layers: tuple[LayerKV, ...]
    length: int
    nbytes: int
    owner: object


def prefill(loaded: LoadedModel, token_ids: Sequence[int], meter: Meter) -> TorchSlot:
    """One forward of width 1, without the head."""
    cache = DynamicCache()
    ids = loaded.ids(np.asarray(token_ids, dtype=np.int32))[None]
    positions = torch.arange(ids.shape[1], device=loaded.device)[None]
    loaded.fill_cache({"input_ids": ids, "position_ids": positions}, cache)
    layers = tuple(LayerKV(layer.keys[0], layer.values[0]) for layer in cache.layers)
    nbytes = sum(kv.nbytes for kv in layers)
    slot = TorchSlot(layers, ids.shape[1], nbytes, loaded.model)
    meter.follow(slot, nbytes)
    return slot


def score_rows(
    loaded: LoadedModel, rows: RowBatch, cache_slots: Sequence[CacheSlot], meter: Meter
) -> NodeScores:
    """One forward over all rows; row i continues the prompt of ``cache_slots[i]``."""
    slots = [_checked(slot, loaded) for slot in cache_slots]
    if len(slots) != len(rows.token_ids):
        raise ValueError(f"{len(rows.token_ids)} rows have {len(slots)} cache slots")
    answers = Answers.of(rows)
    meter.restart()
    if not slots:
        return NodeScores(answers.logits, answers.log_normalizer, 0, None, meter.peak)
    lengths = np.array([len(ids) for ids in rows.token_ids])
    if not lengths.all():
        raise ValueError("a row has no tokens")
    inputs, tokens = _inputs(loaded, rows, slots)
    cache, nbytes = _merge(slots)
    with meter.holding(nbytes):
        last = torch.from_numpy(lengths - 1).to(loaded.device)
        found = loaded.cached_rows(inputs, cache, (torch.arange(len(slots), device=loaded.device), last))
        del cache
    loaded.head.score(found, np.arange(len(slots)), answers, meter)
    return NodeScores(answers.logits, answers.log_normalizer, tokens, None, meter.peak)


def _checked(slot: CacheSlot, loaded: LoadedModel) -> TorchSlot:
    if not isinstance(slot, TorchSlot):
        raise TypeError(f"a cache slot is a {type(slot).__name__}, of another backend")
    if slot.owner is not loaded.model:
        raise ValueError("a cache slot was computed by another model")
    return slot


def _inputs(
    loaded: LoadedModel, rows: RowBatch, slots: Sequence[TorchSlot]
) -> tuple[dict[str, torch.Tensor], int]:
    """Ids, positions and mask ``[B, longest prompt + W]``, and the number of token positions B × W."""
    width = max(map(len, rows.token_ids))
    longest = max(slot.length for slot in slots)
    ids = np.zeros((len(slots), width), dtype=np.int32)
    seen = np.zeros((len(slots), longest + width), dtype=np.int32)
    for i, (row, slot) in enumerate(zip(rows.token_ids, slots, strict=True)):
        ids[i, : len(row)] = row
        seen[i, longest - slot.length : longest + len(row)] = 1
    starts = np.array([slot.length for slot in slots])
    positions = (starts[:, None] + np.arange(width)).astype(np.int32)
    inputs = {
        "input_ids": loaded.ids(ids),
        "position_ids": loaded.ids(positions),
        "attention_mask": loaded.ids(seen),
    }
    return inputs, ids.size


def _merge(slots: Sequence[TorchSlot]) -> tuple[DynamicCache, int]:
    """One cache for all rows, and its bytes."""
    unique = list(dict.fromkeys(slots))
    place = {slot: i for i, slot in enumerate(unique)}
    longest = max(slot.length for slot in unique)
    cache = DynamicCache()
    for layer in range(len(unique[0].layers)):
        kvs = [(slot.layers[layer], longest - slot.length) for slot in unique]
        keys = torch.stack([functional.pad(kv.keys, (0, 0, missing, 0)) for kv, missing in kvs])
        values = torch.stack([functional.pad(kv.values, (0, 0, missing, 0)) for kv, missing in kvs])
        cache.update(keys, values, layer)
    rows = torch.tensor([place[slot] for slot in slots], device=keys.device)
    cache.batch_select_indices(rows)
    return cache, sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
