"""Any description of the questions → a Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from branchwise.errors import SchemaError
from branchwise.schema.questions import Schema

if TYPE_CHECKING:
    from pydantic import BaseModel

SchemaSource: TypeAlias = "Schema | type[BaseModel] | Mapping[str, Any]"

JSON_SCHEMA_KEYS = ("properties", "$ref", "$defs", "$schema", "definitions", "allOf")


def schema_from_any(source: object) -> Schema:
    """The questions of a Pydantic model class, a JSON Schema document, our own JSON form, or a Schema.

    A mapping is a JSON Schema when it has one of :data:`JSON_SCHEMA_KEYS`. Raises
    :class:`SchemaError` for anything else, and for what can't be decided.
    """
    match source:
        case Schema():
            return source
        case Mapping() if any(key in source for key in JSON_SCHEMA_KEYS):
            from branchwise.schema.from_json_schema import schema_from_json_schema

            return schema_from_json_schema(source)
        case Mapping():
            from branchwise.schema.from_json import schema_from_document

            return schema_from_document(source)
        case type() if hasattr(source, "model_fields"):
            from branchwise.schema.from_pydantic import schema_from_model

            return schema_from_model(source)
    raise SchemaError(
        "",
        f"{source!r} is no schema",
        "give a Pydantic model class, a JSON Schema, a document with 'questions', or a Schema",
    )
