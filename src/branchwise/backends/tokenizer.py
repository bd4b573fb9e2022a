"""What the prompt and tree floors need of a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Text to ids. ``encode`` reads everything as plain text, spelled-out special tokens too."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def special_tokens(self) -> Mapping[str, int]: ...  # every added token that is not white space

    @property
    def bos_id(self) -> int | None: ...  # what the tokenizer itself puts in front of a text

    def encode(self, text: str) -> list[int]: ...

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str | None:
        """The template's text up to the generation marker, thinking off; None without a template.

        Raises :class:`~branchwise.errors.PromptError` when the template refuses the messages.
        """
        ...
