"""Questions from a Pydantic model."""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from branchwise.errors import SchemaError
from branchwise.schema.questions import (
    BooleanQuestion,
    ChoiceQuestion,
    MultiQuestion,
    Option,
    Question,
    Schema,
    ScoreQuestion,
)
from branchwise.schema.score import Score, levels_of
from branchwise.schema.tree import Path, checked_name, dotted, nested

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

_COLLECTIONS = (list, set, frozenset, tuple)
_FIX = (
    "use bool, a Literal or Enum of texts, a list of one, or Score[Literal[...]]; "
    "free text and numbers can't be decided"
)


def schema_from_model(model: type[BaseModel]) -> Schema:
    """The schema of a Pydantic model; the same object for the same class.

    Nested models are flattened to dotted names and rebuilt in the value. A field's question is
    its description, or its name with underscores as spaces. Options are described by
    ``json_schema_extra={"choice_descriptions": {option: text}}``, for booleans with the keys
    ``"true"`` and ``"false"``; ``"ordered": True`` there makes a scale of a Literal or Enum,
    whose value stays the level itself. Raises :class:`SchemaError` with the field's dotted path.
    """
    return _built(model)


@lru_cache(maxsize=256)
def _built(model: type[BaseModel]) -> Schema:
    fields = _fields(model, (), ())
    title = (model.__doc__ or "").strip() if "__doc__" in vars(model) else ""
    return Schema(tuple(field.question for field in fields), title=title, build=_builder(model, fields))


@dataclass(frozen=True)
class _Field:
    """A question, the keys under which the model takes its answer, and how the answer is written."""

    question: Question
    keys: Path
    write: Callable[[Any], Any]


def _fields(model: type[BaseModel], path: Path, parents: tuple[type, ...]) -> list[_Field]:
    if model in parents:
        raise SchemaError(dotted(path), f"{model.__name__} contains itself", "flatten it")
    _complete(model, path)
    found: list[_Field] = []
    for name, info in model.model_fields.items():
        here = (*path, name)
        nested_model = _model_of(info.annotation)
        if nested_model is not None:
            inner = _fields(nested_model, here, (*parents, model))
            found += [replace(field, keys=(_key(model, name, info), *field.keys)) for field in inner]
        else:
            question, write = _question(here, info)
            found.append(_Field(question, (_key(model, name, info),), write))
    return found


def _complete(model: type[BaseModel], path: Path) -> None:
    """Resolve annotations that were still names when the class was made."""
    from pydantic import PydanticUndefinedAnnotation

    try:
        model.model_rebuild()
    except PydanticUndefinedAnnotation as exc:
        raise SchemaError(
            dotted(path),
            f"an annotation of {model.__name__} names {exc.name!r}, which is not defined",
            "define it before the schema is used",
        ) from exc


def _key(model: type[BaseModel], name: str, info: FieldInfo) -> str:
    """The key that validation reads: the alias, unless the model goes by names."""
    if info.validation_alias is None:
        return name
    config = model.model_config
    if config.get("populate_by_name") or config.get("validate_by_name"):
        return name
    if isinstance(info.validation_alias, str):
        return info.validation_alias
    raise SchemaError(name, "has an alias with a path or choices", "use a plain alias, or validate_by_name")


def _model_of(annotation: Any) -> type[BaseModel] | None:
    from pydantic import BaseModel

    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation if is_model else None


def _question(path: Path, info: FieldInfo) -> tuple[Question, Callable[[Any], Any]]:
    name = checked_name(path)
    annotation, nullable = _without_none(info.annotation, name)
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, Mapping) else {}
    descriptions = _descriptions(name, extra)
    ordered = extra.get("ordered", False)
    if not isinstance(ordered, bool):
        raise SchemaError(name, f"'ordered' is {ordered!r}", "give True or False")
    text = info.description or path[-1].replace("_", " ")
    if annotation is bool:
        known = {"true": "true", "false": "false"}
        _check_known(name, descriptions, known)
        if ordered:
            raise SchemaError(name, "a yes/no has no order", "remove 'ordered'")
        return (
            BooleanQuestion(name, text, nullable, descriptions.get("true"), descriptions.get("false")),
            _as_is,
        )
    if get_origin(annotation) is Score:
        options = _described(name, levels_of(annotation), descriptions)
        return ScoreQuestion(name, text, options, nullable), _as_is
    if get_origin(annotation) in _COLLECTIONS:
        values = _values(_item_of(annotation, name), name)
        if ordered:
            raise SchemaError(name, "any-of options have no order", "remove 'ordered'")
        return MultiQuestion(name, text, _described(name, values, descriptions), nullable), _as_is
    values = _values(annotation, name)
    options = _described(name, values, descriptions)
    if ordered:
        by_text = {option.text: option.value for option in options}
        return ScoreQuestion(name, text, options, nullable), lambda score: by_text[score.level]
    return ChoiceQuestion(name, text, options, nullable), _as_is


