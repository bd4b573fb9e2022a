"""Node scores of one context → typed answers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from branchwise.backends.base import Float64Array
from branchwise.config import CallOptions
from branchwise.engine.job import Job
from branchwise.errors import BackendError
from branchwise.results import Alternative, Decision, FieldResult, Semantics, Telemetry
from branchwise.schema.questions import MultiQuestion, Question, Schema
from branchwise.schema.score import Score
from branchwise.scoring.distribution import Distribution, distribution, level_moments
from branchwise.scoring.multi import MultiScores, multi_scores
from branchwise.scoring.paths import CandidateScores, branch_scores, candidate_scores
from branchwise.tree.rows import CompiledSchema


def assemble_decision(
    job: Job, logits: Float64Array, log_normalizer: Float64Array | None, telemetry: Telemetry
) -> Decision[Any]:
    """The decision about one context.

    ``logits``: float64 ``[A]``. ``log_normalizer``: float64 ``[K]`` or None. ``telemetry`` lacks
    the times of scoring and assembling, which are added here. Raises
    :class:`~branchwise.errors.BackendError` when the model returned numbers that are none, and
    what ``Schema.build`` raises.
    """
    started = time.perf_counter()
    fields = assemble_fields(job.schema, job.compiled, logits, log_normalizer, job.options)
    fields = job.reconcile(fields)
    scored = time.perf_counter()
    value = job.schema.build({name: result.value for name, result in fields.items()})
    timing = replace(telemetry.timing, score=scored - started, assemble=time.perf_counter() - scored)
    return Decision(value, fields, job.provenance, replace(telemetry, timing=timing))


def assemble_fields(
    schema: Schema,
    compiled: CompiledSchema,
    logits: Float64Array,
    log_normalizer: Float64Array | None,
    options: CallOptions,
) -> dict[str, FieldResult]:
    """Every question's result from one context's node scores.

    ``logits``: float64 ``[A]``. ``log_normalizer``: float64 ``[K]`` or None. Raises
    :class:`BackendError` when the model returned numbers that are none.
    """
    branches = branch_scores(logits, compiled.allowed_offsets, log_normalizer)
    rows: dict[int, list[CandidateScores]] = {}
    for row in compiled.rows:
        scores = candidate_scores(branches, row.paths, row.candidates)
        if np.isnan(scores.logp).any():
            name = schema.questions[row.question].name
            raise BackendError(f"field {name!r}: the model returned NaN; load it with dtype='float32'")
        rows.setdefault(row.question, []).append(scores)
    semantics = Semantics(compiled.layout, compiled.answers, options.temperature)
    return {
        question.name: _field(question, rows.get(index, []), semantics, options)
        for index, question in enumerate(schema.questions)
    }


def _field(
    question: Question, rows: list[CandidateScores], semantics: Semantics, options: CallOptions
) -> FieldResult:
    if isinstance(question, MultiQuestion):
        return _multi_field(question, multi_scores(rows, options.temperature), semantics)
    scores = rows[0] if rows else _certain(options)
    found = distribution(scores.logp, options.temperature)
    return _single_field(question, found, scores.log_mass, semantics)


def _certain(options: CallOptions) -> CandidateScores:
    """The only option of a question: probability 1, and no token was asked for it."""
    return CandidateScores(np.zeros(1), np.zeros(1) if options.legal_mass else None)


def _single_field(
    question: Question, found: Distribution, log_mass: Float64Array | None, semantics: Semantics
) -> FieldResult:
    texts = [option.text for option in question.options]
    best = int(found.order[0])
    value: Any = question.options[best].value
    moments: tuple[float, float] | tuple[None, None] = (None, None)
    if question.kind == "score":
        moments = level_moments(found.prob)
        value = Score(texts[best], best, moments[0])
    return FieldResult(
        name=question.name,
        kind=question.kind,
        value=value,
        probability=float(found.prob[best]),
        probabilities=_by_text(texts, found.prob),
        log_probabilities=_by_text(texts, found.logp),
        alternatives=tuple(
            Alternative(texts[i], question.options[i].value, float(found.prob[i])) for i in found.order[1:]
        ),
        margin=found.margin,
        log_score_margin=found.log_score_margin,
        legal_mass=None if log_mass is None else float(np.exp(log_mass[best])),
        tie=found.tie,
        semantics=semantics,
        expected=moments[0],
        variance=moments[1],
    )


def _multi_field(question: MultiQuestion, found: MultiScores, semantics: Semantics) -> FieldResult:
    texts = [option.text for option in question.options]
    left_out = sorted(np.flatnonzero(~found.chosen), key=lambda i: -found.prob_yes[i])
    return FieldResult(
        name=question.name,
        kind=question.kind,
        value=[o.value for o, chosen in zip(question.options, found.chosen, strict=True) if chosen],
        probability=found.probability,
        probabilities=_by_text(texts, found.prob_yes),
        log_probabilities=_by_text(texts, found.logp_yes),
        alternatives=tuple(
            Alternative(texts[i], question.options[i].value, float(found.prob_yes[i])) for i in left_out
        ),
        margin=found.margin,
        log_score_margin=found.log_score_margin,
        legal_mass=None if found.log_mass is None else float(np.exp(found.log_mass)),
        tie=found.tie,
        semantics=semantics,
    )


def _by_text(texts: list[str], values: Float64Array) -> Mapping[str, float]:
    return dict(zip(texts, map(float, values), strict=True))
