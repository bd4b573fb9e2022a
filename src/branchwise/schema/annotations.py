"""A type annotation → the answers it allows."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum, Flag
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from branchwise.errors import SchemaError
from branchwise.schema.options import (
    NO_NOTES,
    Answers,
    Notes,
    integer_levels,
    option_text,
    read_descriptions,
    read_notes,
    whole_number,
)
from branchwise.schema.questions import Option
from branchwise.schema.score import Score, levels_of

CONTAINERS: dict[Any, type] = {
    list: list,
    set: set,
    frozenset: frozenset,
    tuple: tuple,
    Sequence: list,
    AbstractSet: set,
}
INSTEAD: dict[Any, tuple[str, str]] = {
    str: ("a free string can't be decided", "use Literal[...] or an Enum"),
    int: (
        "a free integer can't be decided",
        "give it bounds, Field(ge=1, le=5), or use Literal[1, 2, 3] or an IntEnum",
    ),
    float: ("a free number can't be decided", "use Score[Literal[...]] with levels, or Literal[...]"),
    Decimal: ("a free number can't be decided", "use Score[Literal[...]] with levels, or Literal[...]"),
    dict: ("a dict can't be decided", "use a nested model with a field for every key"),
    Mapping: ("a mapping can't be decided", "use a nested model with a field for every key"),
    Any: ("Any allows everything", "use bool, Literal[...] or an Enum"),
    object: ("object allows everything", "use bool, Literal[...] or an Enum"),
    Union: ("a union of several types can't be decided", "put all options in one Literal[...]"),
}
SUPPORTED = "use bool, Literal[...], an Enum, a list or set of these, Score[...] or a nested model"


@dataclass(frozen=True, slots=True)
class Peeled:
    """An annotation without Optional, Annotated and type aliases, and what these said."""

    annotation: Any
    nullable: bool = False
    metadata: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class FieldType:
    """What a field's type allows. ``container``: what its answers are collected in.

    ``holds_level``: on a scale, the field holds the level itself and not a Score.
    """

    answers: Answers
    notes: Notes = NO_NOTES
    container: type | None = None
    holds_level: bool = True


def expanded(metadata: Iterable[Any]) -> Iterator[Any]:
    """Grouped metadata (``Interval``, a ``Field``) and what it is made of."""
    for item in metadata:
        yield item
        if isinstance(item, FieldInfo):
            yield from expanded(item.metadata)
        elif isinstance(item, annotated_types.GroupedMetadata):
            yield from item


def peel(path: str, annotation: Any, metadata: tuple[Any, ...] = ()) -> Peeled:
    """Take Optional, Annotated and type aliases off. Raises :class:`SchemaError` for other unions."""
    nullable = False
    while True:
        origin = get_origin(annotation)
        if hasattr(annotation, "__value__"):
            annotation = annotation.__value__
        elif origin is Annotated:
            annotation, *inner = get_args(annotation)
            metadata += tuple(expanded(inner))
        elif origin in (Union, types.UnionType):
            members = [member for member in get_args(annotation) if member is not types.NoneType]
            if len(members) != 1:
                raise SchemaError(path, *INSTEAD[Union])
            nullable, annotation = True, members[0]
        else:
            return Peeled(annotation, nullable, metadata)


def field_type(path: str, peeled: Peeled) -> FieldType:
    """The answers that a peeled annotation allows. Raises :class:`SchemaError` when it can't be decided."""
    annotation = peeled.annotation
    origin = get_origin(annotation) or annotation
    if origin in CONTAINERS:
        found = _multi(path, annotation, CONTAINERS[origin], peeled.metadata)
    elif annotation is int:
        found = FieldType(Answers("score", _bounded(path, peeled.metadata)))
    elif origin is Score:
        found = _score(path, annotation)
    else:
        found = _single(path, annotation)
    nullable = peeled.nullable or found.answers.nullable
    return replace(
        found,
        answers=replace(found.answers, nullable=nullable),
        notes=noted(path, peeled.metadata).over(found.notes),
    )


def is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def noted(path: str, metadata: tuple[Any, ...]) -> Notes:
    """The notes in every ``json_schema_extra``; one that is a function can only be called by Pydantic."""
    notes = NO_NOTES
    for item in metadata:
        if isinstance(item, FieldInfo) and isinstance(item.json_schema_extra, dict):
            notes = notes.over(read_notes(path, item.json_schema_extra))
    return notes


