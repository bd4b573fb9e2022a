"""Reads contexts in windows: checks, digests and tokenizes them, each distinct one once."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from branchwise.engine.job import Job
from branchwise.engine.planner import Item
from branchwise.errors import BranchwiseError, ContextError, ContextTooLongError
from branchwise.prompt import context_text
from branchwise.tree.rows import encode_contexts

READ_AT_ONCE = 64
"""Contexts that are read and tokenized together."""

WINDOW_GROUPS = 8
"""A window is read until its tokens fill about this many groups."""


@dataclass
class Window:
    """Contexts that were read and are not answered yet.

    ``places``: for each context in input order its key, or its error. ``items``: the distinct
    contexts among them that have to be computed.
    """

    places: list[bytes | BranchwiseError] = field(default_factory=list)
    items: dict[bytes, Item] = field(default_factory=dict)
    tokens: int = 0


def read_windows(job: Job, contexts: Iterable[object], is_known: Callable[[bytes], bool]) -> Iterator[Window]:
    """Windows over ``contexts``; a context for which ``is_known(key)`` holds makes no item."""
    numbered = enumerate(contexts)
    full = WINDOW_GROUPS * job.budget.tokens
    while True:
        window = Window()
        while window.tokens < full:
            chunk = list(islice(numbered, READ_AT_ONCE))
            _take(job, chunk, window, is_known)
            if len(chunk) < READ_AT_ONCE:
                break
        if not window.places:
            return
        yield window


def _take(
    job: Job, chunk: list[tuple[int, object]], window: Window, is_known: Callable[[bytes], bool]
) -> None:
    started = time.perf_counter()
    fresh: dict[bytes, tuple[int, str]] = {}
    for index, context in chunk:
        try:
            text = context_text(context, index)
        except ContextError as exc:
            window.places.append(exc)
            continue
        key = hashlib.sha256(text.encode()).digest()
        window.places.append(key)
        if key not in window.items and not is_known(key):
            fresh.setdefault(key, (index, text))
    encoded = encode_contexts([text for _, text in fresh.values()], job.tokenizer)
    seconds = (time.perf_counter() - started) / max(len(fresh), 1)
    for (key, (index, _)), token_ids in zip(fresh.items(), encoded, strict=True):
        window.items[key] = Item(index, key, token_ids, seconds)
        window.tokens += job.strategy.cost(job.compiled, window.items[key]).tokens


def too_long(job: Job, item: Item) -> ContextTooLongError | None:
    """The item's error if its longest path does not fit the model."""
    tokens = job.compiled.prompt_tokens(item.token_ids) + job.compiled.depth
    if tokens <= job.max_positions:
        return None
    return ContextTooLongError(item.index, tokens, job.max_positions, "the model's context window")
