"""Answers by dotted name → the nested data they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from branchwise.errors import SchemaError
from branchwise.schema.questions import Option
from branchwise.schema.score import Score


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one answer goes: its question's path, the keys that lead to it in the built value, and
    what it is turned into on its way."""

    path: tuple[str, ...]
    keys: tuple[str, ...]
    nullable: bool
    convert: Callable[[Any], Any] | None = None

    @property
    def name(self) -> str:
        """The question's name."""
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class NestedBuilder:
    """A schema's ``build`` when the value is plain nested dicts."""

    slots: tuple[Slot, ...]

    def __call__(self, answers: Mapping[str, Any]) -> dict[str, Any]:
        """Raises :class:`SchemaError` when an answer is missing, or None where that is not allowed."""
        built: dict[str, Any] = {}
        for slot in self.slots:
            answer = _answer(slot, answers)
            group = built
            for key in slot.keys[:-1]:
                group = group.setdefault(key, {})
            convert = None if answer is None else slot.convert
            group[slot.keys[-1]] = answer if convert is None else convert(answer)
        return built


@dataclass(frozen=True, slots=True)
class LevelValue:
    """A score's answer → the value of its level, where the field holds the level itself."""

    options: tuple[Option, ...]

    def __call__(self, answer: Any) -> Any:
        return self.options[answer.index].value if isinstance(answer, Score) else answer


def _answer(slot: Slot, answers: Mapping[str, Any]) -> Any:
    if slot.name not in answers:
        raise SchemaError(slot.name, "has no answer", "give an answer to every question")
    if answers[slot.name] is None and not slot.nullable:
        raise SchemaError(
            slot.name, "was left unanswered, and its type does not allow that", "make it nullable (Optional)"
        )
    return answers[slot.name]