def _single(path: str, annotation: Any) -> FieldType:
    if annotation is bool:
        return FieldType(Answers("boolean"))
    if get_origin(annotation) is Literal:
        values = get_args(annotation)
        options = tuple(_option(path, value) for value in values if value is not None)
        return FieldType(Answers("choice", options, nullable=None in values))
    if isinstance(annotation, type) and issubclass(annotation, Enum) and not issubclass(annotation, Flag):
        informal = getattr(annotation, "descriptions", None)
        described = getattr(
            annotation, "__descriptions__", informal if isinstance(informal, Mapping) else None
        )
        notes = Notes(read_descriptions(path, described))
        return FieldType(Answers("choice", tuple(_option(path, member) for member in annotation)), notes)
    raise _unsupported(path, annotation)


def _option(path: str, value: Any) -> Option:
    """An option for a member of a Literal or Enum."""
    plain = value.value if isinstance(value, Enum) else value
    if isinstance(plain, bool):
        raise SchemaError(path, f"option {value!r} is a boolean", "use bool, or options that are strings")
    if not isinstance(plain, (str, int)):
        raise SchemaError(
            path, f"option {value!r} is a {type(plain).__name__}", "use options that are strings or integers"
        )
    return Option(option_text(value), value)


def _multi(path: str, annotation: Any, container: type, metadata: tuple[Any, ...]) -> FieldType:
    arguments = get_args(annotation)
    if container is tuple and arguments[1:] != (...,):
        raise SchemaError(path, "a tuple of fixed length can't be decided", "use tuple[X, ...] or a set")
    if not arguments:
        name = container.__name__
        raise SchemaError(path, f"a {name} without options", f"use {name}[Literal[...]] or {name}[AnEnum]")
    for item in metadata:
        if isinstance(item, (annotated_types.MinLen, annotated_types.MaxLen)):
            raise SchemaError(path, "a bound on the number of options is not kept", "leave the bound out")
    inner = peel(path, arguments[0])
    if is_model(inner.annotation):
        raise SchemaError(path, "a list of models can't be decided", "give every part a field of its own")
    kept = _single(path, inner.annotation)
    if kept.answers.kind == "boolean" or inner.nullable or kept.answers.nullable:
        raise SchemaError(
            path, "its items may be None or booleans", "use items of a Literal[...] or an Enum without None"
        )
    notes = noted(path, inner.metadata).over(kept.notes)
    return FieldType(Answers("multi", kept.answers.options), notes, container)


def _score(path: str, annotation: Any) -> FieldType:
    try:
        levels = levels_of(annotation)
    except SchemaError as exc:
        raise SchemaError(path, exc.problem, exc.fix) from exc
    options = tuple(Option(option_text(level), level) for level in levels)
    return FieldType(Answers("score", options), holds_level=False)


def _bounded(path: str, metadata: tuple[Any, ...]) -> tuple[Option, ...]:
    """The levels of an integer with both bounds."""
    lows: list[int] = []
    highs: list[int] = []
    for item in metadata:
        match item:
            case annotated_types.Ge(ge):
                lows.append(whole_number(path, "ge", ge))
            case annotated_types.Gt(gt):
                lows.append(whole_number(path, "gt", gt) + 1)
            case annotated_types.Le(le):
                highs.append(whole_number(path, "le", le))
            case annotated_types.Lt(lt):
                highs.append(whole_number(path, "lt", lt) - 1)
            case annotated_types.MultipleOf():
                raise SchemaError(
                    path, "multiple_of is not kept", "use Literal[...] with the allowed numbers"
                )
    if not lows or not highs:
        raise SchemaError(path, *INSTEAD[int])
    return integer_levels(path, max(lows), min(highs))


def _unsupported(path: str, annotation: Any) -> SchemaError:
    origin = get_origin(annotation) or annotation
    if origin in INSTEAD:
        return SchemaError(path, *INSTEAD[origin])
    shown = getattr(annotation, "__name__", None) or repr(annotation)
    return SchemaError(path, f"{shown} can't be decided", SUPPORTED)
