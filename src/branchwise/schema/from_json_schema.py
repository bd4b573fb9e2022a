"""Questions from a JSON Schema document (2020-12 and older drafts, the part that can be decided)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from branchwise.errors import SchemaError
from branchwise.schema.questions import (
    MAX_LEVELS,
    BooleanQuestion,
    ChoiceQuestion,
    MultiQuestion,
    Option,
    Question,
    Schema,
    ScoreQuestion,
)
from branchwise.schema.tree import Path, checked_name, dotted, nested

_ANNOTATIONS = frozenset(
    {"$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default"}
    | {"examples", "deprecated", "readOnly", "writeOnly"}
)
_OBJECT = frozenset({"type", "properties", "required", "additionalProperties"})
_OWN = frozenset({"x-choice-descriptions", "enumDescriptions", "x-ordered"})
_FIX = (
    "use boolean, enum, const, oneOf consts, an array of an enum, "
    f"or an integer with minimum and maximum (at most {MAX_LEVELS} values)"
)


def schema_from_json_schema(document: Mapping[str, Any]) -> Schema:
    """The schema of an object document.

    Nested objects are flattened to dotted names and rebuilt in the value, which is a dict of the
    document's own JSON values. ``x-choice-descriptions`` (or ``enumDescriptions``) describes
    options, ``x-ordered: true`` makes a scale of an enum. Raises :class:`SchemaError` with the
    field's dotted path for what can't be decided, and for keywords that would be ignored.
    """
    reader = _Reader(document)
    root = reader.resolved(document, ())
    if "properties" not in root:
        raise SchemaError("", "the document describes no object with properties", "give 'properties'")
    fields = reader.object_fields(root, (), ())
    paths = [field.path for field in fields]
    scales = {field.question.name: field.levels for field in fields if field.levels is not None}

    def build(answers: Mapping[str, Any]) -> dict[str, Any]:
        written = {
            name: scales[name][answer.index] if name in scales and answer is not None else answer
            for name, answer in answers.items()
        }
        return nested(paths, written)

    return Schema(tuple(field.question for field in fields), title=str(root.get("title", "")), build=build)


@dataclass(frozen=True)
class _Field:
    """A question, where its answer goes, and for a scale the JSON value of each level."""

    question: Question
    path: Path
    levels: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class _Reader:
    document: Mapping[str, Any]

    def object_fields(self, node: Mapping[str, Any], path: Path, seen: tuple[str, ...]) -> list[_Field]:
        _check_keywords(node, path, _OBJECT)
        if not isinstance(node.get("additionalProperties", False), bool):
            raise SchemaError(dotted(path), "'additionalProperties' is a schema", "list the properties")
        found: list[_Field] = []
        for key, child in node["properties"].items():
            here = (*path, str(key))
            if not isinstance(child, Mapping):
                raise SchemaError(dotted(here), f"its schema is {child!r}", _FIX)
            names = (*seen, *([child["$ref"]] if "$ref" in child else []))
            if len(set(names)) != len(names):
                raise SchemaError(dotted(here), f"{child['$ref']!r} contains itself", "flatten it")
            whole = self.resolved(child, here)
            if "properties" in whole:
                found += self.object_fields(whole, here, names)
            else:
                found.append(self.field(whole, here))
        return found

    def resolved(self, node: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
        """``node`` with its ``$ref`` and one-element ``allOf`` replaced by what they name."""
        for _ in range(64):
            if "$ref" in node:
                rest = {key: value for key, value in node.items() if key != "$ref"}
                node = {**self._target(node["$ref"], path), **rest}
            elif "allOf" in node:
                if not isinstance(node["allOf"], Sequence) or len(node["allOf"]) != 1:
                    raise SchemaError(dotted(path), "'allOf' has several elements", "merge them into one")
                rest = {key: value for key, value in node.items() if key != "allOf"}
                node = {**node["allOf"][0], **rest}
            else:
                return node
        raise SchemaError(dotted(path), "its '$ref' leads in a circle", "flatten it")

    def _target(self, reference: Any, path: Path) -> Mapping[str, Any]:
        if not isinstance(reference, str) or not reference.startswith("#/"):
            raise SchemaError(dotted(path), f"'$ref' {reference!r} leaves the document", "copy it into $defs")
        here: Any = self.document
        for part in reference[2:].split("/"):
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if not isinstance(here, Mapping) or key not in here:
                raise SchemaError(dotted(path), f"'$ref' {reference!r} names nothing", "correct it")
            here = here[key]
        if not isinstance(here, Mapping):
            raise SchemaError(dotted(path), f"'$ref' {reference!r} names no schema", "correct it")
        return here

    def field(self, node: Mapping[str, Any], path: Path) -> _Field:
        name = checked_name(path)
        node, nullable = self._without_null(node, path)
        text = str(node.get("description") or node.get("title") or path[-1].replace("_", " "))
        if node.get("type") == "array":
            return _Field(self._multi(node, path, text, nullable), path)
        if node.get("type") == "boolean" and "enum" not in node and "const" not in node:
            _check_keywords(node, path, _OWN | {"type"})
            meanings = _descriptions(node, name)
            _check_described(name, meanings, ("true", "false"))
            question = BooleanQuestion(name, text, nullable, meanings.get("true"), meanings.get("false"))
            return _Field(question, path)
        options = self._options(node, path)
        if node.get("x-ordered") is True or (node.get("type") == "integer" and "minimum" in node):
            values = tuple(option.value for option in options)
            return _Field(ScoreQuestion(name, text, options, nullable), path, values)
        return _Field(ChoiceQuestion(name, text, options, nullable), path)

    def _without_null(self, node: Mapping[str, Any], path: Path) -> tuple[Mapping[str, Any], bool]:
        """``node`` without its null, in any of the spellings, and whether it had one."""
        nullable = False
        for word in ("anyOf", "oneOf"):
            branches = node.get(word)
            if not isinstance(branches, list):
                continue
            kept = [branch for branch in branches if branch not in ({"type": "null"}, {"const": None})]
            nullable = nullable or len(kept) < len(branches)
            rest = {key: value for key, value in node.items() if key != word}
            node = {**self.resolved(kept[0], path), **rest} if len(kept) == 1 else {**rest, word: kept}
        if isinstance(node.get("type"), list):
            kinds = [kind for kind in node["type"] if kind != "null"]
            if len(kinds) != 1:
                raise SchemaError(dotted(path), f"it may be any of the types {kinds}", "name one type")
            nullable = nullable or len(kinds) < len(node["type"])
            node = {**node, "type": kinds[0]}
        if isinstance(node.get("enum"), list) and None in node["enum"]:
            nullable = True
            node = {**node, "enum": [value for value in node["enum"] if value is not None]}
        return node, nullable

    def _multi(self, node: Mapping[str, Any], path: Path, text: str, nullable: bool) -> MultiQuestion:
        _check_keywords(node, path, _OWN | {"type", "items", "uniqueItems"})
        items = node.get("items")
        if not isinstance(items, Mapping):
            raise SchemaError(dotted(path), "an array without 'items' can't be decided", _FIX)
        inner = {**{key: node[key] for key in _OWN & set(node)}, **self.resolved(items, path)}
        options = self._options(inner, path)
        return MultiQuestion(dotted(path), text, options, nullable)

    def _options(self, node: Mapping[str, Any], path: Path) -> tuple[Option, ...]:
        name = dotted(path)
        described = _descriptions(node, name)
        if "const" in node:
            _check_keywords(node, path, _OWN | {"type", "const"})
            values: list[Any] = [node["const"]]
        elif isinstance(node.get("enum"), list):
            _check_keywords(node, path, _OWN | {"type", "enum"})
            values = node["enum"]
        elif isinstance(node.get("oneOf", node.get("anyOf")), list):
            _check_keywords(node, path, _OWN | {"type", "oneOf", "anyOf"})
            branches = [self.resolved(b, path) for b in node.get("oneOf", node.get("anyOf"))]
            if not all("const" in branch for branch in branches):
                raise SchemaError(name, "a union of schemas can't be decided", _FIX)
            values = [branch["const"] for branch in branches]
            for branch in branches:
                meaning = branch.get("description") or branch.get("title")
                if meaning is not None:
                    described.setdefault(_shown(branch["const"]), str(meaning))
        elif node.get("type") == "integer" and {"minimum", "maximum"} <= set(node):
            _check_keywords(node, path, _OWN | {"type", "minimum", "maximum"})
            values = _integers(name, node["minimum"], node["maximum"])
        else:
            raise SchemaError(name, f"{_kind(node)} can't be decided", _FIX)
        for value in values:
            if isinstance(value, bool) or not isinstance(value, (str, int)):
                raise SchemaError(name, f"option {value!r} is no text and no whole number", "use texts")
        texts = [_shown(value) for value in values]
        _check_described(name, described, texts)
        return tuple(Option(t, value, described.get(t)) for t, value in zip(texts, values, strict=True))


def _integers(name: str, least: Any, most: Any) -> list[int]:
    if not all(isinstance(bound, int) and not isinstance(bound, bool) for bound in (least, most)):
        raise SchemaError(name, f"the bounds {least!r} and {most!r} are no whole numbers", "use integers")
    if not 0 <= most - least < MAX_LEVELS:
        raise SchemaError(name, f"there are {most - least + 1} numbers", f"allow 1 to {MAX_LEVELS}")
    return list(range(least, most + 1))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _kind(node: Mapping[str, Any]) -> str:
    kind = node.get("type", "a schema without a type")
    return "a free string" if kind == "string" else f"an unbounded {kind}" if kind == "integer" else f"{kind}"


def _descriptions(node: Mapping[str, Any], name: str) -> dict[str, str]:
    found = node.get("x-choice-descriptions", node.get("enumDescriptions", {}))
    if isinstance(found, list) and isinstance(node.get("enum"), list):
        found = dict(zip(map(_shown, node["enum"]), found, strict=False))
    if not isinstance(found, Mapping):
        raise SchemaError(name, "the option descriptions are no mapping", "give a mapping of option to text")
    return {str(option): str(text) for option, text in found.items()}


def _check_described(name: str, described: Mapping[str, str], options: Sequence[str]) -> None:
    for option in described:
        if option not in options:
            raise SchemaError(
                name,
                f"a description is given for {option!r}, which is no option",
                f"the options are {', '.join(map(repr, options))}",
            )


def _check_keywords(node: Mapping[str, Any], path: Path, allowed: frozenset[str]) -> None:
    """Refuse a keyword that would change the meaning and is not understood here."""
    for keyword in node:
        unknown = keyword not in allowed and keyword not in _ANNOTATIONS
        if unknown and not (keyword.startswith("x-") and keyword not in _OWN):
            raise SchemaError(dotted(path), f"keyword {keyword!r} can't be honoured", "remove it")
