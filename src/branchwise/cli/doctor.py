"""``branchwise doctor``: what works on this machine, and why the rest does not."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
from typing import Annotated, Any

import typer


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Say which runtimes and models can be used here."""
    found = examine()
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for title, facts in found.items():
        typer.echo(title)
        for name, fact in facts.items():
            typer.echo(f"  {name:<14} {fact}")


def examine() -> dict[str, dict[str, Any]]:
    """Facts by heading: machine, packages, backends, models."""
    from branchwise.backends.registry import RUNTIMES
    from branchwise.models.store import cache_folder, list_models

    packages = ("branchwise", "numpy", "pydantic", "tokenizers", "torch", "transformers", "mlx-lm")
    return {
        "machine": {
            "python": sys.version.split()[0],
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "memory": _memory(),
        },
        "packages": {name: _version(name) for name in packages},
        "backends": {name: _usable(runtime) for name, runtime in RUNTIMES.items()},
        "torch": _torch_facts() if not RUNTIMES["torch"].missing() else {"devices": "not installed"},
        "models": {
            "cache": str(cache_folder()),
            **{entry.card.alias: "here" if entry.cached else "not fetched" for entry in list_models()},
        },
    }


def _usable(runtime: Any) -> str:
    missing = runtime.missing()
    if not missing:
        return "usable"
    return f"missing {', '.join(missing)}; run: pip install 'branchwise[{runtime.extra}]'"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _memory() -> str:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return "unknown"
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"


def _torch_facts() -> dict[str, Any]:
    import torch

    from branchwise.backends.torch_device import choose_device, choose_dtype

    device = choose_device(None)
    return {
        "device": str(device),
        "dtype": str(choose_dtype(None, device)).removeprefix("torch."),
        "threads": torch.get_num_threads(),
    }
