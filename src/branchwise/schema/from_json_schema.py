"""A JSON Schema document → a schema whose answers build a JSON value that it allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from branchwise.errors import SchemaError
from branchwise.schema.json_nodes import Keywords, Node, peel
from branchwise.schema.nesting import LevelValue, NestedBuilder, Slot
from branchwise.schema.options import (
    Answers,
    Notes,
    check_known,
    group_text,
    integer_levels,
    make_question,
    option_text,
    question_text,
    refuse_notes,
    whole_number,
)
from branchwise.schema.questions import Option, Question, Schema

MAX_DEPTH = 32
MAX_QUESTIONS = 4096

OBJECT = frozenset({"type", "properties", "required", "additionalProperties", "unevaluatedProperties"})
BOOLEAN = frozenset({"type"})
VALUES = frozenset({"type", "enum", "const"})
ALTERNATIVES = frozenset({"type", "anyOf", "oneOf"})
ARRAY = frozenset({"type", "items", "uniqueItems"})
INTEGER = frozenset({"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})

TYPE_OF = {"string": str, "integer": int, "number": int}
INSTEAD = {
    "integer": ("a free integer can't be decided", "give it 'minimum' and 'maximum', or list an 'enum'"),
    "string": ("a free string can't be decided", "list the allowed strings under 'enum'"),
    "number": ("a free number can't be decided", "list the allowed values under 'enum'"),
    "null": ("null alone leaves nothing to decide", "leave the field out"),
}
SUPPORTED = "use a boolean, an enum, an array of an enum, an integer with both bounds, or an object of these"


@dataclass(frozen=True, slots=True)
class _Group:
    """An object in its place."""

    node: Node
    path: tuple[str, ...] = ()
    text: str | None = None


def schema_from_json_schema(document: Mapping[str, Any]) -> Schema:
    """The questions that an object's properties ask; every property is asked, required or not.

    A property is decided when it is a boolean, an ``enum`` or ``const`` of strings or integers, a
    ``oneOf``/``anyOf`` of described constants, an array of one of these (any of N), an integer with
    both bounds (a scale), or an object of such properties; behind a local ``$ref`` too. Null among
    its types or values makes it nullable. A description, else a title, is the question, else the
    property's name in words. ``x-choice-descriptions`` or ``enumDescriptions`` describe options,
    ``"x-ordered": true`` makes them levels, lowest first. The built value holds the document's own
    values.

    Raises :class:`SchemaError` for the first property that can't be decided, and for a keyword
    whose restriction would not be kept.
    """
    if not isinstance(document, Mapping):
        raise SchemaError("", f"a JSON Schema is an object, not a {type(document).__name__}", "give a dict")
    node = peel("", "", document, document)
    if not _is_object("", node) or node.nullable:
        raise SchemaError(
            "", "the document is not an object", 'write {"type": "object", "properties": {...}}'
        )
    questions: list[Question] = []
    slots: list[Slot] = []
    for question, slot in _properties(_Group(node), document):
        questions.append(question)
        slots.append(slot)
        if len(questions) > MAX_QUESTIONS:
            raise SchemaError("", f"has more than {MAX_QUESTIONS} questions", "split it into several schemas")
    title = (node.text("") or "").strip().partition("\n\n")[0]
    return Schema(tuple(questions), " ".join(title.split()), NestedBuilder(tuple(slots)))


def _properties(group: _Group, document: Keywords) -> Iterator[tuple[Question, Slot]]:
    """The questions of an object and of the objects in it, in order, and where their answers go."""
    dotted = ".".join(group.path)
    refuse_notes(dotted, group.node.notes(dotted))
    for name, subschema in _checked_properties(dotted, group.node).items():
        path = (*group.path, name)
        dotted = ".".join(path)
        if "." in name:
            raise SchemaError(dotted, f"the name {name!r} reads as a nested field", "write it without a dot")
        node = peel(dotted, name, subschema, document, group.node.refs)
        own = node.text(dotted)
        if _is_object(dotted, node):
            if node.nullable:
                raise SchemaError(
                    dotted, "an object that may be null can't be decided", "make its properties nullable"
                )
            if len(path) > MAX_DEPTH:
                raise SchemaError(dotted, f"is nested more than {MAX_DEPTH} deep", "flatten the document")
            yield from _properties(_Group(node, path, group_text(dotted, own, group.text)), document)
            continue
        answers, notes, type_text = _answers(dotted, node, document)
        text = question_text(dotted, own or type_text, group.text)
        question = make_question(dotted, text, answers, notes)
        convert = LevelValue(question.options) if question.kind == "score" else None
        yield question, Slot(path, path, question.nullable, convert)


def _is_object(path: str, node: Node) -> bool:
    types = node.types(path)
    return types == ("object",) or (not types and "properties" in node.keywords)


def _checked_properties(path: str, node: Node) -> Mapping[str, Any]:
    """An object's properties, once its other keywords are known to ask for nothing else."""
    node.check_keywords(path, OBJECT)
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if not isinstance(node.keywords.get(keyword, True), bool):
            raise SchemaError(
                path, f"{keyword!r} allows fields without a name", "list every field under 'properties'"
            )
    properties = node.keywords.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        raise SchemaError(path, "an object without properties leaves nothing to decide", "list 'properties'")
    if not all(isinstance(name, str) for name in properties):
        raise SchemaError(path, "a property's name is not a string", "write every name as a string")
    required = node.keywords.get("required", [])
    if not isinstance(required, (list, tuple)):
        raise SchemaError(path, f"'required' is {required!r}", "write a list of property names")
    check_known(path, "required property", required, properties)
    return properties


