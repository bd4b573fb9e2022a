"""What a decision is: values only, no model and no tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, Literal, TypeVar

from branchwise.schema.score import Score

ValueT = TypeVar("ValueT")

Reason = Literal["abstain", "none_of_the_above"]


@dataclass(frozen=True, slots=True)
class Alternative:
    """An option that was not chosen."""

    text: str
    value: Any
    probability: float


@dataclass(frozen=True, slots=True)
class Semantics:
    """How a field's probability came about: enough to compare it with another one."""

    layout: str
    answers: str
    temperature: float


@dataclass(frozen=True, slots=True)
class FieldResult:
    """One question's answer.

    ``value``: the typed answer (a Score for a score field). ``probability``: P(value); for a multi field the
    product over its options, each taken as independent. ``probabilities``: every option's P, by
    its text, at the asked temperature (multi: P(yes) of each option; they don't sum to 1).
    ``log_probabilities``: the same options, natural logarithm, at temperature 1.
    ``alternatives``: the options that were not chosen, most likely first. ``margin``: P(best) -
    P(second best) (multi: the least |P(yes) - P(no)|). ``log_score_margin``: the same difference
    of log-probabilities at temperature 1, in nats. ``legal_mass``: the share of the whole
    vocabulary's probability that fell on allowed tokens, multiplied along the winner's path
    (multi: the least of its options); None when it was not asked for. ``tie``: the best two were
    equal and the order of the options decided. ``expected``, ``variance``: of the level's index
    (score fields only). ``reason``: why ``value`` is None.
    """

    name: str
    kind: str
    value: Any
    probability: float
    probabilities: Mapping[str, float]
    log_probabilities: Mapping[str, float]
    alternatives: tuple[Alternative, ...]
    margin: float
    log_score_margin: float
    legal_mass: float | None
    tie: bool
    semantics: Semantics
    expected: float | None = None
    variance: float | None = None
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one item. The five parts sum to ``total``; shared work is divided by the items."""

    compile: float = 0.0
    tokenize: float = 0.0
    forward: float = 0.0
    score: float = 0.0
    assemble: float = 0.0

    @property
    def total(self) -> float:
        return self.compile + self.tokenize + self.forward + self.score + self.assemble


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What the answer cost. Counts are of the group of contexts that ran together.

    ``prefills``: forward passes that only filled a cache. ``passes``: scoring passes. ``rows``:
    answer rows scored. ``tokens_unique``: distinct tokens of the group's token tree that were
    not in the prefix cache. ``tokens_computed``: token positions that the backend ran, padding
    included. ``tokens_cached``: tokens taken from the prefix cache. ``contexts_per_pass``: the
    group's real size. ``failed_attempts``: passes that ran out of memory before this one.
    ``peak_bytes``: most bytes of keys, values and logits that the backend held at once.
    ``group_seconds``: the wall time of the whole group. ``reused``: the answer was taken from an
    identical context of the same call.
    """

    strategy: str
    prefills: int
    passes: int
    rows: int
    tokens_unique: int
    tokens_computed: int
    tokens_cached: int
    contexts_per_pass: int
    failed_attempts: int
    peak_bytes: int
    group_seconds: float
    timing: Timing
    reused: bool = False


@dataclass(frozen=True, slots=True)
class Provenance:
    """What produced the answer, so that it can be compared and repeated."""

    model: str
    revision: str
    backend: str
    device: str
    dtype: str
    strategy: str
    layout: str
    answers: str
    prompt_version: str
    schema: str


@dataclass(frozen=True)
class Decision(Generic[ValueT]):
    """The answers to every question about one context."""

    value: ValueT
    fields: Mapping[str, FieldResult]
    provenance: Provenance
    telemetry: Telemetry = field(compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data. Numbers are not rounded."""
        return {
            "value": _plain(self.value),
            "fields": {name: _plain(asdict(result)) for name, result in self.fields.items()},
            "provenance": asdict(self.provenance),
            "telemetry": {
                **asdict(self.telemetry),
                "timing": {**asdict(self.telemetry.timing), "total": self.telemetry.timing.total},
            },
        }

    def to_json(self, *, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    """``value`` as JSON data: models by their own dump, enums by their value."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, Score):
        return {"level": value.level, "index": value.index, "expected": value.expected}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return value.value if hasattr(value, "value") and hasattr(value, "name") else value
