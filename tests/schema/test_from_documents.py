"""Questions from JSON Schema documents and from our own JSON form."""

from __future__ import annotations

import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from branchwise.errors import SchemaError
from branchwise.schema.build import schema_from_any
from branchwise.schema.from_json import schema_from_document, schema_to_document
from branchwise.schema.from_json_schema import schema_from_json_schema
from branchwise.schema.score import Score

DOCUMENT = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Ticket",
    "type": "object",
    "required": ["urgent"],
    "additionalProperties": False,
    "properties": {
        "urgent": {"type": "boolean", "description": "Is it urgent?", "default": False},
        "topic": {"enum": ["billing", "technical"], "x-choice-descriptions": {"billing": "money"}},
        "count": {"type": "integer", "enum": [1, 2]},
        "maybe": {"type": ["string", "null"], "enum": ["a", "b", None]},
        "union": {"anyOf": [{"$ref": "#/$defs/Kind"}, {"type": "null"}]},
        "kind": {"$ref": "#/$defs/Kind"},
        "described": {"oneOf": [{"const": "x", "title": "the x"}, {"const": "y", "description": "the y"}]},
        "fixed": {"const": "only"},
        "tags": {"type": "array", "items": {"enum": ["p", "q"]}, "uniqueItems": True},
        "stars": {"type": "integer", "minimum": 1, "maximum": 5},
        "scale": {"enum": ["low", "high"], "x-ordered": True},
        "customer": {"$ref": "#/$defs/a~1b%20c"},
    },
    "$defs": {
        "Kind": {"enum": ["bug", "idea"], "title": "Which kind"},
        "a/b c": {
            "type": "object",
            "properties": {
                "tier": {"allOf": [{"enum": ["free", "paid"]}]},
                "deep": {"type": "object", "properties": {"ok": {"type": "boolean"}}},
            },
        },
    },
}


def test_a_json_schema_becomes_questions_and_its_value_validates():
    schema = schema_from_json_schema(DOCUMENT)
    found = {question.name: question for question in schema.questions}
    assert {name: question.kind for name, question in found.items()} == {
        "urgent": "boolean",
        "topic": "choice",
        "count": "choice",
        "maybe": "choice",
        "union": "choice",
        "kind": "choice",
        "described": "choice",
        "fixed": "choice",
        "tags": "multi",
        "stars": "score",
        "scale": "score",
        "customer.tier": "choice",
        "customer.deep.ok": "boolean",
    }
    assert {name for name, q in found.items() if q.nullable} == {"maybe", "union"}
    assert [o.description for o in found["described"].options] == ["the x", "the y"]
    assert [o.description for o in found["topic"].options] == ["money", None]
    assert found["kind"].text == "Which kind"
    assert found["urgent"].text == "Is it urgent?"
    assert found["customer.tier"].text == "customer tier"
    assert schema.title == "Ticket"


@given(st.data())
def test_any_answers_rebuild_a_value_that_the_document_accepts(data):
    schema = schema_from_json_schema(DOCUMENT)
    answers = {}
    for question in schema.questions:
        values = [option.value for option in question.options]
        if question.kind == "multi":
            answers[question.name] = data.draw(st.lists(st.sampled_from(values), unique=True))
        elif question.kind == "score":
            index = data.draw(st.integers(0, len(values) - 1))
            answers[question.name] = Score(question.options[index].text, index, float(index))
        else:
            answers[question.name] = data.draw(st.sampled_from(values))
    value = schema.build(answers)
    jsonschema.validate(value, DOCUMENT)
    assert json.loads(json.dumps(value)) == value
    assert value["customer"]["deep"]["ok"] == answers["customer.deep.ok"]
    assert value["stars"] == answers["stars"].index + 1


@pytest.mark.parametrize(
    ("property_schema", "message"),
    [
        ({"type": "string"}, "a free string can't be decided"),
        ({"type": "number"}, "number can't be decided"),
        ({"type": "integer"}, "a free integer can't be decided"),
        ({"type": "integer", "minimum": 0, "maximum": 255}, "256 levels"),
        ({"type": "integer", "minimum": 0, "maximum": 4, "multipleOf": 2}, "'multipleOf'"),
        ({"type": "array", "items": {"type": "string"}}, "a free string"),
        ({"type": "array"}, "'items'"),
        ({"type": "array", "items": {"enum": ["a"]}, "minItems": 1}, "'minItems'"),
        ({"type": ["string", "integer"]}, "string or integer can't be decided"),
        ({"anyOf": [{"type": "string"}, {"type": "boolean"}]}, "union of several types"),
        ({"enum": ["a", 1.5]}, "option 1.5"),
        ({"enum": ["a", True]}, "option True"),
        ({"enum": ["A", "a"]}, "'A' and 'a'"),
        ({"enum": ["a"], "if": {}}, "'if'"),
        ({"enum": ["a"], "not": {}}, "'not'"),
        ({"$ref": "#/$defs/missing"}, "leads nowhere"),
        ({"$ref": "https://example.org/x"}, "is not in this document"),
        ({"$ref": "#/properties/field"}, "contains itself"),
        ({"allOf": [{}, {}]}, "combines 2 subschemas"),
        ({"enum": ["a"], "x-choice-descriptions": {"b": "x"}}, "'b'"),
        ({"type": "object", "properties": {"x": {"type": "string"}}}, "field.x"),
        ({"type": "object", "properties": {}, "patternProperties": {}}, "'patternProperties'"),
        (True, "True is not a subschema"),
    ],
)
def test_what_cannot_be_decided_is_refused_with_its_path(property_schema, message):
    with pytest.raises(SchemaError, match=message) as found:
        schema_from_json_schema({"properties": {"field": property_schema}})
    assert found.value.path.startswith("field")


