"""Built-in schemas with contexts to try them on, each a JSON file beside this one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from branchwise.config import check_choice

_SUFFIX = ".json"


@dataclass(frozen=True)
class Preset:
    """A schema in our own JSON form (``schema_document``) and some contexts of its kind."""

    id: str
    title: str
    description: str
    schema_document: dict[str, Any]
    contexts: tuple[str, ...]


def preset_names() -> tuple[str, ...]:
    """The presets by name, in alphabetical order."""
    files = resources.files(__name__).iterdir()
    return tuple(sorted(file.name.removesuffix(_SUFFIX) for file in files if file.name.endswith(_SUFFIX)))


def load_preset(name: str) -> Preset:
    """The preset of that name. Raises :class:`~branchwise.errors.ConfigError` for an unknown one."""
    check_choice("preset", name, preset_names())
    text = resources.files(__name__).joinpath(name + _SUFFIX).read_text(encoding="utf-8")
    found = json.loads(text)
    return Preset(
        id=found["id"],
        title=found["title"],
        description=found["description"],
        schema_document=found["schema"],
        contexts=tuple(found["contexts"]),
    )
