"""One call, start to end: windows are planned into groups, run, assembled, given back in order."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from branchwise.engine.assemble import assemble_decision
from branchwise.engine.job import Job, Outcome
from branchwise.engine.planner import Item, plan_groups
from branchwise.engine.reader import Window, read_windows, too_long
from branchwise.engine.runner import GroupFailure, GroupRun, run_group
from branchwise.engine.strategy import GroupScores
from branchwise.errors import BackendMemoryError, BranchwiseError, ContextTooLongError
from branchwise.results import Decision, Telemetry, Timing

REMEMBERED = 4096
"""Distinct contexts whose outcome a call remembers, so that repeating one costs nothing."""


@dataclass
class _Memory:
    """The last REMEMBERED outcomes of a call, by context key."""

    outcomes: OrderedDict[bytes, Outcome] = field(default_factory=OrderedDict)

    def __contains__(self, key: bytes) -> bool:
        return key in self.outcomes

    def add(self, key: bytes, outcome: Outcome) -> None:
        self.outcomes[key] = outcome
        while len(self.outcomes) > REMEMBERED:
            self.outcomes.popitem(last=False)


def answer(job: Job, contexts: Iterable[object], *, compile_seconds: float) -> Iterator[Outcome]:
    """One outcome per context, in input order.

    Memory is bounded by a window, whatever the length of the input. ``compile_seconds`` is
    charged to the contexts of the first group.
    """
    memory = _Memory()
    charge = compile_seconds
    first = 0  # input index of the window's first place
    for window in read_windows(job, contexts, memory.__contains__):
        ready: dict[bytes, Outcome] = {
            key: memory.outcomes[key] for key in window.places if isinstance(key, bytes) and key in memory
        }
        given = set(ready)
        place = 0
        for item, outcome in _run(job, window, charge):
            charge = 0.0
            ready[item.key] = outcome
            memory.add(item.key, outcome)
            while place < len(window.places) and _is_ready(window.places[place], ready):
                yield _given(window.places[place], first + place, ready, given)
                place += 1
        for later in range(place, len(window.places)):
            yield _given(window.places[later], first + later, ready, given)
        first += len(window.places)


def _is_ready(place: bytes | BranchwiseError, ready: dict[bytes, Outcome]) -> bool:
    return not isinstance(place, bytes) or place in ready


def _given(
    place: bytes | BranchwiseError, index: int, ready: dict[bytes, Outcome], given: set[bytes]
) -> Outcome:
    """The outcome at ``place``; one that was given before is marked as reused, or as this index's."""
    if not isinstance(place, bytes):
        return place
    outcome = ready[place]
    if place not in given:
        given.add(place)
        return outcome
    if isinstance(outcome, Decision):
        return replace(outcome, telemetry=replace(outcome.telemetry, reused=True, timing=Timing()))
    if isinstance(outcome, ContextTooLongError):
        return ContextTooLongError(index, outcome.tokens, outcome.limit, outcome.limited_by)
    return outcome


def _run(job: Job, window: Window, compile_seconds: float) -> Iterator[tuple[Item, Outcome]]:
    """Outcomes of the window's items, group by group."""
    fitting: list[Item] = []
    for item in window.items.values():
        error = too_long(job, item)
        if error is None:
            fitting.append(item)
        else:
            yield item, error
    for run in _group_runs(job, fitting):
        if isinstance(run, GroupFailure):
            yield run.item, _does_not_fit(run)
            continue
        yield from _decided(job, run, compile_seconds)
        compile_seconds = 0.0


def _group_runs(job: Job, items: list[Item]) -> Iterator[GroupRun | GroupFailure]:
    if not len(job.compiled.nodes):
        for item in items:
            yield GroupRun((item,), _no_scores(job), 0, 0.0)
        return
    prefix = None  # held so that the cache finds it for the whole call, whatever its bound
    for group in plan_groups(items, lambda item: job.strategy.cost(job.compiled, item), job.budget):
        for run in run_group(job.strategy, job.compiled, group, job.options.legal_mass):
            if isinstance(run, GroupRun):
                prefix = run.scores.prefix or prefix
            yield run


def _no_scores(job: Job) -> GroupScores:
    """A schema in which every answer is certain: nothing is asked of the model."""
    empty = np.empty((1, 0))
    return GroupScores(empty, empty if job.options.legal_mass else None, 0, 0, 0, 0, 0, 0, None)


def _decided(job: Job, run: GroupRun, compile_seconds: float) -> Iterator[tuple[Item, Outcome]]:
    scores, size = run.scores, len(run.items)
    group = Telemetry(
        strategy=job.strategy.name,
        prefills=scores.prefills,
        passes=scores.passes,
        rows=size * len(job.compiled.rows),
        tokens_unique=scores.tokens_unique,
        tokens_computed=scores.tokens_computed,
        tokens_cached=scores.tokens_cached,
        contexts_per_pass=size,
        failed_attempts=run.failed_attempts,
        peak_bytes=scores.peak_bytes,
        group_seconds=run.seconds,
        timing=Timing(compile=compile_seconds / size, forward=run.seconds / size),
    )
    for number, item in enumerate(run.items):
        timing = replace(group.timing, tokenize=item.tokenize_seconds)
        normalizer = scores.log_normalizer
        try:
            outcome: Outcome = assemble_decision(
                job,
                scores.logits[number],
                None if normalizer is None else normalizer[number],
                replace(group, timing=timing),
            )
        except BranchwiseError as exc:
            outcome = exc
        yield item, outcome


def _does_not_fit(failure: GroupFailure) -> BackendMemoryError:
    error = BackendMemoryError(
        f"context {failure.item.index}: its {len(failure.item.token_ids)} tokens do not fit in memory "
        f"even by themselves ({failure.error}); shorten it, or free memory"
    )
    error.__cause__ = failure.error
    return error
