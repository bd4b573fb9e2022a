"""A JSON Schema's subschemas without references and wrappers, and the keywords that stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from branchwise.errors import SchemaError
from branchwise.schema.options import (
    NO_NOTES,
    Notes,
    did_you_mean,
    in_words,
    option_text,
    read_flag,
    read_notes,
    read_text,
)

WRAPPERS = ("$ref", "allOf", "anyOf", "oneOf")
ASSERTIONS = frozenset(
    {
        *WRAPPERS,
        "$dynamicRef",
        "$recursiveRef",
        "additionalItems",
        "additionalProperties",
        "const",
        "contains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "if",
        "items",
        "maxContains",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minContains",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "not",
        "pattern",
        "patternProperties",
        "prefixItems",
        "properties",
        "propertyNames",
        "required",
        "then",
        "type",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
    }
)
"""Keywords that change which values are allowed. Any other one is an annotation."""

Keywords = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Node:
    """A subschema that is neither a reference nor a wrapper around a single one.

    ``layers``: every subschema passed on the way to it, itself last. ``names``: what each is named
    where it stands, empty for a member of a wrapper. ``alternatives``: the members of its anyOf or
    oneOf that are not null. ``refs``: the references that are open here.
    """

    layers: tuple[Keywords, ...]
    names: tuple[str, ...]
    nullable: bool
    alternatives: tuple[Any, ...]
    refs: frozenset[str]

    @property
    def keywords(self) -> Keywords:
        return self.layers[-1]

    def types(self, path: str) -> tuple[str, ...]:
        """The named types, "null" left out; empty when none is named."""
        named = self.keywords.get("type", ())
        listed = (named,) if isinstance(named, str) else named
        if not isinstance(listed, (list, tuple)) or not all(isinstance(item, str) for item in listed):
            raise SchemaError(path, f"'type' is {named!r}", "write the name of a type, or a list of names")
        return tuple(item for item in listed if item != "null")

    def check_keywords(self, path: str, allowed: frozenset[str]) -> None:
        """Raise :class:`SchemaError` for a keyword whose restriction would not be kept."""
        for keyword in self.keywords:
            if keyword in ASSERTIONS and keyword not in allowed:
                raise SchemaError(
                    path, f"{keyword!r} would not be kept", "leave it out and check the decided value for it"
                )

    def text(self, path: str) -> str | None:
        """What the subschema in its place says of itself."""
        return _said(path, self.layers[0], self.names[0])

    def type_text(self, path: str) -> str | None:
        """What the subschemas behind references and in wrappers say of themselves."""
        pairs = zip(self.layers[1:], self.names[1:], strict=True)
        return next((text for layer, name in pairs if (text := _said(path, layer, name))), None)

    def notes(self, path: str) -> Notes:
        """What it says of its options, the outermost first."""
        notes = NO_NOTES
        for layer in self.layers:
            notes = notes.over(read_notes(path, _with_described_enum(path, layer)))
        return notes


def peel(
    path: str, name: str, subschema: Any, document: Keywords, refs: frozenset[str] = frozenset()
) -> Node:
    """Follow ``$ref``, ``allOf`` of one and ``anyOf`` with null to what they hold.

    Raises :class:`SchemaError` for a reference that leads nowhere or back to itself.
    """
    layers: list[Keywords] = []
    names = [name]
    nullable = False
    while True:
        if not isinstance(subschema, Mapping):
            raise SchemaError(
                path, f"{subschema!r} is not a subschema", 'write an object like {"type": "boolean"}'
            )
        layers.append(subschema)
        nullable |= _allows_null(path, subschema)
        wrapper = _wrapper(path, subschema)
        if wrapper == "$ref":
            reference = read_text(path, "$ref", subschema["$ref"])
            if reference in refs:
                raise SchemaError(path, f"{reference!r} contains itself", "nest to a fixed depth")
            refs |= {reference}
            subschema = _referred(path, reference, document)
            names.append(reference.rpartition("/")[2])
            continue
        members = _members(path, wrapper, subschema) if wrapper else []
        present = [member for member in members if not _is_null(member)]
        nullable |= len(present) < len(members)
        if wrapper == "allOf" and len(members) != 1:
            raise SchemaError(path, f"'allOf' combines {len(members)} subschemas", "write them as one")
        if wrapper != "allOf" and (len(present) != 1 or "const" in present[0]):
            return Node(tuple(layers), tuple(names), nullable, tuple(present), refs)
        if "type" in subschema:
            raise SchemaError(path, f"{wrapper!r} and 'type' restrict it together", "write the type inside")
        subschema = members[0] if wrapper == "allOf" else present[0]
        names.append("")


def _wrapper(path: str, subschema: Keywords) -> str | None:
    """The one wrapper of a subschema, beside which nothing else may restrict it."""
    found = [keyword for keyword in WRAPPERS if keyword in subschema]
    if not found:
        return None
    beside = {"type"} if found[0] in ("anyOf", "oneOf") else set()
    for keyword in subschema:
        if keyword in ASSERTIONS and keyword != found[0] and keyword not in beside:
            raise SchemaError(
                path, f"{found[0]!r} and {keyword!r} restrict it together", "write one subschema without both"
            )
    return found[0]


def _members(path: str, wrapper: str, subschema: Keywords) -> list[Keywords]:
    members = subschema[wrapper]
    if not isinstance(members, (list, tuple)) or not members:
        raise SchemaError(path, f"{wrapper!r} is {members!r}", "write a list of subschemas")
    for member in members:
        if not isinstance(member, Mapping):
            raise SchemaError(path, f"{member!r} in {wrapper!r} is not a subschema", "write an object")
    return list(members)


def _is_null(member: Keywords) -> bool:
    return member.get("type") == "null" or ("const" in member and member["const"] is None)


def _allows_null(path: str, subschema: Keywords) -> bool:
    """Whether null is among its types or values, or it is nullable as OpenAPI writes it."""
    types, values = subschema.get("type"), subschema.get("enum")
    return (
        (isinstance(types, (list, tuple)) and "null" in types)
        or (isinstance(values, (list, tuple)) and None in values)
        or read_flag(path, "nullable", subschema.get("nullable", False))
    )


def _referred(path: str, reference: str, document: Keywords) -> Any:
    """What a JSON pointer (RFC 6901) into the document points at."""
    if reference != "#" and not reference.startswith("#/"):
        raise SchemaError(path, f"{reference!r} is not in this document", "copy its definition into '$defs'")
    target: Any = document
    for escaped in reference.split("/")[1:]:
        key = unquote(escaped).replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping) and key in target:
            target = target[key]
        elif isinstance(target, Sequence) and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
        else:
            known = list(target) if isinstance(target, Mapping) else []
            raise SchemaError(path, f"{reference!r} leads nowhere", did_you_mean(key, known))
    return target


def _said(path: str, subschema: Keywords, name: str) -> str | None:
    """A subschema's description, or its title; a title that only repeats its ``name`` says nothing."""
    description = read_text(path, "description", subschema.get("description", ""))
    if description.strip():
        return description
    title = read_text(path, "title", subschema.get("title", ""))
    return title if title.strip() and in_words(title).casefold() != in_words(name).casefold() else None


def _with_described_enum(path: str, subschema: Keywords) -> Keywords:
    """``enumDescriptions`` as a mapping, where it is a list beside ``enum``."""
    given, values = subschema.get("enumDescriptions"), subschema.get("enum")
    if not isinstance(given, (list, tuple)):
        return subschema
    if not isinstance(values, (list, tuple)) or len(values) != len(given):
        raise SchemaError(
            path,
            f"'enumDescriptions' has {len(given)} entries",
            "give one for every value of 'enum' beside it",
        )
    pairs = zip(values, given, strict=True)
    return {
        **subschema,
        "enumDescriptions": {option_text(value): said for value, said in pairs if value is not None},
    }
