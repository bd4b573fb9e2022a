"""Dotted names of nested fields, and the nested value they are rebuilt into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from branchwise.errors import SchemaError

Path = tuple[str, ...]


def dotted(path: Path) -> str:
    return ".".join(path)


def checked_name(path: Path) -> str:
    """The question name of ``path``. Raises :class:`SchemaError` when a key holds a dot."""
    name = dotted(path)
    if any("." in key for key in path):
        raise SchemaError(name, "its key holds a dot, which separates nested fields", "rename the key")
    return name


def nested(paths: Sequence[Path], answers: Mapping[str, Any]) -> dict[str, Any]:
    """``{"a.b": 1}`` → ``{"a": {"b": 1}}``, for every path."""
    value: dict[str, Any] = {}
    for path in paths:
        here = value
        for key in path[:-1]:
            here = here.setdefault(key, {})
        here[path[-1]] = answers[dotted(path)]
    return value
