"""What a layout hands to the tree compiler: markers and plain text, and the rows of a prompt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Special:
    """A marker of the model's own (``<|im_end|>``): one id, never parsed out of text."""

    token: str


Piece: TypeAlias = Special | str


@dataclass(frozen=True, slots=True)
class RowText:
    """One row of a prompt: the text before an answer, and every answer it may be followed by.

    ``question`` is the question's index, ``option`` the option's index for a row that asks about
    one option of a multi question. ``lead`` stands between the context and the answer text,
    ``stem + ending`` is one whole answer text, terminator included.
    """

    question: int
    option: int | None
    lead: tuple[Piece, ...]
    stem: str
    endings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """A schema's prompt: what stands before a context, right after it, and the rows below it."""

    prefix: tuple[Piece, ...]
    after_context: tuple[Piece, ...]
    rows: tuple[RowText, ...]


def joined(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """The same pieces with neighbouring texts joined, so that they are tokenized as one text."""
    result: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and result and isinstance(result[-1], str):
            result[-1] += piece
        elif piece != "":
            result.append(piece)
    return tuple(result)
