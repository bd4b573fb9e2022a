"""Schemas as they arrive from elsewhere: other scripts, other tools, mistakes, and attacks."""

from __future__ import annotations

import pickle
import subprocess
import sys
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    create_model,
)

from branchwise.errors import SchemaError
from branchwise.schema.build import schema_from_any
from branchwise.schema.from_json import schema_from_document, schema_to_document
from branchwise.schema.from_json_schema import schema_from_json_schema
from branchwise.schema.from_pydantic import schema_from_model

AB = Literal["a", "b"]
KIND = Enum("KIND", {"BUG": "bug", "IDEA": "idea"})


def model(annotation, field=..., **config) -> type[BaseModel]:
    return create_model("M", __config__=ConfigDict(**config), f=(annotation, field))


def document(subschema, **more):
    return {"type": "object", "properties": {"f": subschema}, **more}


def read(subschema, **more):
    return schema_from_json_schema(document(subschema, **more)).questions[0]


def texts(question):
    return [option.text for option in question.options]


@pytest.mark.parametrize(
    "text", ["👨‍👩‍👧", "می‌خواهم", "क्‍ष", "10\u00a0€", "\U0001fae8", '"quoted"', "日本 語"]
)
def test_options_of_any_script_are_kept_as_they_are(text):
    schema = schema_from_json_schema(document({"enum": [text, "other"]}))
    assert texts(schema.questions[0]) == [text, "other"]
    assert schema.build({"f": text}) == {"f": text}


def test_a_lone_surrogate_is_refused_wherever_the_model_would_read_it():
    for entry in (
        {"type": "boolean", "text": "\ud800"},
        {"type": "boolean", "true": "\ud800"},
        {"type": "choice", "options": {"a": "\ud800"}},
    ):
        with pytest.raises(SchemaError, match="surrogate"):
            schema_from_document({"questions": {"f": entry}})


@pytest.mark.parametrize("wrap", [lambda n: n, lambda n: {"allOf": [n]}, lambda n: {"anyOf": [n]}])
def test_a_reference_back_to_itself_is_refused_through_any_wrapper(wrap):
    node = {"type": "object", "properties": {"ok": {"type": "boolean"}, "again": wrap({"$ref": "#/$defs/N"})}}
    with pytest.raises(SchemaError, match="contains itself") as found:
        schema_from_json_schema({"$defs": {"N": node}, "$ref": "#/$defs/N"})
    assert found.value.path == "again"


def test_references_that_multiply_and_objects_without_end_are_cut_short():
    doubling: dict[str, Any] = {"d0": {"type": "boolean"}}
    for level in range(1, 64):
        below = {"$ref": f"#/$defs/d{level - 1}"}
        doubling[f"d{level}"] = {"type": "object", "properties": {"a": below, "b": below}}
    with pytest.raises(SchemaError, match="nested more than 32 deep"):
        schema_from_json_schema({"$defs": doubling, "$ref": "#/$defs/d63"})
    with pytest.raises(SchemaError, match="more than 4096 questions"):
        schema_from_json_schema({"$defs": doubling, "$ref": "#/$defs/d20"})
    deep: dict[str, Any] = {"type": "boolean"}
    for _ in range(5000):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(SchemaError, match="nested more than 32 deep"):
        schema_from_json_schema(deep)


@pytest.mark.parametrize(
    ("subschema", "message"),
    [
        ({"type": "string", "enum": [1, 2]}, "not of type string"),
        ({"type": "integer", "oneOf": [{"const": "a"}, {"const": "b"}]}, "not of type integer"),
        ({"enum": ["a", "b"], "x-ordered": "yes"}, "'ordered' is 'yes'"),
        ({"type": "boolean", "x-ordered": True}, "no order"),
        ({"type": "array", "items": {"enum": ["a"]}, "x-ordered": True}, "no order"),
        ({"enum": ["a"], "x-orderd": True}, "did you mean 'x-ordered'"),
        ({"enum": ["a", "b"], "enumDescriptions": ["A"]}, "has 1 entries"),
        ({"enum": ["a"], "x-ordered": True, "ordered": True}, "say the same"),
        ({"enum": ["a"], "description": 3}, "'description' is a int"),
        ({"oneOf": [{"const": "a", "pattern": "^b"}, {"const": "b"}]}, "'pattern'"),
        ({"$ref": "#/$defs/X", "enum": ["z"]}, "restrict it together"),
        ({"anyOf": [{"enum": ["a"]}, {"type": "null"}], "oneOf": [{"enum": ["a"]}]}, "restrict it together"),
        ({"anyOf": [{"enum": ["a", "b"]}, {"const": "c"}]}, "put all options in one 'enum'"),
        ({"anyOf": [{"$ref": "#/$defs/O"}, {"type": "null"}]}, "object that may be null"),
        ({"type": ["object", "null"], "properties": {"a": {"type": "boolean"}}}, "object that may be null"),
        ({"type": "array", "items": {"$ref": "#/$defs/O"}}, "array of objects"),
        ({"type": "array", "items": {"enum": ["a", None]}}, "its items"),
        ({"type": "object", "properties": {}}, "without properties"),
        ({"type": "object", "properties": [1]}, "without properties"),
        ({"properties": {"a": {"type": "boolean"}}, "required": ["b"]}, "unknown required property 'b'"),
        ({"properties": {"a": {"type": "boolean"}}, "additionalProperties": {}}, "additionalProperties"),
        ({"properties": {"a": {"type": "boolean"}}, "x-ordered": True}, "a group of fields"),
        ({"type": "integer", "minimum": 1.5, "maximum": 3}, "'minimum' is 1.5"),
        ({"type": "integer", "exclusiveMinimum": True, "maximum": 3}, "'exclusiveMinimum' is True"),
        ({"type": "null"}, "null alone"),
        ({"const": None}, "0 options"),
        ({}, "can't be decided"),
        ({"type": 3}, "'type' is 3"),
        ({"type": [["string"]]}, "'type' is"),
        ({"enum": "ab"}, "'enum' is 'ab'"),
        ({"enum": [["a"], {}]}, "is a list"),
        ({"allOf": []}, "list of subschemas"),
        ({"allOf": [1]}, "not a subschema"),
        ({"anyOf": [1, 2]}, "not a subschema"),
        ({"$ref": ["#"]}, "'\\$ref' is a list"),
        ({"$ref": "#"}, "'#' contains itself|can't be decided"),
    ],
)
def test_a_subschema_that_would_be_misread_is_refused_with_its_path(subschema, message):
    known = {"X": {"enum": ["a", "b"]}, "O": {"type": "object", "properties": {"a": {"type": "boolean"}}}}
    with pytest.raises(SchemaError, match=message) as found:
        read(subschema, **{"$defs": known})
    assert found.value.path.startswith("f")
    assert found.value.fix


