"""The value of a score field, and how Pydantic reads it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args

from branchwise.errors import SchemaError

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

LevelT = TypeVar("LevelT", bound=str)


class Score(Generic[LevelT]):
    """The value of a score field: the most likely ``level``, its ``index`` and the ``expected`` index.

    Annotate a Pydantic field with ``Score[Literal["low", "high"]]`` or with ``Score`` of a StrEnum,
    lowest level first. It validates from a Score, from a level's text, or from its own JSON form.
    Immutable. Not a dataclass, because Pydantic reads a generic dataclass its own way.
    """

    __slots__ = ("expected", "index", "level")

    level: LevelT
    index: int
    expected: float

    def __init__(self, level: LevelT, index: int, expected: float) -> None:
        for name, value in (("level", level), ("index", index), ("expected", expected)):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Score is immutable; {name!r} can't be set")

    def __reduce__(self) -> tuple[type[Score[Any]], tuple[Any, ...]]:
        return Score, (self.level, self.index, self.expected)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Score):
            return NotImplemented
        return (self.level, self.index, self.expected) == (other.level, other.index, other.expected)

    def __hash__(self) -> int:
        return hash((self.level, self.index, self.expected))

    def __repr__(self) -> str:
        return f"Score(level={self.level!r}, index={self.index}, expected={self.expected})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """How Pydantic validates and dumps ``Score[...]``; its levels are read from ``source``."""
        from pydantic_core import core_schema as core

        levels = levels_of(source)
        last = len(levels) - 1
        texts = [_text(level) for level in levels]

        def read(value: Any) -> Any:
            """Every accepted form, as the JSON form."""
            if isinstance(value, Score):
                return {**json_form(value), "expected": _rounded_into(value.expected, last)}
            if isinstance(value, str):
                text = _text(value)
                if text not in texts:
                    raise ValueError(f"{text!r} is not a level; the levels are {', '.join(map(repr, texts))}")
                return {"level": text, "index": texts.index(text), "expected": float(texts.index(text))}
            return value

        def make(parts: Mapping[str, Any]) -> Score[Any]:
            level, index = parts["level"], parts["index"]
            if texts[index] != level:
                raise ValueError(f"level {level!r} has index {texts.index(level)}, not {index}")
            return Score(levels[index], index, parts["expected"])

        parts = core.typed_dict_schema(
            {
                "level": core.typed_dict_field(core.literal_schema(texts)),
                "index": core.typed_dict_field(core.int_schema(ge=0, le=last)),
                "expected": core.typed_dict_field(core.float_schema(ge=0, le=last, allow_inf_nan=False)),
            },
            extra_behavior="forbid",
        )
        return core.no_info_before_validator_function(
            read,
            core.no_info_after_validator_function(make, parts),
            serialization=core.plain_serializer_function_ser_schema(json_form, return_schema=parts),
        )


def json_form(score: Score[Any]) -> dict[str, Any]:
    """``{"level": ..., "index": ..., "expected": ...}``."""
    return {"level": _text(score.level), "index": score.index, "expected": score.expected}


def levels_of(annotation: Any) -> tuple[str, ...]:
    """The levels of ``Score[Literal[...]]`` or ``Score`` of a StrEnum, lowest first.

    Raises :class:`SchemaError` when it names none, or one that is not text.
    """
    fix = "write Score[Literal['low', 'high']], lowest level first"
    arguments = get_args(annotation)
    if len(arguments) != 1:
        raise SchemaError("", "Score names no levels", fix)
    named = arguments[0]
    while hasattr(named, "__value__"):
        named = named.__value__
    is_enum = isinstance(named, type) and issubclass(named, Enum)
    levels: tuple[Any, ...] = tuple(named) if is_enum else get_args(named)
    if not levels or not all(isinstance(level, str) for level in levels):
        raise SchemaError("", f"{named!r} names no levels", fix)
    return levels


def _rounded_into(expected: float, last: int) -> float:
    """``expected`` without the rounding error that put a sum of probabilities outside ``0..last``."""
    nearest = min(max(expected, 0.0), float(last))
    return nearest if abs(nearest - expected) < 1e-9 else expected


def _text(level: str) -> str:
    return str(level.value) if isinstance(level, Enum) else level