def _answers(path: str, node: Node, document: Keywords) -> tuple[Answers, Notes, str | None]:
    """What a property's type allows, what it says of the options, and its description elsewhere."""
    notes, text = node.notes(path), node.type_text(path)
    types = node.types(path)
    if types != ("array",) and (types or "items" not in node.keywords):
        return replace(_single(path, node), nullable=node.nullable), notes, text
    node.check_keywords(path, ARRAY)
    if "items" not in node.keywords:
        raise SchemaError(path, "an array without 'items'", "list the options under 'items': {'enum': [...]}")
    items = peel(path, "", node.keywords["items"], document, node.refs)
    if _is_object(path, items):
        raise SchemaError(
            path, "an array of objects can't be decided", "give every part a property of its own"
        )
    found = _single(path, items)
    if found.kind != "choice" or items.nullable:
        raise SchemaError(path, "its items are not strings or integers of a list", "use items with an 'enum'")
    text = text or items.text(path) or items.type_text(path)
    return replace(found, kind="multi", nullable=node.nullable), notes.over(items.notes(path)), text


def _single(path: str, node: Node) -> Answers:
    """What a property that is not an array allows."""
    types = node.types(path)
    if node.alternatives:
        node.check_keywords(path, ALTERNATIVES)
        return Answers("choice", tuple(_constant(path, member, types) for member in node.alternatives))
    if "enum" in node.keywords or "const" in node.keywords:
        node.check_keywords(path, VALUES)
        values = _values(path, node.keywords)
        return Answers("choice", tuple(_option(path, value, types) for value in values))
    if types == ("boolean",):
        node.check_keywords(path, BOOLEAN)
        return Answers("boolean")
    if types == ("integer",):
        node.check_keywords(path, INTEGER)
        return Answers("score", _levels(path, node.keywords))
    named = types or ("null",) * ("type" in node.keywords)
    if len(named) == 1 and named[0] in INSTEAD:
        raise SchemaError(path, *INSTEAD[named[0]])
    raise SchemaError(
        path, f"the type {' or '.join(types) or 'is not named, which'} can't be decided", SUPPORTED
    )


def _values(path: str, keywords: Keywords) -> list[Any]:
    """The values under ``enum`` or ``const``, null left out."""
    values = keywords.get("enum", [keywords.get("const")])
    if not isinstance(values, (list, tuple)):
        raise SchemaError(path, f"'enum' is {values!r}", "write a list of values")
    if "const" in keywords and list(values) != [keywords["const"]]:
        raise SchemaError(path, "'const' and 'enum' restrict it together", "write one of them")
    return [value for value in values if value is not None]


def _option(path: str, value: Any, types: tuple[str, ...]) -> Option:
    if isinstance(value, bool):
        raise SchemaError(path, f"option {value!r} is a boolean", 'write {"type": "boolean"}')
    if not isinstance(value, (str, int)):
        raise SchemaError(
            path, f"option {value!r} is a {type(value).__name__}", "use options that are strings or integers"
        )
    if types and not any(isinstance(value, TYPE_OF.get(name, ())) for name in types):
        raise SchemaError(
            path, f"option {value!r} is not of type {' or '.join(types)}", "correct one of them"
        )
    return Option(option_text(value), value)


def _constant(path: str, member: Keywords, types: tuple[str, ...]) -> Option:
    """The option that a member of ``oneOf`` or ``anyOf`` allows, described by its title or description."""
    values = _values(path, member) if {"const", "enum"} & set(member) else []
    if len(values) != 1:
        raise SchemaError(
            path,
            "a union of several types can't be decided",
            "put all options in one 'enum', or a 'const' each",
        )
    node = Node((member,), (option_text(values[0]),), False, (), frozenset())
    node.check_keywords(path, VALUES)
    option = _option(path, values[0], node.types(path) or types)
    return replace(option, description=node.text(path))


def _levels(path: str, keywords: Keywords) -> tuple[Option, ...]:
    """The integers between both bounds."""
    bounds = {
        name: whole_number(path, name, keywords[name]) for name in INTEGER - {"type"} if name in keywords
    }
    lows = [bounds[name] + step for name, step in (("minimum", 0), ("exclusiveMinimum", 1)) if name in bounds]
    highs = [
        bounds[name] - step for name, step in (("maximum", 0), ("exclusiveMaximum", 1)) if name in bounds
    ]
    if not lows or not highs:
        raise SchemaError(path, *INSTEAD["integer"])
    return integer_levels(path, max(lows), min(highs))