KEYWORDS = [
    "type",
    "enum",
    "const",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "items",
    "properties",
    "required",
    "minimum",
    "maximum",
    "title",
    "nullable",
    "x-ordered",
    "enumDescriptions",
    "a",
]
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.sampled_from(["a", "string", "#/properties/f", "null"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYWORDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(ANYTHING)
def test_any_json_is_read_or_refused_and_never_crashes(junk):
    for source in (junk, document(junk), {"questions": junk}, {"questions": {"f": junk}}):
        try:
            schema = schema_from_any(source)
        except SchemaError:
            continue
        assert schema.questions


def test_descriptions_listed_beside_an_enum_skip_its_null():
    found = read({"enum": [None, "a", "b"], "enumDescriptions": ["none", "A", "B"]})
    assert [(option.text, option.description) for option in found.options] == [("a", "A"), ("b", "B")]


def test_what_stands_at_a_reference_goes_before_what_it_refers_to():
    known = {
        "Colour": {"title": "Colour", "enum": ["a", "b"]},
        "Said": {"description": "said there", "enum": ["a", "b"], "x-ordered": True},
    }
    assert read({"$ref": "#/$defs/Colour"}, **{"$defs": known}).text == "f"
    assert read({"$ref": "#/$defs/Said"}, **{"$defs": known}).text == "said there"
    here = read({"$ref": "#/$defs/Said", "description": "here", "x-ordered": False}, **{"$defs": known})
    assert (here.text, here.kind) == ("here", "choice")


def test_exclusive_bounds_and_whole_floats_bound_a_scale():
    found = read({"type": "integer", "exclusiveMinimum": 0, "minimum": -4, "maximum": 3.0})
    assert texts(found) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"questions": {}}, "asks nothing"),
        ({"questions": {3: {"type": "boolean"}}}, "not a string"),
        ({"questions": {"a..b": {"type": "boolean"}}}, "part of its dotted name is empty"),
        ({"questions": {"a": {"type": ["x"]}}}, "'type' is"),
        ({"questions": {"a": {"text": "x"}}}, "has no 'type'"),
        ({"questions": {"a": {"type": "choice", "options": [{"value": 1}]}}}, "has no 'text'"),
        (
            {"questions": {"a": {"type": "choice", "options": [{"text": "x", "valeu": 1}]}}},
            "did you mean 'value'",
        ),
        ({"questions": {"a": {"type": "choice", "options": [{"text": "x", "value": []}]}}}, "is a list"),
    ],
)
def test_more_mistakes_in_our_own_form_are_named(source, message):
    with pytest.raises(SchemaError, match=message):
        schema_from_document(source)


@pytest.mark.parametrize(
    "field",
    [
        model(Literal[1, 2, 3]),
        model(Literal[1, 2], Field(json_schema_extra={"choice_descriptions": {1: "one"}})),
        model(list[AB] | None),
        model(bool, Field(json_schema_extra={"choice_descriptions": {"false": "no"}})),
        model(Annotated[int, Field(ge=1, le=3)]),
    ],
)
def test_a_schema_of_plain_values_is_written_and_read_back_equal(field):
    schema = schema_from_model(field)
    assert schema_from_document(schema_to_document(schema)) == schema


def test_enum_members_are_written_as_their_values_and_ask_the_same():
    schema = schema_from_model(model(KIND))
    again = schema_from_document(schema_to_document(schema))
    assert again.fingerprint == schema.fingerprint
    assert [option.value for option in again.questions[0].options] == ["bug", "idea"]


class Filed(BaseModel):
    under: set[Literal["x", "y"]]
    effort: Annotated[AB, Field(json_schema_extra={"ordered": True})]


@pytest.mark.parametrize(
    "source",
    [
        Filed,
        document({"enum": ["a", "b"], "x-ordered": True}),
        {"questions": {"f": {"type": "boolean"}}},
    ],
)
def test_a_schema_can_be_sent_to_another_process(source):
    schema = schema_from_any(source)
    again = pickle.loads(pickle.dumps(schema))
    assert again == schema
    assert again.build == schema.build


def test_reading_a_document_loads_no_pydantic():
    script = (
        "import sys; from branchwise.schema.build import schema_from_any;"
        "schema_from_any({'questions': {'f': {'type': 'boolean'}}}); assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
