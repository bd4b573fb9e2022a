"""The value of a score field, and how Pydantic reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

LevelT = TypeVar("LevelT", bound=str)


@dataclass(frozen=True, slots=True)
class Score(Generic[LevelT]):
    """The value of a score field: the most likely ``level``, its ``index`` and the ``expected`` index.

    Annotate a Pydantic field with ``Score[Literal["low", "high"]]``, lowest level first. It
    validates from a Score, from a level's text, or from its own JSON form.
    """

    level: LevelT
    index: int
    expected: float

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        raise NotImplementedError
