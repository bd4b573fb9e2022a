"""The four kinds of question, and the schema that holds them.

Plain frozen values: no model, no tokenizer, no prompt text. A question's ``name`` is its dotted
path in the answered value (``"customer.tier"``); ``text`` is what the model is asked. Builders
from Pydantic, JSON Schema and our own JSON form live beside this file and all end here.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from branchwise.errors import SchemaError

MAX_OPTIONS = 255
MAX_LEVELS = 255

QuestionKind: TypeAlias = Literal["boolean", "choice", "multi", "score"]


@dataclass(frozen=True, slots=True)
class Option:
    """One allowed answer: the ``text`` the model reads and writes, and the ``value`` it stands for.

    Without a ``value`` it stands for its text.
    """

    text: str
    value: Any = None
    description: str | None = None

    def __post_init__(self) -> None:
        if self.value is None:
            object.__setattr__(self, "value", self.text)


@dataclass(frozen=True, slots=True)
class BooleanQuestion:
    """Yes or no. ``true_description`` and ``false_description`` say what each answer means."""

    name: str
    text: str
    nullable: bool = False
    true_description: str | None = None
    false_description: str | None = None
    kind: Literal["boolean"] = field(default="boolean", init=False)

    def __post_init__(self) -> None:
        _check_asked(self)

    @property
    def options(self) -> tuple[Option, ...]:
        """Yes first, then no."""
        return (
            Option("yes", True, self.true_description),
            Option("no", False, self.false_description),
        )


@dataclass(frozen=True, slots=True)
class ChoiceQuestion:
    """One of N options, 1 to 255. With one option the answer is certain and costs no tokens."""

    name: str
    text: str
    options: tuple[Option, ...]
    nullable: bool = False
    kind: Literal["choice"] = field(default="choice", init=False)

    def __post_init__(self) -> None:
        _check_asked(self)
        check_options(self.name, self.options, least=1, most=MAX_OPTIONS)


@dataclass(frozen=True, slots=True)
class MultiQuestion:
    """Any of N options, 1 to 255, each decided by a yes/no of its own."""

    name: str
    text: str
    options: tuple[Option, ...]
    nullable: bool = False
    kind: Literal["multi"] = field(default="multi", init=False)

    def __post_init__(self) -> None:
        _check_asked(self)
        check_options(self.name, self.options, least=1, most=MAX_OPTIONS)


@dataclass(frozen=True, slots=True)
class ScoreQuestion:
    """A level on an ordered scale, lowest first. Levels are numbered from 0."""

    name: str
    text: str
    options: tuple[Option, ...]
    nullable: bool = False
    kind: Literal["score"] = field(default="score", init=False)

    def __post_init__(self) -> None:
        _check_asked(self)
        check_options(self.name, self.options, least=1, most=MAX_LEVELS)


Question: TypeAlias = BooleanQuestion | ChoiceQuestion | MultiQuestion | ScoreQuestion


@dataclass(frozen=True)
class Schema:
    """Questions in order, and how the answered value is built from their answers.

    ``build`` takes ``{question name: answer}`` (bool, an option's value, a list of option values,
    a :class:`~branchwise.schema.score.Score`, or None) and returns what the caller gets as
    ``Decision.value``. It takes no part in equality: two schemas are equal when they ask the same.
    """

    questions: tuple[Question, ...]
    title: str = ""
    build: Callable[[Mapping[str, Any]], Any] = field(default=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for question in self.questions:
            if question.name in seen:
                raise SchemaError(question.name, "two questions have this name", "rename one of them")
            seen.add(question.name)

    @property
    def fingerprint(self) -> str:
        """First 16 hex digits of the SHA-256 of everything the model is asked."""
        asked = [
            [q.kind, q.name, q.text, q.nullable, [[o.text, o.description] for o in q.options]]
            for q in self.questions
        ]
        document = json.dumps([self.title, asked], ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(document.encode()).hexdigest()[:16]


def check_options(name: str, options: tuple[Option, ...], *, least: int, most: int) -> None:
    """Raise :class:`SchemaError` unless the options are few enough, fit a line and can be told apart.

    Options are told apart without regard to case, spaces and Unicode normal form.
    """
    if not least <= len(options) <= most:
        raise SchemaError(name, f"has {len(options)} options", f"give {least} to {most}")
    seen: dict[str, str] = {}
    for index, option in enumerate(options):
        folded = unicodedata.normalize("NFC", " ".join(option.text.split())).casefold()
        if not folded:
            raise SchemaError(name, f"option {index} ({option.text!r}) is empty", "give every option a text")
        if unprintable := _unprintable(option.text):
            raise SchemaError(
                name,
                f"option {index} ({option.text!r}) holds the line break or control character {unprintable!r}",
                "write it on one line",
            )
        if folded in seen:
            raise SchemaError(
                name,
                f"options {seen[folded]!r} and {option.text!r} differ at most in case or spaces",
                "rename one of them",
            )
        seen[folded] = option.text


def _unprintable(text: str) -> str | None:
    """The first line break, control character or lone surrogate in ``text``."""
    unprintable = {"Cc", "Cs", "Zl", "Zp"}
    return next((character for character in text if unicodedata.category(character) in unprintable), None)


def _check_asked(question: Question) -> None:
    """Raise :class:`SchemaError` unless the name fits a line and every text can be encoded."""
    name = question.name
    if not name.strip() or _unprintable(name):
        raise SchemaError(name, f"{name!r} is not a field name", "use a non-empty name on one line")
    for text in (question.text, *(option.description or "" for option in question.options)):
        if any(unicodedata.category(character) == "Cs" for character in text):
            raise SchemaError(
                name, f"{text!r} holds a lone surrogate", "decode the text it came from as UTF-8"
            )
