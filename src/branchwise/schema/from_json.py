"""Our own JSON form of a schema, read and written.

    {"title": "Ticket",
     "questions": {
        "urgent": {"type": "boolean", "text": "Is it urgent?", "true": "needs an answer today"},
        "customer.tier": {"type": "choice", "options": ["free", "paid"], "nullable": true},
        "tags": {"type": "multi", "options": {"refund": "wants money back", "login": null}},
        "severity": {"type": "score", "levels": ["cosmetic", "annoying", "blocking"]}}}

An option is its text, an integer, or ``{"text": ..., "value": ..., "description": ...}`` where
the answered value is not the text. A dotted name answers inside an object of that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from branchwise.errors import SchemaError
from branchwise.schema.nesting import NestedBuilder, Slot
from branchwise.schema.options import (
    NO_NOTES,
    Answers,
    Notes,
    check_known,
    make_question,
    option_text,
    question_text,
    read_descriptions,
    read_flag,
    read_text,
)
from branchwise.schema.questions import BooleanQuestion, Option, Question, Schema

COMMON = ("type", "text", "nullable")
KEYS = {
    "boolean": (*COMMON, "true", "false"),
    "choice": (*COMMON, "options"),
    "multi": (*COMMON, "options"),
    "score": (*COMMON, "levels", "options"),
}
PLAIN = (str, int, float, bool)


def schema_from_document(document: Mapping[str, Any]) -> Schema:
    """The schema that a document in our own form describes.

    Raises :class:`SchemaError` for an unknown key, naming the nearest one, and for a question
    that can't be decided.
    """
    _check_object("", "a schema document", document)
    check_known("", "key", document, ("title", "questions"))
    if "questions" not in document:
        raise SchemaError("", "has no 'questions'", 'write {"questions": {name: {"type": ...}}}')
    listed = document["questions"]
    _check_object("", "'questions'", listed)
    if not listed:
        raise SchemaError("", "asks nothing", "add a question")
    questions = tuple(_question(name, given) for name, given in listed.items())
    slots = _slots(questions)
    return Schema(questions, read_text("", "title", document.get("title", "")), NestedBuilder(slots))


def schema_to_document(schema: Schema) -> dict[str, Any]:
    """The document in our own form that asks the same questions.

    Enum members become their values. Raises :class:`SchemaError` for an option whose value is
    not a string, number or boolean.
    """
    document: dict[str, Any] = {"title": schema.title} if schema.title else {}
    document["questions"] = {question.name: _written(question) for question in schema.questions}
    return document


def _question(name: str, given: Any) -> Question:
    if not isinstance(name, str):
        raise SchemaError("", f"the question name {name!r} is not a string", "write every name as a string")
    _check_object(name, "a question", given)
    if "type" not in given:
        raise SchemaError(name, "has no 'type'", f"use one of {', '.join(map(repr, KEYS))}")
    kind = given["type"]
    if not isinstance(kind, str):
        raise SchemaError(name, f"'type' is {kind!r}", f"use one of {', '.join(map(repr, KEYS))}")
    check_known(name, "type", [kind], KEYS)
    check_known(name, f"key of a {kind} question", given, KEYS[kind])
    text = question_text(name, read_text(name, "text", given.get("text", "")).strip() or None, None)
    nullable = read_flag(name, "nullable", given.get("nullable", False))
    match kind:
        case "boolean":
            said = {key: given[key] for key in ("true", "false") if key in given}
            notes = Notes(read_descriptions(name, said))
            return make_question(name, text, Answers("boolean", (), nullable), notes)
        case "choice" | "multi" | "score":
            return make_question(name, text, Answers(kind, _options(name, kind, given), nullable), NO_NOTES)
    raise AssertionError(kind)


def _options(name: str, kind: str, given: Mapping[str, Any]) -> tuple[Option, ...]:
    found = [key for key in KEYS[kind] if key in given and key in ("options", "levels")]
    if len(found) != 1:
        problem = "'options' and 'levels' say the same" if found else f"has no {KEYS[kind][-1]!r}"
        raise SchemaError(name, problem, f"write one list of {KEYS[kind][3]}")
    listed = given[found[0]]
    if isinstance(listed, Mapping):
        return tuple(
            Option(read_text(name, f"option {text!r}", text), text, _description(name, said))
            for text, said in listed.items()
        )
    if not isinstance(listed, (list, tuple)):
        raise SchemaError(name, f"{found[0]!r} is a {type(listed).__name__}", "write a list of texts")
    return tuple(_option(name, entry) for entry in listed)


def _option(name: str, entry: Any) -> Option:
    """An entry of a list of options."""
    if not isinstance(entry, Mapping):
        if isinstance(entry, bool) or not isinstance(entry, (str, int)):
            raise SchemaError(
                name, f"option {entry!r} is a {type(entry).__name__}", "write a string or an integer"
            )
        return Option(option_text(entry), entry)
    check_known(name, "key of an option", entry, ("text", "value", "description"))
    if "text" not in entry:
        raise SchemaError(name, f"option {dict(entry)!r} has no 'text'", "give every option a text")
    text = read_text(name, "text of an option", entry["text"])
    value = entry.get("value", text)
    if not isinstance(value, PLAIN):
        raise SchemaError(
            name,
            f"the value of option {text!r} is a {type(value).__name__}",
            "use a string, number or boolean",
        )
    return Option(text, value, _description(name, entry.get("description")))


def _description(name: str, said: Any) -> str | None:
    return None if said is None else read_text(name, "description of an option", said)


def _slots(questions: tuple[Question, ...]) -> tuple[Slot, ...]:
    """Where the answers go. Raises :class:`SchemaError` when one stands where a group of others does."""
    paths = {question.name: tuple(question.name.split(".")) for question in questions}
    for name, path in paths.items():
        if not all(part.strip() for part in path):
            raise SchemaError(name, "a part of its dotted name is empty", "write a name between all dots")
        for end in range(1, len(path)):
            if ".".join(path[:end]) in paths:
                raise SchemaError(
                    name, f"stands inside the question {'.'.join(path[:end])!r}", "rename one of them"
                )
    return tuple(Slot(paths[q.name], paths[q.name], q.nullable) for q in questions)


def _written(question: Question) -> dict[str, Any]:
    written: dict[str, Any] = {"type": question.kind, "text": question.text}
    if isinstance(question, BooleanQuestion):
        said = {"true": question.true_description, "false": question.false_description}
        written |= {key: text for key, text in said.items() if text is not None}
    else:
        key = "levels" if question.kind == "score" else "options"
        written[key] = _written_options(question.name, question.options)
    if question.nullable:
        written["nullable"] = True
    return written


def _written_options(name: str, options: tuple[Option, ...]) -> list[Any] | dict[str, str | None]:
    """The shortest form that says all: a list of texts, a mapping to descriptions, a list of objects."""
    values = [option.value.value if isinstance(option.value, Enum) else option.value for option in options]
    for option, value in zip(options, values, strict=True):
        if not isinstance(value, PLAIN):
            raise SchemaError(
                name,
                f"the value of option {option.text!r} is a {type(value).__name__}",
                "use a string, number or boolean",
            )
    described = any(option.description is not None for option in options)
    if not described and all(
        type(value) in (str, int) and option_text(value) == option.text
        for option, value in zip(options, values, strict=True)
    ):
        return values
    if all(value == option.text for option, value in zip(options, values, strict=True)):
        return {option.text: option.description for option in options}
    return [
        {"text": option.text, "value": value, "description": option.description}
        for option, value in zip(options, values, strict=True)
    ]


def _check_object(path: str, what: str, given: Any) -> None:
    if not isinstance(given, Mapping):
        raise SchemaError(path, f"{what} is a {type(given).__name__}", "write an object")
