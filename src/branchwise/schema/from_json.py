"""Our own JSON form of a schema, read and written.

{"title": "Ticket",
 "questions": {
   "urgent":   {"type": "boolean", "text": "Is it urgent?", "true": "needs an answer today"},
   "category": {"type": "choice", "text": "What is it about?",
                "options": {"billing": "money", "technical": null}},
   "tags":     {"type": "multi", "text": "Which apply?", "options": ["refund", "login"]},
   "severity": {"type": "score", "text": "How bad?", "levels": ["low", "high"]}}}
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from branchwise.errors import SchemaError
from branchwise.schema.questions import (
    BooleanQuestion,
    ChoiceQuestion,
    MultiQuestion,
    Option,
    Question,
    Schema,
    ScoreQuestion,
)
from branchwise.schema.tree import nested

_Listed = ChoiceQuestion | MultiQuestion | ScoreQuestion
_KINDS: dict[str, type[_Listed]] = {
    "choice": ChoiceQuestion,
    "multi": MultiQuestion,
    "score": ScoreQuestion,
}
_COMMON = ("type", "text", "nullable")


def schema_from_document(document: Mapping[str, Any]) -> Schema:
    """Read the form above. Dotted names make a nested value.

    Raises :class:`SchemaError` for an unknown key (with the nearest valid one), a wrong type, and
    whatever the question itself refuses.
    """
    _check_keys("", document, ("title", "questions"))
    questions = document.get("questions")
    if not isinstance(questions, Mapping):
        raise SchemaError("", "'questions' is no mapping of name to question", "give {'questions': {...}}")
    title = _text("", "title", document.get("title", ""))
    built = tuple(_question(str(name), entry) for name, entry in questions.items())
    paths = [tuple(question.name.split(".")) for question in built]
    _check_paths(paths)
    return Schema(built, title=title, build=lambda answers: nested(paths, answers))


def schema_to_document(schema: Schema) -> dict[str, Any]:
    """The form above of a schema whose options' values are their texts."""
    questions = {question.name: _entry(question) for question in schema.questions}
    return {**({"title": schema.title} if schema.title else {}), "questions": questions}


def _question(name: str, entry: Any) -> Question:
    if not isinstance(entry, Mapping):
        raise SchemaError(name, f"its question is {entry!r}", "give a mapping with 'type' and 'text'")
    kind = entry.get("type")
    if kind == "boolean":
        _check_keys(name, entry, (*_COMMON, "true", "false"))
    elif kind in _KINDS:
        _check_keys(name, entry, (*_COMMON, "options", *(("levels",) if kind == "score" else ())))
    else:
        near = difflib.get_close_matches(str(kind), ("boolean", *_KINDS), n=1)
        hint = f"did you mean {near[0]!r}?" if near else "use boolean, choice, multi or score"
        raise SchemaError(name, f"type {kind!r} is none of ours", hint)
    text = _text(name, "text", entry.get("text", name.rpartition(".")[2].replace("_", " ")))
    nullable = entry.get("nullable", False)
    if not isinstance(nullable, bool):
        raise SchemaError(name, f"'nullable' is {nullable!r}", "give true or false")
    if kind == "boolean":
        meanings = [
            None if entry.get(key) is None else _text(name, key, entry[key]) for key in ("true", "false")
        ]
        return BooleanQuestion(name, text, nullable, *meanings)
    if ("options" in entry) == ("levels" in entry):
        word = "'levels' (or 'options')" if kind == "score" else "'options'"
        raise SchemaError(name, "its options are missing or given twice", f"give {word} once")
    options = _options(name, entry.get("options", entry.get("levels")))
    return _KINDS[str(kind)](name, text, options, nullable)


def _options(name: str, found: Any) -> tuple[Option, ...]:
    if isinstance(found, Mapping):
        pairs: Iterable[tuple[Any, Any]] = found.items()
    elif isinstance(found, (list, tuple)):
        pairs = ((text, None) for text in found)
    else:
        raise SchemaError(
            name, f"its options are {found!r}", "give a list, or a mapping of text to description"
        )
    options = []
    for text, description in pairs:
        if not isinstance(text, str):
            raise SchemaError(name, f"option {text!r} is no text", "put it in quotes")
        meaning = None if description is None else _text(name, f"description of {text!r}", description)
        options.append(Option(text, text, meaning))
    return tuple(options)


def _entry(question: Question) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": question.kind, "text": question.text}
    if question.nullable:
        entry["nullable"] = True
    if isinstance(question, BooleanQuestion):
        meanings = {"true": question.true_description, "false": question.false_description}
        return entry | {key: text for key, text in meanings.items() if text is not None}
    for option in question.options:
        if option.value != option.text:
            raise SchemaError(
                question.name, f"option {option.text!r} stands for {option.value!r}", "use texts as values"
            )
    entry["options"] = {option.text: option.description for option in question.options}
    return entry


def _text(name: str, key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise SchemaError(name, f"{key!r} is {value!r}", "give a text")
    return value


def _check_keys(name: str, found: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    for key in found:
        if key not in allowed:
            near = difflib.get_close_matches(str(key), allowed, n=1)
            fix = f"did you mean {near[0]!r}?" if near else f"the keys are {', '.join(map(repr, allowed))}"
            raise SchemaError(name, f"key {key!r} is unknown", fix)


def _check_paths(paths: list[tuple[str, ...]]) -> None:
    """Refuse a name that is also the parent of another ("a" beside "a.b")."""
    known = set(paths)
    for path in paths:
        for cut in range(1, len(path)):
            if path[:cut] in known:
                raise SchemaError(
                    ".".join(path), f"{'.'.join(path[:cut])!r} is a question of its own", "rename one of them"
                )