def _as_is(answer: Any) -> Any:
    return answer


def _without_none(annotation: Any, name: str) -> tuple[Any, bool]:
    """The annotation without Annotated and None, and whether None was allowed."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    members = [member for member in get_args(annotation) if member is not type(None)]
    if len(members) != 1 or len(members) == len(get_args(annotation)):
        raise SchemaError(name, f"{annotation} is a union of several types", _FIX)
    inner, _ = _without_none(members[0], name)
    if _model_of(inner) is not None:
        raise SchemaError(name, "an optional model can't be decided", "make the model required")
    return inner, True


def _item_of(annotation: Any, name: str) -> Any:
    arguments = get_args(annotation)
    if get_origin(annotation) is tuple and arguments[1:] != (Ellipsis,):
        raise SchemaError(name, f"{annotation} has a fixed length", "use a list or tuple[X, ...]")
    item = arguments[0]
    while get_origin(item) is Annotated:
        item = get_args(item)[0]
    return item


def _values(annotation: Any, name: str) -> tuple[Any, ...]:
    """The values of a Literal (of Literals) or an Enum. Raises for everything else."""
    if get_origin(annotation) is Literal:
        values = get_args(annotation)
        if None in values:
            raise SchemaError(name, "None stands inside the Literal", "write Optional[Literal[...]]")
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        values = tuple(annotation)
    else:
        shown = getattr(annotation, "__name__", str(annotation))
        raise SchemaError(name, f"{shown} can't be decided", _FIX)
    for value in values:
        plain = value.value if isinstance(value, Enum) else value
        if isinstance(plain, bool) or not isinstance(plain, (str, int)):
            raise SchemaError(name, f"option {plain!r} is no text and no whole number", "use texts")
    return values


def _described(name: str, values: tuple[Any, ...], descriptions: Mapping[str, str]) -> tuple[Option, ...]:
    texts = [str(value.value if isinstance(value, Enum) else value) for value in values]
    _check_known(name, descriptions, texts)
    return tuple(
        Option(text, value, descriptions.get(text)) for text, value in zip(texts, values, strict=True)
    )


def _descriptions(name: str, extra: Mapping[str, Any]) -> dict[str, str]:
    found = extra.get("choice_descriptions", {})
    if not isinstance(found, Mapping) or not all(isinstance(text, str) for text in found.values()):
        raise SchemaError(
            name, "'choice_descriptions' is no mapping of option to text", "give a dict of texts"
        )
    return {str(option): text for option, text in found.items()}


def _check_known(name: str, descriptions: Mapping[str, str], options: Any) -> None:
    for option in descriptions:
        if option not in options:
            near = difflib.get_close_matches(option, list(options), n=1)
            fix = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(map(repr, options))}"
            raise SchemaError(name, f"a description is given for {option!r}, which is no option", fix)


def _builder(model: type[BaseModel], fields: list[_Field]) -> Callable[[Mapping[str, Any]], Any]:
    def build(answers: Mapping[str, Any]) -> BaseModel:
        from pydantic import ValidationError

        written = {
            dotted(field.keys): None
            if answers[field.question.name] is None
            else field.write(answers[field.question.name])
            for field in fields
        }
        try:
            return model.model_validate(nested([field.keys for field in fields], written))
        except ValidationError as exc:
            first = exc.errors()[0]
            raise SchemaError(
                ".".join(map(str, first["loc"])),
                f"the answers do not pass the model's own validation ({first['msg']})",
                "relax the validator, or decide the field without it",
            ) from exc

    return build
