"""``branchwise decide``: answer a schema about one or more contexts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from branchwise.config import AnswerForm, CallOptions, LayoutName, StrategyName
from branchwise.errors import BranchwiseError, ConfigError


def decide(  # noqa: PLR0913, PLR0917 - one parameter per option of the command
    model: Annotated[str, typer.Option(help="Alias, hub id, folder or .gguf file.")] = "smollm2-135m",
    preset: Annotated[str | None, typer.Option(help="A built-in schema with example contexts.")] = None,
    schema: Annotated[Path | None, typer.Option(help="Schema file: JSON Schema or our own form.")] = None,
    context: Annotated[
        list[str] | None,
        typer.Option(help="Context file (.json is read as data), or - for standard input; repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    temperature: Annotated[float, typer.Option(help="Divides log-probabilities.")] = 1.0,
    strategy: Annotated[StrategyName, typer.Option()] = "packed",
    layout: Annotated[LayoutName, typer.Option()] = "shared",
    answers: Annotated[AnswerForm, typer.Option()] = "labels",
    backend: Annotated[str | None, typer.Option(help="Runtime; chosen if not named.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps; chosen if not named.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
) -> None:
    """Answer every question of a schema about every context."""
    document, contexts = _inputs(preset, schema, context)

    from branchwise.api import Decider
    from branchwise.schema.build import schema_from_any

    CallOptions(temperature)  # refused before the model is loaded
    checked = schema_from_any(document)
    decider = Decider(
        model,
        backend=backend,
        device=device,
        dtype=dtype,
        strategy=strategy,
        layout=layout,
        answers=answers,
    )
    outcomes = list(decider.decide_many(checked, contexts, temperature=temperature, on_error="return"))
    if as_json:
        found = [_as_dict(outcome) for outcome in outcomes]
        typer.echo(json.dumps(found[0] if len(found) == 1 else found, ensure_ascii=False, indent=2))
    else:
        from branchwise.cli.tables import print_outcomes

        print_outcomes(contexts, outcomes)
    if any(isinstance(outcome, BranchwiseError) for outcome in outcomes):
        raise typer.Exit(1)


def _inputs(
    preset: str | None, schema: Path | None, context: list[str] | None
) -> tuple[dict[str, Any], list[Any]]:
    """The schema document and the contexts, from a preset or from files."""
    if (preset is None) == (schema is None):
        raise typer.BadParameter("give either --preset NAME or --schema FILE")
    contexts = [_read_context(name) for name in context or ()]
    if schema is not None:
        if not contexts:
            raise typer.BadParameter("give the context to decide about with --context FILE, or - to type it")
        return _read_json(schema), contexts
    from branchwise.presets import load_preset

    chosen = load_preset(preset or "")
    return chosen.schema_document, contexts or list(chosen.contexts)


def _read_context(name: str) -> Any:
    if name == "-":
        return sys.stdin.read()
    path = Path(name)
    return _read_json(path) if path.suffix == ".json" else _read_text(path)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(_read_text(path))
    except json.JSONDecodeError as exc:
        raise ConfigError(f"{path} is not JSON: {exc}") from exc


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"{path} can't be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path} is not UTF-8 text: {exc.reason} at byte {exc.start}") from exc


def _as_dict(outcome: Any) -> dict[str, Any]:
    if isinstance(outcome, BranchwiseError):
        return {"error": {"type": type(outcome).__name__, "message": str(outcome)}}
    found: dict[str, Any] = outcome.to_dict()
    return found
