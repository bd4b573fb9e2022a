"""What the builders share: names in words, and options with their descriptions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

from branchwise.errors import SchemaError
from branchwise.schema.questions import (
    MAX_LEVELS,
    BooleanQuestion,
    ChoiceQuestion,
    MultiQuestion,
    Option,
    Question,
    QuestionKind,
    ScoreQuestion,
)

Descriptions: TypeAlias = Mapping[str, str | None]
DESCRIPTION_KEYS = ("choice_descriptions", "x-choice-descriptions", "enumDescriptions")
ORDERED_KEYS = ("ordered", "x-ordered")
NOTE_KEYS = DESCRIPTION_KEYS + ORDERED_KEYS

LISTED: dict[str, type[ChoiceQuestion | MultiQuestion | ScoreQuestion]] = {
    "choice": ChoiceQuestion,
    "multi": MultiQuestion,
    "score": ScoreQuestion,
}


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers that a type allows: a boolean's have no options here."""

    kind: QuestionKind
    options: tuple[Option, ...] = ()
    nullable: bool = False


def in_words(name: str) -> str:
    """A field name or dotted path as words: ``"customer.tier_now"`` → ``"customer tier now"``."""
    return " ".join(name.replace(".", " ").replace("_", " ").split())


def question_text(path: str, own: str | None, group: str | None) -> str:
    """What is asked: the field's ``own`` text, after that of its ``group``; else its path in words."""
    if group is None:
        return own or in_words(path) or path
    last = path.rpartition(".")[2]
    return f"{group.rstrip(' .:')}: {own or in_words(last) or last}"


def group_text(path: str, own: str | None, group: str | None) -> str | None:
    """The text of a group of fields; None when neither it nor a group around it has one."""
    return question_text(path, own, group) if own or group else None


def refuse_notes(path: str, notes: Notes) -> None:
    """Raise :class:`SchemaError` when a group of fields says something about options."""
    if notes != NO_NOTES:
        raise SchemaError(path, "a group of fields has no options to describe or order", "say it in a field")


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """What to write instead of an unknown ``name``: the nearest valid one, or all when few."""
    names = list(valid)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if nearest:
        return f"did you mean {nearest[0]!r}?"
    listed = ", ".join(map(repr, names[:10])) + (", …" if len(names) > 10 else "")
    return f"use one of {listed}" if names else "leave it out"


def check_known(path: str, what: str, given: Iterable[str], valid: Iterable[str]) -> None:
    """Raise :class:`SchemaError` for the first of the ``given`` names that is not ``valid``."""
    names = list(valid)
    for name in given:
        if name not in names:
            raise SchemaError(path, f"unknown {what} {name!r}", did_you_mean(str(name), names))


def read_flag(path: str, name: str, value: Any) -> bool:
    """``value``, which must be true or false."""
    if not isinstance(value, bool):
        raise SchemaError(path, f"{name!r} is {value!r}", "write true or false")
    return value


def read_text(path: str, name: str, value: Any) -> str:
    """``value``, which must be text."""
    if not isinstance(value, str):
        raise SchemaError(path, f"{name!r} is a {type(value).__name__}", "write a string")
    return value


def whole_number(path: str, name: str, value: Any) -> int:
    """``value``, which must be an integer; 3.0 is one."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise SchemaError(path, f"{name!r} is {value!r}", "write an integer")
    return value


def option_text(value: Any) -> str:
    """The text that stands for an option's value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value.value if isinstance(value, Enum) else value)


def integer_levels(path: str, low: int, high: int) -> tuple[Option, ...]:
    """Every integer from ``low`` to ``high``, as the levels of a scale."""
    if not 1 <= high - low + 1 <= MAX_LEVELS:
        raise SchemaError(
            path,
            f"has {max(high - low + 1, 0)} levels, from {low} to {high}",
            f"give bounds with 1 to {MAX_LEVELS} integers between them",
        )
    return tuple(Option(str(level), level) for level in range(low, high + 1))


@dataclass(frozen=True, slots=True)
class Notes:
    """What a field says about its options beside its type. None: it says nothing.

    ``ordered``: the options are levels, lowest first.
    """

    descriptions: Descriptions | None = None
    ordered: bool | None = None

    def over(self, other: Notes) -> Notes:
        """These notes, and the ``other`` ones where these say nothing."""
        return Notes(
            other.descriptions if self.descriptions is None else self.descriptions,
            other.ordered if self.ordered is None else self.ordered,
        )


NO_NOTES = Notes()


def read_notes(path: str, given: Mapping[str, Any]) -> Notes:
    """The notes among a field's extra keys. A key that is nearly ours is refused, others are left."""
    near = {key: difflib.get_close_matches(str(key), NOTE_KEYS, n=1, cutoff=0.85) for key in given}
    for key, nearest in near.items():
        if nearest and key not in NOTE_KEYS:
            raise SchemaError(path, f"unknown key {key!r}", f"did you mean {nearest[0]!r}?")
    ordered = _only(path, given, ORDERED_KEYS)
    return Notes(
        read_descriptions(path, _only(path, given, DESCRIPTION_KEYS)),
        None if ordered is None else read_flag(path, "ordered", ordered),
    )


def read_descriptions(path: str, given: Any) -> Descriptions | None:
    """``{option text: description}``; the keys may be the options' values too."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise SchemaError(
            path, f"the option descriptions are a {type(given).__name__}", "write {option: description}"
        )
    found = {option_text(key): value for key, value in given.items()}
    for key, value in found.items():
        if value is not None:
            read_text(path, f"description of {key}", value)
    return found


def make_question(path: str, text: str, answers: Answers, notes: Notes) -> Question:
    """The question whose answer is one or more of ``answers``.

    Raises :class:`SchemaError` for a description of no option, and for an order that has no meaning.
    """
    descriptions = notes.descriptions or {}
    options = answers.options
    check_known(path, "option", descriptions, [o.text for o in options] if options else ("true", "false"))
    if notes.ordered and answers.kind in ("boolean", "multi"):
        raise SchemaError(path, f"a {answers.kind} question has no order", "leave 'ordered' out")
    if answers.kind == "boolean":
        yes, no = descriptions.get("true"), descriptions.get("false")
        return BooleanQuestion(path, text, answers.nullable, yes, no)
    described = tuple(
        replace(option, description=descriptions.get(option.text, option.description)) for option in options
    )
    kind = "score" if notes.ordered else answers.kind
    return LISTED[kind](path, text, described, answers.nullable)


def _only(path: str, given: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """The value under the one of ``names`` that is given."""
    found = [name for name in names if name in given]
    if len(found) > 1:
        raise SchemaError(path, f"{found[0]!r} and {found[1]!r} say the same", "write one of them")
    return given[found[0]] if found else None
