"""A schema from whatever a user has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from branchwise.errors import SchemaError
from branchwise.schema.questions import Schema

if TYPE_CHECKING:
    from pydantic import BaseModel

SchemaSource: TypeAlias = Union["type[BaseModel]", Mapping[str, Any], Schema]

_JSON_SCHEMA_KEYS = frozenset({"$schema", "$defs", "$ref", "definitions", "properties", "allOf"})


def schema_from_any(source: object) -> Schema:
    """The schema of a Pydantic model class, a JSON Schema document, our own JSON form, or itself.

    Raises :class:`SchemaError` for anything else, and for questions that can't be decided.
    """
    if isinstance(source, Schema):
        return source
    if isinstance(source, Mapping):
        if _JSON_SCHEMA_KEYS & set(source):
            from branchwise.schema.from_json_schema import schema_from_json_schema

            return schema_from_json_schema(source)
        from branchwise.schema.from_json import schema_from_document

        return schema_from_document(source)
    if isinstance(source, type) and hasattr(source, "model_fields"):
        from branchwise.schema.from_pydantic import schema_from_model

        return schema_from_model(source)
    raise SchemaError(
        "",
        f"{source!r} is no schema",
        "give a Pydantic model class, a JSON Schema document, a document with 'questions', or a Schema",
    )
