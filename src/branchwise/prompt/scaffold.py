"""The model's own frame around a prompt, taken from its chat template.

The template is rendered once with two marks in place of the contents; what stands around them is
the scaffold. Contents are never rendered by the template, so nothing in them is parsed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from branchwise.backends.tokenizer import Tokenizer
from branchwise.errors import PromptError
from branchwise.prompt.pieces import Piece, Special

SYSTEM_MARK = "BRANCHWISESYSTEM"
USER_MARK = "BRANCHWISEUSER"


@dataclass(frozen=True, slots=True)
class Scaffold:
    """Pieces before the system text, between it and the user text, and after the user text."""

    before_system: tuple[Piece, ...]
    before_user: tuple[Piece, ...]
    after_user: tuple[Piece, ...]


def scaffold_for(tokenizer: Tokenizer) -> Scaffold:
    """The scaffold of the tokenizer's chat template; blank lines for a model that has none.

    A template that refuses a system role, or drops it, gets the system text at the head of the
    user turn. Raises :class:`PromptError` when the template can't carry a user text either.
    """
    both = _rendered(tokenizer, [("system", SYSTEM_MARK), ("user", USER_MARK)])
    if both is None:
        bos = _bos_piece(tokenizer)
        return Scaffold(bos, ("\n\n",), ("\n",))
    if both.count(SYSTEM_MARK) != 1 or both.count(USER_MARK) != 1:
        folded = f"{SYSTEM_MARK}\n\n{USER_MARK}"
        both = _rendered(tokenizer, [("user", folded)]) or ""
    head, system_found, rest = both.partition(SYSTEM_MARK)
    middle, user_found, tail = rest.partition(USER_MARK)
    if not (system_found and user_found):
        raise PromptError(
            "the chat template does not print the user's text; give the model a working template"
        )
    return Scaffold(*(split_markers(text, tokenizer) for text in (head, middle, tail)))


def split_markers(text: str, tokenizer: Tokenizer) -> tuple[Piece, ...]:
    """``text`` of the template itself, cut into the tokenizer's markers and what is between them."""
    markers = sorted(tokenizer.special_tokens, key=len, reverse=True)
    if not markers:
        return (text,) if text else ()
    pattern = "(" + "|".join(map(re.escape, markers)) + ")"
    parts = [part for part in re.split(pattern, text) if part]
    return tuple(Special(part) if part in tokenizer.special_tokens else part for part in parts)


def _rendered(tokenizer: Tokenizer, messages: list[tuple[str, str]]) -> str | None:
    """The rendered template, an empty text if it refuses these roles, None without a template."""
    try:
        return tokenizer.render_chat([{"role": role, "content": text} for role, text in messages])
    except PromptError:
        if len(messages) == 1:
            raise
        return ""


def _bos_piece(tokenizer: Tokenizer) -> tuple[Piece, ...]:
    if tokenizer.bos_id is None:
        return ()
    for token, token_id in tokenizer.special_tokens.items():
        if token_id == tokenizer.bos_id:
            return (Special(token),)
    raise PromptError(f"the tokenizer starts texts with id {tokenizer.bos_id}, which is no special token")
