"""Neutral answer codes: short, one token each, so that no option's wording has a head start."""

from __future__ import annotations

import string
from collections.abc import Iterable

from branchwise.backends.tokenizer import Tokenizer
from branchwise.errors import ConfigError
from branchwise.prompt.layouts import TERMINATOR

STEM = "answer: "


def codes_for(count: int, tokenizer: Tokenizer) -> tuple[str, ...]:
    """The first ``count`` codes of one pool, every one a single token of its own.

    Pools: A to Z, then pairs of capitals, then pairs of any letters. Codes of one length can't
    be prefixes of one another. Raises :class:`ConfigError` when no pool has enough.
    """
    best = 0
    for pool in _pools():
        codes = single_token_codes(pool, tokenizer)
        if len(codes) >= count:
            return codes[:count]
        best = max(best, len(codes))
    raise ConfigError(
        f"answers='codes' needs {count} codes of one token, and this tokenizer has {best}; "
        "use answers='labels' or fewer options"
    )


def single_token_codes(pool: Iterable[str], tokenizer: Tokenizer) -> tuple[str, ...]:
    """Those codes of ``pool`` whose answer texts differ from one another in exactly one token."""
    codes = list(pool)
    texts = tokenizer.encode_many([STEM + code + TERMINATOR for code in codes])
    end = tokenizer.encode(TERMINATOR)
    by_stem: dict[tuple[int, ...], dict[int, str]] = {}
    for code, ids in zip(codes, texts, strict=True):
        body, tail = ids[: -len(end)], ids[-len(end) :]
        if body and tail == end:
            by_stem.setdefault(tuple(body[:-1]), {}).setdefault(body[-1], code)
    largest: dict[int, str] = max(by_stem.values(), key=len, default={})
    return tuple(largest.values())


def _pools() -> Iterable[list[str]]:
    capitals, letters = string.ascii_uppercase, string.ascii_letters
    yield list(capitals)
    yield [first + second for first in capitals for second in capitals]
    yield [first + second for first in letters for second in letters]
