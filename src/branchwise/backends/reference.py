"""The oracle: Llama-like models in NumPy, float64, with a dense T × T mask. Tiny, slow, obvious.

It computes the published formulas (Touvron et al. 2023, arXiv 2302.13971; grouped heads: Ainslie et
al. 2023, arXiv 2305.13245; rotary positions: Su et al. 2021, arXiv 2104.09864), and shares no mask,
packing or trie code with what it judges. Rotation angles are float64 too; runtimes that round them
to float32 are off by up to 1e-7 of the position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from branchwise.backends.base import (
    CacheSlot,
    Capabilities,
    Float64Array,
    Int32Array,
    ModelIdentity,
    NodeScores,
    PackedBatch,
    PrefixHandle,
    RowBatch,
    Segment,
)
from branchwise.backends.reference_weights import LayerWeights, Linear, LlamaModel, load_llama
from branchwise.backends.tokenizer import Tokenizer
from branchwise.errors import BackendMemoryError

BoolArray: TypeAlias = npt.NDArray[np.bool_]

TOKEN_BUDGET = 2048
MEMORY_BUDGET = 4 << 30  # the machine is not asked
FLOAT_BYTES = 8


@dataclass(frozen=True, eq=False)
class LayerCache:
    """Rotated ``keys`` and ``values`` of one layer, float64 ``[n, key heads, head size]``."""

    keys: Float64Array
    values: Float64Array

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes


@dataclass(frozen=True, eq=False)
class ReferenceCache:
    """Keys and values of the path from the root: a prefix handle, and a cache slot."""

    layers: tuple[LayerCache, ...]
    length: int
    owner: LlamaModel

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)


@dataclass(frozen=True)
class Run:
    """What one forward left.

    ``hidden``: float64 ``[T, D]``, after the last norm. ``layers``: keys and values of its own tokens.
    ``copied``: most bytes of keys and values that were joined with those before, for one layer.
    """

    hidden: Float64Array
    layers: tuple[LayerCache, ...]
    copied: int

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)


class ReferenceBackend:
    """Backend and classic backend over one model."""

    def __init__(self, model: LlamaModel, tokenizer: Tokenizer, *, name: str, revision: str) -> None:
        shape = model.shape
        self.tokenizer = tokenizer
        self._model = model
        self.identity = ModelIdentity(
            name=name,
            revision=revision,
            backend="reference",
            device="cpu",
            dtype="float64",
            parameters=model.parameters,
        )
        first = forward(model, np.zeros(1, np.int32), np.zeros(1, np.int32), np.ones((1, 1), np.bool_), None)
        # Activations of the widest step, and a row of the mask, the scores and their softmax.
        activations = FLOAT_BYTES * (4 * shape.hidden_size + 3 * shape.intermediate_size)
        self.capabilities = Capabilities(
            packed=True,
            classic=True,
            max_positions=shape.max_positions,
            kv_bytes_per_token=first.nbytes,
            pass_bytes_per_token=activations + (1 + 3 * FLOAT_BYTES) * TOKEN_BUDGET,
            memory_budget=MEMORY_BUDGET,
            token_budget=TOKEN_BUDGET,
        )

    @classmethod
    def load(cls, folder: Path, *, name: str, revision: str, tokenizer: Tokenizer) -> ReferenceBackend:
        """The model in ``folder`` (``config.json`` and safetensors), widened to float64.

        Raises :class:`~branchwise.errors.UnsupportedModelError` for all but plain Llama, Qwen2 and
        Mistral, and :class:`~branchwise.errors.ModelError` for weights that are not all there.
        """
        with _memory_errors("loading the model"):
            return cls(load_llama(folder), tokenizer, name=name, revision=revision)

    def score_packed(self, batch: PackedBatch) -> NodeScores:
        """One forward over the whole forest."""
        tokens = len(batch.token_ids)
        with _memory_errors(f"running {tokens} tokens"):
            prefix = None if batch.prefix is None else self._checked(batch.prefix)
            above = 0 if prefix is None else prefix.length
            visible = np.concatenate([np.ones((tokens, above), np.bool_), ancestors(batch)], axis=1)
            run = forward(self._model, batch.token_ids, batch.positions, visible, prefix)
            kept = None if batch.keep is None else self._keep(batch.segments[batch.keep], run, prefix)
            logits, normalizer = self._answer([run.hidden[node] for node in batch.nodes], batch)
        later = (kept.nbytes if kept else 0) + self._logits_bytes(len(batch.nodes))
        held = run.nbytes + (prefix.nbytes if prefix else 0)
        return NodeScores(logits, normalizer, tokens, kept, held + max(run.copied, later))

    def prefill(self, token_ids: Sequence[int]) -> CacheSlot:
        """Keys and values of one prompt."""
        with _memory_errors(f"prefilling {len(token_ids)} tokens"):
            run = self._run_linear(token_ids, None)
            return ReferenceCache(run.layers, len(token_ids), self._model)

    def score_rows(self, rows: RowBatch, cache_slots: Sequence[CacheSlot]) -> NodeScores:
        """Row by row, each alone behind its slot; nothing is padded."""
        found, largest = [], 0
        with _memory_errors(f"running {len(rows.token_ids)} rows"):
            slots = [self._checked(slot) for slot in cache_slots]
            for token_ids, slot in zip(rows.token_ids, slots, strict=True):
                run = self._run_linear(token_ids, slot)
                found.append(run.hidden[-1])
                largest = max(largest, run.nbytes + run.copied)
            logits, normalizer = self._answer(found, rows)
        peak = sum(slot.nbytes for slot in set(slots)) + largest + self._logits_bytes(len(found))
        return NodeScores(logits, normalizer, sum(map(len, rows.token_ids)), None, peak)

    def _run_linear(self, token_ids: Sequence[int], before: ReferenceCache | None) -> Run:
        """One path of tokens behind ``before``."""
        if not token_ids:
            raise ValueError("a prompt or row has no tokens")
        length, above = len(token_ids), before.length if before else 0
        positions = np.arange(above, above + length, dtype=np.int32)
        visible = np.arange(above + length) <= positions[:, None]
        return forward(self._model, np.asarray(token_ids, np.int32), positions, visible, before)

    def _keep(self, segment: Segment, run: Run, prefix: ReferenceCache | None) -> ReferenceCache:
        """The path from the root through a top segment, copied out of the pass."""
        if segment.parent is not None:
            raise ValueError(f"a segment below segment {segment.parent} can't be kept: it is not at the top")
        span = slice(segment.start, segment.stop)
        layers = tuple(LayerCache(layer.keys[span].copy(), layer.values[span].copy()) for layer in run.layers)
        length = segment.stop - segment.start
        if prefix is None:
            return ReferenceCache(layers, length, self._model)
        return ReferenceCache(tuple(map(_joined, prefix.layers, layers)), prefix.length + length, self._model)

    def _answer(
        self, hidden: Sequence[Float64Array], asked: PackedBatch | RowBatch
    ) -> tuple[Float64Array, Float64Array | None]:
        """Logits ``[A]`` of the allowed ids and the log-sum-exp ``[K]``, one node at a time."""
        logits = np.empty(len(asked.allowed_ids))
        normalizer = np.empty(len(hidden))
        for k, state in enumerate(hidden):
            span = slice(asked.allowed_offsets[k], asked.allowed_offsets[k + 1])
            all_logits = self._model.head @ state
            logits[span] = all_logits[asked.allowed_ids[span]]
            normalizer[k] = log_sum_exp(all_logits)
        return logits, normalizer if asked.want_normalizer else None

    def _logits_bytes(self, nodes: int) -> int:
        return FLOAT_BYTES * len(self._model.head) if nodes else 0

    def _checked(self, cache: PrefixHandle | CacheSlot) -> ReferenceCache:
        if not isinstance(cache, ReferenceCache):
            raise TypeError(f"a prefix or cache slot is a {type(cache).__name__}, of another backend")
        if cache.owner is not self._model:
            raise ValueError("a prefix or cache slot was computed by another model")
        return cache


def ancestors(batch: PackedBatch) -> BoolArray:
    """bool ``[T, T]``: whether row t may see column s. A token sees what its parent sees, and itself."""
    visible = np.zeros((len(batch.token_ids), len(batch.token_ids)), np.bool_)
    for segment in batch.segments:
        parent = None if segment.parent is None else batch.segments[segment.parent].stop - 1
        for token in range(segment.start, segment.stop):
            if parent is not None:
                visible[token] = visible[parent]
            visible[token, token] = True
            parent = token
    return visible


def forward(
    model: LlamaModel,
    token_ids: Int32Array,
    positions: Int32Array,
    visible: BoolArray,
    before: ReferenceCache | None,
) -> Run:
    """All layers over T tokens behind the P tokens of ``before``; ``visible`` bool ``[T, P + T]``."""
    shape = model.shape
    hidden = model.embedding[token_ids]
    angles = positions[:, None] * model.frequencies
    made, copied = [], 0
    for i, layer in enumerate(model.layers):
        normed = rms_norm(hidden, layer.input_norm, shape.norm_epsilon)
        queries = rotated(split_heads(project(normed, layer.query), shape.head_size), angles)
        keys = rotated(split_heads(project(normed, layer.key), shape.head_size), angles)
        values = split_heads(project(normed, layer.value), shape.head_size)
        made.append(LayerCache(keys, values))
        cache = made[-1]
        if before is not None:
            cache = _joined(before.layers[i], cache)
            copied = max(copied, cache.nbytes)
        hidden = hidden + project(attention(queries, cache, visible), layer.output)
        normed = rms_norm(hidden, layer.mlp_norm, shape.norm_epsilon)
        hidden = hidden + feed_forward(normed, layer)
    return Run(rms_norm(hidden, model.final_norm, shape.norm_epsilon), tuple(made), copied)


def rms_norm(x: Float64Array, weight: Float64Array, epsilon: float) -> Float64Array:
    """x / root mean square of x, times ``weight`` (Zhang & Sennrich 2019, arXiv 1910.07467)."""
    scaled: Float64Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight
    return scaled


def project(x: Float64Array, linear: Linear) -> Float64Array:
    product: Float64Array = x @ linear.weight.T
    return product if linear.bias is None else product + linear.bias


def split_heads(x: Float64Array, head_size: int) -> Float64Array:
    """``[T, heads * head size]`` to ``[T, heads, head size]``."""
    return x.reshape(len(x), -1, head_size)


def rotated(x: Float64Array, angles: Float64Array) -> Float64Array:
    """Turn element i of each head with element i + D/2 by ``angles[t, i]``; x is ``[T, heads, D]``."""
    cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def attention(queries: Float64Array, cache: LayerCache, visible: BoolArray) -> Float64Array:
    """Softmax of q·k / √D over the visible tokens, head by head; gives ``[T, query heads * D]``.

    Consecutive query heads share a key head.
    """
    heads, head_size = queries.shape[1:]
    shared_by = heads // cache.keys.shape[1]
    found = np.empty_like(queries)
    for head in range(heads):
        keys, values = cache.keys[:, head // shared_by], cache.values[:, head // shared_by]
        scores = np.where(visible, queries[:, head] @ keys.T / np.sqrt(head_size), -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        found[:, head] = weights / weights.sum(axis=1, keepdims=True) @ values
    return found.reshape(len(queries), -1)


def feed_forward(x: Float64Array, layer: LayerWeights) -> Float64Array:
    """down(silu(gate(x)) * up(x)) (Shazeer 2020, arXiv 2002.05202)."""
    gate = project(x, layer.gate)
    with np.errstate(over="ignore"):  # exp(-x) of a very negative x: silu is then 0
        gate = gate / (1 + np.exp(-gate))
    return project(gate * project(x, layer.up), layer.down)


def log_sum_exp(x: Float64Array) -> float:
    largest = x.max()
    return float(largest + np.log(np.exp(x - largest).sum()))


def _joined(first: LayerCache, second: LayerCache) -> LayerCache:
    keys = np.concatenate([first.keys, second.keys])
    return LayerCache(keys, np.concatenate([first.values, second.values]))


@contextmanager
def _memory_errors(doing: str) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise BackendMemoryError(f"out of memory while {doing}: {error}") from error
