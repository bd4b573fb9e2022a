"""A progress bar on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

ItemT = TypeVar("ItemT")


def with_progress(outcomes: Iterator[ItemT], total: int | None) -> Iterator[ItemT]:
    """The same items, counted on a bar while they are taken."""
    columns = (TextColumn("decisions"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("decisions", total=total)
        for outcome in outcomes:
            yield outcome
            bar.advance(task)
