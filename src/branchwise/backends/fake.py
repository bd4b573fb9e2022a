"""A deterministic model in NumPy, for tests of everything above the runtimes.

Its numbers depend on every ancestor token of a node, and on every position: the state after a
token is a hash of the state before it, the token and its position, and a logit is a hash of the
state and the token id. Mixing up contexts, rows, groups or positions changes answers.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from branchwise.backends.base import (
    CacheSlot,
    Capabilities,
    Float64Array,
    ModelIdentity,
    NodeScores,
    PackedBatch,
    RowBatch,
)
from branchwise.errors import BackendMemoryError

_MARKERS = ("<|start|>", "<|end|>")
_BYTES = 256
_ROOT_STATE = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mix(value: int) -> int:
    """The finalizer of SplitMix64 (Steele, Lea & Flood 2014): 64 bits in, 64 bits out."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def next_state(state: int, token: int, position: int) -> int:
    """The state after ``token`` at ``position``, from the state before it."""
    return mix(mix(state ^ token) ^ (position << 20))


def logits_of(state: int, vocab_size: int) -> Float64Array:
    """float64 ``[V]`` in [-4, 4): the hash of state and id, scaled."""
    with np.errstate(over="ignore"):
        value = np.uint64(state) ^ (np.arange(vocab_size, dtype=np.uint64) * np.uint64(0xD1342543DE82EF95))
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        value ^= value >> np.uint64(31)
    return value.astype(np.float64) / 2.0**61 - 4.0


class ByteTokenizer:
    """UTF-8 bytes as ids 0 to 255, and two markers. Byte tokens compose, so any cut is allowed."""

    fingerprint = "bytes-1"
    vocab_size = _BYTES + len(_MARKERS)
    bos_id = None
    special_tokens: Mapping[str, int] = {marker: _BYTES + i for i, marker in enumerate(_MARKERS)}

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        parts = [bytes([i]) if i < _BYTES else _MARKERS[i - _BYTES].encode() for i in ids]
        return b"".join(parts).decode(errors="replace")

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str | None:
        turns = [f"<|start|>{message['role']}\n{message['content']}<|end|>\n" for message in messages]
        return "".join(turns) + "<|start|>assistant\n"


@dataclass(frozen=True, eq=False)
class FakeCache:
    """The state after a path; stands for keys and values of ``length`` tokens."""

    state: int
    length: int
    nbytes: int


@dataclass
class FakeBackend:
    """Backend and classic backend in one. One token's keys and values count as one byte.

    ``fails_above``: a pass that computes more tokens than this runs out of memory. ``alive``:
    bytes held now; ``most_alive``: the most that were ever held at once. ``largest_pass``: most
    tokens of a pass that ran. ``batches``: the passes that ran, in order.
    """

    max_positions: int = 1 << 20
    token_budget: int = 4096
    fails_above: int | None = None
    tokenizer: ByteTokenizer = field(default_factory=ByteTokenizer)
    alive: int = 0
    most_alive: int = 0
    prefills: int = 0
    largest_pass: int = 0
    batches: list[PackedBatch | RowBatch] = field(default_factory=list)

    @property
    def identity(self) -> ModelIdentity:
        return ModelIdentity("fake", "1", "fake", "cpu", "float64", 0)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            packed=True,
            classic=True,
            max_positions=self.max_positions,
            kv_bytes_per_token=1,
            pass_bytes_per_token=0,
            memory_budget=1 << 40,
            token_budget=self.token_budget,
        )

    def score_packed(self, batch: PackedBatch) -> NodeScores:
        tokens = len(batch.token_ids)
        self._check_memory(tokens)
        self.batches.append(batch)
        top = batch.prefix.state if isinstance(batch.prefix, FakeCache) else _ROOT_STATE
        states = [0] * tokens
        for segment in batch.segments:
            state = top if segment.parent is None else states[batch.segments[segment.parent].stop - 1]
            for i in range(segment.start, segment.stop):
                state = states[i] = next_state(state, int(batch.token_ids[i]), int(batch.positions[i]))
        kept = None
        if batch.keep is not None:
            segment = batch.segments[batch.keep]
            kept = self._hold(states[segment.stop - 1], segment.stop - segment.start)
        with self._holding(tokens):
            peak = self.alive
        found = [states[node] for node in batch.nodes]
        return self._answer(found, batch, tokens, kept, peak)

    def prefill(self, token_ids: Sequence[int]) -> CacheSlot:
        self._check_memory(len(token_ids))
        self.prefills += 1
        return self._hold(_walk(_ROOT_STATE, token_ids, 0), len(token_ids))

    def score_rows(self, rows: RowBatch, cache_slots: Sequence[CacheSlot]) -> NodeScores:
        width = max(map(len, rows.token_ids), default=0)
        tokens = width * len(rows.token_ids)
        self._check_memory(tokens)
        self.batches.append(rows)
        found = []
        for ids, slot in zip(rows.token_ids, cache_slots, strict=True):
            if not isinstance(slot, FakeCache):
                raise TypeError(f"not a slot of this backend: {slot!r}")
            found.append(_walk(slot.state, ids, slot.length))
        with self._holding(tokens):
            peak = self.alive
        return self._answer(found, rows, tokens, None, peak)

    def _answer(
        self,
        states: list[int],
        asked: PackedBatch | RowBatch,
        tokens: int,
        kept: FakeCache | None,
        peak: int,
    ) -> NodeScores:
        logits = [logits_of(state, self.tokenizer.vocab_size) for state in states]
        offsets = asked.allowed_offsets
        wanted = [row[asked.allowed_ids[offsets[k] : offsets[k + 1]]] for k, row in enumerate(logits)]
        normalizer: npt.NDArray[np.float64] | None = None
        if asked.want_normalizer:
            normalizer = np.array([np.log(np.exp(row).sum()) for row in logits])
        return NodeScores(np.concatenate([*wanted, np.empty(0)]), normalizer, tokens, kept, peak)

    def _check_memory(self, tokens: int) -> None:
        if self.fails_above is not None and tokens > self.fails_above:
            raise BackendMemoryError(f"{tokens} tokens do not fit in {self.fails_above}")
        self.largest_pass = max(self.largest_pass, tokens)

    def _hold(self, state: int, length: int) -> FakeCache:
        cache = FakeCache(state, length, length)
        self._count(length)
        weakref.finalize(cache, self._count, -length)
        return cache

    def _holding(self, nbytes: int) -> _Holding:
        return _Holding(self, nbytes)

    def _count(self, nbytes: int) -> None:
        self.alive += nbytes
        self.most_alive = max(self.most_alive, self.alive)


@dataclass
class _Holding:
    """Counts bytes as held while a pass runs."""

    backend: FakeBackend
    nbytes: int

    def __enter__(self) -> None:
        self.backend._count(self.nbytes)

    def __exit__(self, *_: object) -> None:
        self.backend._count(-self.nbytes)


def _walk(state: int, token_ids: Sequence[int], position: int) -> int:
    for offset, token in enumerate(token_ids):
        state = next_state(state, int(token), position + offset)
    return state
