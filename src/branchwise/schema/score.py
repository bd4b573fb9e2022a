"""The value of a score field, and how Pydantic reads it."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar, get_args, get_origin

from branchwise.errors import SchemaError

LevelT = TypeVar("LevelT", bound=str)


class Score(Generic[LevelT]):
    """The value of a score field: the most likely ``level``, its ``index`` and the ``expected`` index.

    Annotate a Pydantic field with ``Score[Literal["low", "high"]]``, lowest level first. It
    validates from a Score, from a level's text, or from its own JSON form. Immutable. Not a
    dataclass, because Pydantic reads a generic dataclass its own way.
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
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        levels = levels_of(source)
        position = {level: index for index, level in enumerate(levels)}

        def from_level(level: str) -> Score[Any]:
            return Score(level, position[level], float(position[level]))

        def from_json(found: dict[str, Any]) -> Score[Any]:
            if found["index"] != position[found["level"]]:
                raise ValueError(f"level {found['level']!r} has index {position[found['level']]}")
            return Score(found["level"], found["index"], found["expected"])

        def check(score: Score[Any]) -> Score[Any]:
            if position.get(score.level) != score.index:
                raise ValueError(f"{score.level!r} at index {score.index} is no level of {list(levels)}")
            return score

        a_level = core_schema.literal_schema(list(levels))
        json_form = core_schema.typed_dict_schema(
            {
                "level": core_schema.typed_dict_field(a_level),
                "index": core_schema.typed_dict_field(
                    core_schema.int_schema(ge=0, le=len(levels) - 1, strict=True)
                ),
                "expected": core_schema.typed_dict_field(core_schema.float_schema(ge=0, le=len(levels) - 1)),
            },
            extra_behavior="forbid",
        )
        return core_schema.union_schema(
            [
                core_schema.no_info_after_validator_function(check, core_schema.is_instance_schema(cls)),
                core_schema.no_info_after_validator_function(from_level, a_level),
                core_schema.no_info_after_validator_function(from_json, json_form),
            ],
            mode="left_to_right",
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda score: {"level": score.level, "index": score.index, "expected": score.expected}
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
        """The JSON form, which is what a Score is written as."""
        json_form = schema["choices"][-1]["schema"]
        return handler(json_form)


def levels_of(annotation: Any) -> tuple[str, ...]:
    """The levels named by ``Score[Literal[...]]``. Raises :class:`SchemaError` when it names none."""
    arguments = get_args(annotation)
    levels = get_args(arguments[0]) if arguments and get_origin(arguments[0]) is Literal else ()
    if not levels or not all(isinstance(level, str) for level in levels):
        raise SchemaError("", f"{annotation} names no levels", "write Score[Literal['low', 'high']]")
    return levels
