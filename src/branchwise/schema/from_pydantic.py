"""A Pydantic model → a schema whose answers build an instance of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    PydanticUndefinedAnnotation,
    RootModel,
    ValidationError,
)
from pydantic.fields import FieldInfo

from branchwise.errors import SchemaError
from branchwise.schema.annotations import FieldType, Peeled, expanded, field_type, is_model, noted, peel
from branchwise.schema.nesting import LevelValue, NestedBuilder, Slot
from branchwise.schema.options import group_text, make_question, question_text, refuse_notes
from branchwise.schema.questions import Question, Schema


@dataclass(frozen=True, slots=True)
class ModelBuilder:
    """Answers → a validated instance of the model."""

    model: type[BaseModel]
    nested: NestedBuilder

    def __call__(self, answers: Mapping[str, Any]) -> BaseModel:
        """Raises :class:`SchemaError` when the model's own validators refuse the answers."""
        try:
            return self.model.model_validate(self.nested(answers))
        except ValidationError as exc:
            first = exc.errors(include_url=False, include_context=False)[0]
            refused = f"{self.model.__name__} itself refused the answer {first['input']!r}"
            raise SchemaError(
                self._path_of(first["loc"]),
                f"{refused}: {first['msg']}",
                "make the validator accept every combination of options, or remove options",
            ) from exc

    def _path_of(self, location: tuple[int | str, ...]) -> str:
        """The dotted name of the field, or group of fields, at a Pydantic error's location."""
        for slot in self.nested.slots:
            shared = min(len(slot.keys), len(location))
            if location[:shared] == slot.keys[:shared]:
                return ".".join(slot.path[:shared])
        return ""


@dataclass(frozen=True, slots=True)
class _Group:
    """A model in its place: the field names and keys that lead to it, and what its field said."""

    model: type[BaseModel]
    path: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    text: str | None = None
    around: tuple[type[BaseModel], ...] = ()


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is kept of a model; it must not refer to the model, or the model would never be freed."""

    questions: tuple[Question, ...]
    title: str
    nested: NestedBuilder


_plans: WeakKeyDictionary[type[BaseModel], _Plan] = WeakKeyDictionary()


def schema_from_model(model: type[BaseModel]) -> Schema:
    """The questions that a Pydantic model's fields ask.

    A field is decided when it is a bool, a Literal or Enum of strings or integers, a list, set,
    frozenset or tuple of these (any of N), a :class:`~branchwise.schema.score.Score`, an int
    with both bounds (a scale), or a nested model of such fields. Any may be Optional, but for a
    nested model. A field's description is the question, else its name in words; a default does
    not keep it from being asked. ``json_schema_extra={"choice_descriptions": {option: text}}``
    describes options, ``{"ordered": True}`` makes them levels, lowest first.

    Raises :class:`SchemaError` for the first field that can't be decided. The work is done once
    per class.
    """
    if not is_model(model):
        raise SchemaError("", f"{model!r} is not a Pydantic model", "give a subclass of pydantic.BaseModel")
    plan = _plans.get(model)
    if plan is None:
        plan = _plans[model] = _compile(model)
    return Schema(plan.questions, plan.title, ModelBuilder(model, plan.nested))


def _compile(model: type[BaseModel]) -> _Plan:
    fields = list(_fields(_Group(model)))
    slots = tuple(slot for _, slot in fields)
    return _Plan(tuple(question for question, _ in fields), _title(model), NestedBuilder(slots))


def _title(model: type[BaseModel]) -> str:
    """The first paragraph of the model's own docstring, else the title of its configuration."""
    written = inspect.cleandoc(vars(model).get("__doc__") or "")
    return " ".join(written.partition("\n\n")[0].split()) or model.model_config.get("title") or ""


def _fields(group: _Group) -> Iterator[tuple[Question, Slot]]:
    """The questions of a model and of the models in it, in order, and where their answers go."""
    dotted = ".".join(group.path)
    if issubclass(group.model, RootModel):
        raise SchemaError(dotted, "a RootModel has no named fields", "use a BaseModel with a field")
    _complete(dotted, group.model)
    if not group.model.model_fields:
        raise SchemaError(dotted, f"{group.model.__name__} has no fields", "give it a field to decide")
    for name, field in group.model.model_fields.items():
        path = (*group.path, name)
        dotted = ".".join(path)
        peeled = peel(dotted, field.annotation, tuple(expanded([field])))
        keys = (*group.keys, _key(dotted, name, field, group.model))
        own = _text(peeled.metadata)
        if is_model(peeled.annotation):
            yield from _fields(_subgroup(group, peeled, path, keys, own))
            continue
        found = field_type(dotted, peeled)
        asked = make_question(dotted, question_text(dotted, own, group.text), found.answers, found.notes)
        question = _stored_plain(group.model, asked)
        yield question, Slot(path, keys, question.nullable, _convert(found, question))


def _subgroup(
    group: _Group, peeled: Peeled, path: tuple[str, ...], keys: tuple[str, ...], own: str | None
) -> _Group:
    """The nested model of a field; ``own`` is what the field says of it."""
    dotted = ".".join(path)
    nested, around = peeled.annotation, (*group.around, group.model)
    if nested in around:
        raise SchemaError(dotted, f"{nested.__name__} contains itself", "nest to a fixed depth")
    if peeled.nullable:
        raise SchemaError(
            dotted, "a model that may be None can't be decided", "make its fields Optional instead"
        )
    refuse_notes(dotted, noted(dotted, peeled.metadata))
    return _Group(nested, path, keys, group_text(dotted, own, group.text), around)


def _complete(path: str, model: type[BaseModel]) -> None:
    """Resolve the forward references of a model that was defined before what it refers to."""
    try:
        model.model_rebuild()
    except PydanticUndefinedAnnotation as exc:
        raise SchemaError(
            path,
            f"an annotation of {model.__name__} names {exc.name!r}, which is not defined",
            "define it before the schema is used",
        ) from exc


def _text(metadata: tuple[Any, ...]) -> str | None:
    """What the field says of itself: the outermost description, else the outermost title."""
    said = [item for item in metadata if isinstance(item, FieldInfo)]
    texts = [item.description for item in said] + [item.title for item in said]
    return next((text for text in texts if text and text.strip()), None)


def _key(path: str, name: str, field: FieldInfo, model: type[BaseModel]) -> str:
    """The key under which the model takes the field's value."""
    alias = field.validation_alias
    if alias is None or model.model_config.get("validate_by_alias") is False:
        return name
    if isinstance(alias, AliasChoices):
        alias = next((choice for choice in alias.choices if isinstance(choice, str)), alias.choices[0])
    if isinstance(alias, AliasPath):
        raise SchemaError(
            path, "an AliasPath can't be written to", "use a plain alias, or AliasChoices with one"
        )
    return alias


def _convert(found: FieldType, question: Question) -> Callable[[Any], Any] | None:
    """What turns the answer into what the field's validation takes."""
    if question.kind == "multi":
        return found.container
    if question.kind == "score" and found.holds_level:
        return LevelValue(question.options)
    return None


def _stored_plain(model: type[BaseModel], question: Question) -> Question:
    """The question with its options' values as the model stores them (``use_enum_values``)."""
    if question.kind == "boolean" or not model.model_config.get("use_enum_values"):
        return question
    plain = [
        replace(option, value=option.value.value) if isinstance(option.value, Enum) else option
        for option in question.options
    ]
    return replace(question, options=tuple(plain))
