"""Decisions as tables on a terminal. Numbers are rounded here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from branchwise.engine.job import Outcome
from branchwise.errors import BranchwiseError
from branchwise.prompt import context_text
from branchwise.results import Decision, FieldResult
from branchwise.schema.score import Score

SHOWN_CHARACTERS = 100


def print_outcomes(contexts: Sequence[Any], outcomes: Sequence[Outcome]) -> None:
    """A table per decision, and one line about what all of them cost."""
    console = Console(highlight=False)
    for context, outcome in zip(contexts, outcomes, strict=True):
        if isinstance(outcome, BranchwiseError):
            console.print(f"[red]{type(outcome).__name__}[/]: ", end="")
            console.print(str(outcome), markup=False)
            continue
        console.print(_shortened(context), style="bold", markup=False)
        console.print(_table(outcome))
    decisions = [outcome for outcome in outcomes if isinstance(outcome, Decision)]
    if decisions:
        console.print(_summary(decisions), style="dim", markup=False)


def _table(decision: Decision[Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("field")
    table.add_column("answer")
    for title in ("P", "margin", "legal mass"):
        table.add_column(title, justify="right")
    table.add_column("next best")
    for result in decision.fields.values():
        mass = "" if result.legal_mass is None else f"{result.legal_mass:.3f}"
        table.add_row(
            result.name,
            _answer(result),
            f"{result.probability:.3f}",
            f"{result.margin:.3f}",
            mass,
            _next_best(result),
        )
    return table


def _answer(result: FieldResult) -> str:
    value = result.value
    if isinstance(value, Score):
        return f"{value.level} ({value.expected:.2f})"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "(none)"
    return str(value)


def _next_best(result: FieldResult) -> str:
    if not result.alternatives:
        return ""
    best = result.alternatives[0]
    return f"{best.text} {best.probability:.3f}"


def _shortened(context: Any) -> str:
    text = " ".join(context_text(context, 0).split())
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def _summary(decisions: Sequence[Decision[Any]]) -> str:
    """One line: how many answers, how long, by what."""
    seconds = sum(decision.telemetry.timing.total for decision in decisions)
    answers = sum(len(decision.fields) for decision in decisions)
    made = decisions[0].provenance
    return (
        f"{answers} answers about {len(decisions)} contexts in {seconds:.2f} s · "
        f"{made.model} ({made.backend}, {made.device}, {made.dtype}) · prompt {made.prompt_version}, "
        f"{made.layout}, {made.answers}"
    )
