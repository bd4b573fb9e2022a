"""``branchwise models``: what can be run, what is here, and how to get it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

models = typer.Typer(help="List, fetch and describe models.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@models.command("list")
def list_command(as_json: AsJson = False) -> None:
    """The models with a short name, and which of them are on this machine."""
    from branchwise.models.store import list_models

    found = list_models()
    if as_json:
        facts = [
            {
                "alias": entry.card.alias,
                "hub_id": entry.card.hub_id,
                "parameters": entry.card.parameters,
                "licence": entry.card.licence,
                "memory_float32": entry.card.float32_bytes,
                "memory_bfloat16": entry.card.bfloat16_bytes,
                "cached": entry.cached,
                "bytes": entry.nbytes,
                "note": entry.card.note,
            }
            for entry in found
        ]
        typer.echo(json.dumps(facts, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("alias", "parameters", "memory", "licence", "here", "note"):
        table.add_column(title)
    for entry in found:
        table.add_row(
            entry.card.alias,
            _count(entry.card.parameters),
            f"{_size(entry.card.bfloat16_bytes)} bf16",
            entry.card.licence,
            _size(entry.nbytes) if entry.cached else "-",
            entry.card.note,
        )
    Console(highlight=False).print(table)


@models.command()
def pull(model: Annotated[str, typer.Argument(help="Alias, hub id or .gguf file.")]) -> None:
    """Fetch a model (and convert it, if it is a GGUF file) so that it loads quickly."""
    from branchwise.models import pull as fetching

    folder = fetching.pull(model)
    typer.echo(f"{folder.name} {folder.revision} ({folder.source}, {_size(folder.nbytes)}): {folder.path}")


@models.command()
def info(
    model: Annotated[str, typer.Argument(help="Alias, hub id, folder or .gguf file.")],
    as_json: AsJson = False,
) -> None:
    """What is known of a model. Nothing is fetched."""
    from branchwise.models import store

    facts = store.info(model)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    for name, fact in facts.items():
        typer.echo(f"{name.replace('_', ' '):<16} {fact}")


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.1f} B" if parameters >= 1e9 else f"{parameters / 1e6:.0f} M"


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.0f} MB"
