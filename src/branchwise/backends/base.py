"""The contract between the engine and a runtime: arrays in, arrays out.

Axes, everywhere in Branchwise: T packed tokens, S segments, K scored nodes, A allowed ids (of
all nodes together), N contexts, R rows, V vocabulary. Logarithms are natural.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from branchwise.backends.tokenizer import Tokenizer

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]


class PrefixHandle(Protocol):
    """A root path whose keys and values a backend keeps. Freed when it is garbage."""

    @property
    def length(self) -> int: ...  # tokens

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens ``[start, stop)`` below ``parent`` (a segment's index; None at the top)."""

    start: int
    stop: int
    parent: int | None


@dataclass(frozen=True)
class PackedBatch:
    """A forest of token paths, flat. A token attends to itself, its segment and its ancestors.

    ``token_ids``, ``positions``: int32 ``[T]``; the position is the depth from the root, the
    tokens of ``prefix`` counted. ``segments``: depth-first, parents first, without gaps. All top
    segments hang below ``prefix`` if there is one. ``nodes``: int64 ``[K]``, indices into T whose
    next-token distribution is wanted. ``allowed_ids``: int32 ``[A]``, ``allowed_offsets``: int64
    ``[K + 1]``; node k asks for ``allowed_ids[allowed_offsets[k]:allowed_offsets[k + 1]]``.
    ``keep``: a top segment that makes a prefix for later passes, or None. ``want_normalizer``:
    whether the log-sum-exp over the vocabulary is wanted.
    """

    token_ids: Int32Array
    positions: Int32Array
    segments: tuple[Segment, ...]
    nodes: Int64Array
    allowed_ids: Int32Array
    allowed_offsets: Int64Array
    prefix: PrefixHandle | None = None
    keep: int | None = None
    want_normalizer: bool = True


@dataclass(frozen=True)
class NodeScores:
    """What a pass found.

    ``logits``: float64 ``[A]``, of the allowed ids, after the model's own scaling and capping.
    ``log_normalizer``: float64 ``[K]``, log-sum-exp of all V logits at each node, or None when it
    was not wanted. ``tokens_computed``: token positions that were run through the model, padding
    included. ``kept``: the handle of ``PackedBatch.keep``. ``peak_bytes``: most bytes of keys,
    values and logits held at once, as counted by the backend.
    """

    logits: Float64Array
    log_normalizer: Float64Array | None
    tokens_computed: int
    kept: PrefixHandle | None
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do and what it costs, checked once when a Decider is made.

    ``max_positions``: longest path in tokens. ``kv_bytes_per_token``: measured bytes of keys and
    values of one token. ``pass_bytes_per_token``: measured peak bytes of everything else that
    grows with the tokens of a pass. ``token_budget``: tokens a pass on this device does well
    with. ``packed``, ``classic``: the strategies that can be run.
    """

    packed: bool
    classic: bool
    max_positions: int
    kv_bytes_per_token: int
    pass_bytes_per_token: int
    memory_budget: int
    token_budget: int


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Which weights answered: recorded in every result."""

    name: str
    revision: str
    backend: str
    device: str
    dtype: str
    parameters: int


@runtime_checkable
class Backend(Protocol):
    """A runtime that scores a packed forest."""

    @property
    def identity(self) -> ModelIdentity: ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def score_packed(self, batch: PackedBatch) -> NodeScores:
        """Run the forest once. Raises BackendMemoryError when it does not fit."""
        ...


class CacheSlot(Protocol):
    """Keys and values of one context's prompt, as the classic strategy holds them."""

    @property
    def length(self) -> int: ...  # tokens

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True)
class RowBatch:
    """Rows for the classic strategy: row i continues the prompt in ``cache_slots[i]``.

    ``token_ids``: the rows' ids, of different lengths; the last token of a row is its node.
    ``allowed_ids`` and ``allowed_offsets`` as in :class:`PackedBatch`, one entry per row.
    """

    token_ids: tuple[tuple[int, ...], ...]
    allowed_ids: Int32Array
    allowed_offsets: Int64Array
    want_normalizer: bool = True


@runtime_checkable
class ClassicBackend(Protocol):
    """A runtime of the classic strategy: one prefill per context, one pass over all rows."""

    @property
    def identity(self) -> ModelIdentity: ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def prefill(self, token_ids: Sequence[int]) -> CacheSlot: ...

    def score_rows(self, rows: RowBatch, cache_slots: Sequence[CacheSlot]) -> NodeScores: ...
