"""Prompt pieces as token ids, with the check that segments may be cut where they are cut.

A byte-pair tokenizer does not compose: the tokens of "a" and of "b" need not be those of "ab".
A segment therefore ends in a marker of the model or in a line break, and the compiler checks on
the very texts of the prompt that the tokenizer does not merge across it.
"""

from __future__ import annotations

from collections.abc import Sequence

from branchwise.backends.tokenizer import Tokenizer
from branchwise.errors import PromptError
from branchwise.prompt import Piece, Special


def encode_pieces(pieces: Sequence[Piece], tokenizer: Tokenizer) -> list[int]:
    """Markers by their id, texts as plain text."""
    ids: list[int] = []
    for piece in pieces:
        if isinstance(piece, Special):
            ids.append(tokenizer.special_tokens[piece.token])
        else:
            ids += tokenizer.encode(piece)
    return ids


def check_cut(before: str, after: str, tokenizer: Tokenizer) -> None:
    """Raise :class:`PromptError` if the tokenizer merges ``before`` and ``after`` across their border."""
    separate = tokenizer.encode(before) + tokenizer.encode(after)
    if tokenizer.encode(before + after) != separate:
        raise PromptError(
            f"the tokenizer merges {before[-12:]!r} and {after[:12]!r} across a segment border; "
            "this model's chat template or tokenizer can't be used"
        )


def last_text(pieces: Sequence[Piece]) -> str | None:
    """The text that a sequence of pieces ends in; None if it ends in a marker or is empty."""
    return pieces[-1] if pieces and isinstance(pieces[-1], str) else None


def first_text(pieces: Sequence[Piece]) -> str | None:
    """The text that a sequence of pieces starts with; None if it starts with a marker or is empty."""
    return pieces[0] if pieces and isinstance(pieces[0], str) else None
