"""The settings of a Decider, checked once."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from branchwise.errors import ConfigError

StrategyName = Literal["packed", "classic"]
LayoutName = Literal["shared", "isolated"]
AnswerForm = Literal["labels", "codes"]

STRATEGIES: tuple[str, ...] = get_args(StrategyName)
LAYOUTS: tuple[str, ...] = get_args(LayoutName)
ANSWER_FORMS: tuple[str, ...] = get_args(AnswerForm)

DEFAULT_CACHE_BYTES = 1 << 30


@dataclass(frozen=True)
class Settings:
    """What stays the same over the life of a Decider.

    ``token_budget``: most tokens of one group of contexts; None takes what the backend does well
    with. ``memory_budget``: most bytes that a group may need; None takes what the device has
    free. ``cache_bytes``: most bytes of the prefix cache.
    """

    strategy: StrategyName = "packed"
    layout: LayoutName = "shared"
    answers: AnswerForm = "labels"
    token_budget: int | None = None
    memory_budget: int | None = None
    cache_bytes: int = DEFAULT_CACHE_BYTES

    def __post_init__(self) -> None:
        check_choice("strategy", self.strategy, STRATEGIES)
        check_choice("layout", self.layout, LAYOUTS)
        check_choice("answers", self.answers, ANSWER_FORMS)
        for name in ("token_budget", "memory_budget"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name} is {value!r}; give a whole number of at least 1, or None")
        if not isinstance(self.cache_bytes, int) or self.cache_bytes < 0:
            raise ConfigError(f"cache_bytes is {self.cache_bytes!r}; give a whole number of at least 0")


@dataclass(frozen=True)
class CallOptions:
    """What a single call may change.

    ``temperature``: divides log-probabilities once, at the end. ``legal_mass``: whether the
    vocabulary's normalizer is computed; without it the LM head runs for allowed tokens only.
    """

    temperature: float = 1.0
    legal_mass: bool = True

    def __post_init__(self) -> None:
        temperature = self.temperature
        if isinstance(temperature, bool) or not isinstance(temperature, (int, float)):
            raise ConfigError(f"temperature is {temperature!r}; give a number above 0")
        if not (math.isfinite(temperature) and temperature > 0):
            raise ConfigError(f"temperature is {temperature!r}; give a finite number above 0")
        if not isinstance(self.legal_mass, bool):
            raise ConfigError(f"legal_mass is {self.legal_mass!r}; give True or False")


def check_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """Raise :class:`ConfigError` with the nearest allowed value unless ``value`` is one of them."""
    if value in allowed:
        return
    near = difflib.get_close_matches(str(value), allowed, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ConfigError(f"{name} is {value!r}, which is not one of {', '.join(map(repr, allowed))}{hint}")