def test_a_document_that_contains_itself_is_refused():
    document = {
        "properties": {"a": {"$ref": "#/$defs/n"}},
        "$defs": {"n": {"properties": {"b": {"$ref": "#/$defs/n"}}}},
    }
    with pytest.raises(SchemaError, match="contains itself"):
        schema_from_json_schema(document)


def test_a_key_with_a_dot_is_refused():
    with pytest.raises(SchemaError, match="without a dot"):
        schema_from_json_schema({"properties": {"a.b": {"type": "boolean"}}})


def test_a_document_without_properties_is_refused():
    with pytest.raises(SchemaError, match="not an object"):
        schema_from_json_schema({"$schema": "x", "type": "string"})


def test_what_pydantic_writes_can_be_read():
    class Inner(BaseModel):
        ok: bool

    class Outer(BaseModel):
        inner: Inner
        flag: bool | None = None

    schema = schema_from_any(Outer.model_json_schema())
    assert [question.name for question in schema.questions] == ["inner.ok", "flag"]
    assert schema.questions[1].nullable


OWN = {
    "title": "Ticket",
    "questions": {
        "urgent": {"type": "boolean", "text": "Is it urgent?", "true": "needs an answer today"},
        "category": {"type": "choice", "text": "What about?", "options": {"billing": "money", "bug": None}},
        "tags": {"type": "multi", "text": "Which apply?", "options": ["refund", "login"], "nullable": True},
        "severity": {"type": "score", "text": "How bad?", "levels": ["low", "high"]},
        "customer.loyal": {"type": "boolean"},
    },
}


def test_our_own_form_is_read_and_written():
    schema = schema_from_any(OWN)
    assert [question.kind for question in schema.questions] == [
        "boolean",
        "choice",
        "multi",
        "score",
        "boolean",
    ]
    assert schema.questions[4].text == "customer loyal"
    again = schema_from_document(schema_to_document(schema))
    assert again == schema
    assert again.fingerprint == schema.fingerprint
    value = schema.build(
        {
            "urgent": True,
            "category": "bug",
            "tags": [],
            "severity": Score("low", 0, 0.1),
            "customer.loyal": False,
        }
    )
    assert value["customer"] == {"loyal": False}


TEXTS = st.text("abcdefgh ü", min_size=1, max_size=6).filter(str.strip)


@given(st.dictionaries(TEXTS.map(str.strip), st.lists(TEXTS, min_size=1, max_size=5), min_size=1, max_size=4))
def test_our_own_form_round_trips_whatever_it_accepts(questions):
    document = {
        "questions": {n: {"type": "choice", "text": "Which", "options": o} for n, o in questions.items()}
    }
    try:
        schema = schema_from_document(document)
    except SchemaError:
        return
    assert schema_from_document(schema_to_document(schema)) == schema


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"type": "bool"}, "did you mean 'boolean'"),
        ({"type": "choice", "text": "x"}, "has no 'options'"),
        ({"type": "choice", "optoins": ["a"]}, "did you mean 'options'"),
        ({"type": "choice", "levels": ["a", "b"]}, "unknown key of a choice question 'levels'"),
        ({"type": "score", "levels": ["a"], "options": ["a"]}, "say the same"),
        ({"type": "choice", "options": "ab"}, "'options' is a str"),
        ({"type": "choice", "options": [1.5]}, "option 1.5 is a float"),
        ({"type": "choice", "options": {"a": 3}}, "description of an option' is a int"),
        ({"type": "boolean", "text": 3}, "'text' is a int"),
        ({"type": "boolean", "nullable": "no"}, "'nullable'"),
        ({"type": "boolean", "options": []}, "unknown key of a boolean question 'options'"),
        ("boolean", "a question is a str"),
    ],
)
def test_a_mistake_in_our_own_form_is_named(entry, message):
    with pytest.raises(SchemaError, match=message) as found:
        schema_from_document({"questions": {"field": entry}})
    assert found.value.path == "field"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "'questions'"),
        ({"questions": []}, "'questions'"),
        ({"questions": {}, "titel": "x"}, "did you mean 'title'"),
        (
            {"questions": {"a": {"type": "boolean"}, "a.b": {"type": "boolean"}}},
            "stands inside the question 'a'",
        ),
    ],
)
def test_a_mistake_of_the_document_is_named(document, message):
    with pytest.raises(SchemaError, match=message):
        schema_from_document(document)
