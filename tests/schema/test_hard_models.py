"""Pydantic models with the less usual features, and with mistakes."""

from __future__ import annotations

from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from typing import Annotated, List, Literal, Optional  # noqa: UP035 - both spellings are read

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    TypeAdapter,
    ValidationError,
    create_model,
    model_validator,
)
from typing_extensions import TypeAliasType

from branchwise.errors import SchemaError
from branchwise.schema.build import schema_from_any
from branchwise.schema.from_pydantic import schema_from_model
from branchwise.schema.score import Score

AB = Literal["a", "b"]
KIND = Enum("KIND", {"BUG": "bug", "IDEA": "idea"})
NAMED = TypeAliasType("NAMED", AB)


def model(annotation, field=..., **config) -> type[BaseModel]:
    return create_model("M", __config__=ConfigDict(**config), f=(annotation, field))


def asked(annotation, field=..., **config):
    return schema_from_model(model(annotation, field, **config)).questions[0]


def texts(question):
    return [option.text for option in question.options]


def answer_to(question, draw):
    values = [option.value for option in question.options]
    if question.nullable and draw(st.booleans()):
        return None
    if question.kind == "multi":
        return draw(st.lists(st.sampled_from(values), unique=True))
    if question.kind == "score":
        index = draw(st.integers(0, len(values) - 1))
        return Score(question.options[index].text, index, float(index))
    return draw(st.sampled_from(values))


@pytest.mark.parametrize(
    ("annotation", "empty", "full"),
    [
        (list[AB], [], ["a", "b"]),
        (set[AB], set(), {"a", "b"}),
        (frozenset[AB], frozenset(), frozenset("ab")),
        (tuple[AB, ...], (), ("a", "b")),
    ],
)
def test_a_strict_model_gets_the_collection_it_asks_for(annotation, empty, full):
    schema = schema_from_model(model(annotation, strict=True))
    assert schema.build({"f": []}).f == empty
    assert schema.build({"f": ["a", "b"]}).f == full


def test_what_is_said_inside_optional_and_aliases_is_heard_unless_said_outside():
    inner = Annotated[NAMED, Field(description="inside", json_schema_extra={"ordered": True})]
    found = asked(Optional[inner])  # noqa: UP045
    assert (found.kind, found.text, found.nullable, texts(found)) == ("score", "inside", True, ["a", "b"])
    assert asked(inner | None, Field(description="outside")).text == "outside"
    assert asked(inner, Field(json_schema_extra={"ordered": False})).kind == "choice"


def test_none_in_a_literal_is_not_an_option_but_makes_it_nullable():
    found = asked(Literal["a", None])
    assert (texts(found), found.nullable) == (["a"], True)


def test_two_nested_fields_of_one_name_are_asked_differently():
    class Address(BaseModel):
        country: AB
        in_eu: bool = Field(description="Is it in the EU?")

    class Order(BaseModel):
        billing: Address
        shipping: Address = Field(description="Where it goes.")

    assert [question.text for question in schema_from_model(Order).questions] == [
        "billing country",
        "Is it in the EU?",
        "Where it goes: country",
        "Where it goes: Is it in the EU?",
    ]


def test_enum_classes_describe_their_members_unless_the_field_does():
    class Plan(StrEnum):
        FREE = "free"
        PAID = "paid"
        __descriptions__ = MappingProxyType({"free": "costs nothing", "paid": "costs money"})

    assert [option.description for option in asked(Plan).options] == ["costs nothing", "costs money"]
    there = {"choice_descriptions": {Plan.FREE: "no invoice"}}
    field = asked(Plan, Field(json_schema_extra=there))
    assert [option.description for option in field.options] == ["no invoice", None]


@pytest.mark.parametrize(
    "annotation",
    [
        Annotated[int, Field(ge=1, le=3)],
        Annotated[int, Field(gt=0, lt=4)],
        Annotated[int, Field(ge=-5, gt=0, le=3)],
    ],
)
def test_an_int_with_both_bounds_is_a_scale_whose_value_is_the_int(annotation):
    schema = schema_from_model(model(annotation))
    assert (schema.questions[0].kind, texts(schema.questions[0])) == ("score", ["1", "2", "3"])
    assert schema.build({"f": Score("3", 2, 1.4)}).f == 3


def test_use_enum_values_gives_the_plain_values():
    schema = schema_from_model(model(KIND, use_enum_values=True))
    assert [option.value for option in schema.questions[0].options] == ["bug", "idea"]
    assert schema.build({"f": "idea"}).f == "idea"
    assert [option.value for option in asked(KIND).options] == [KIND.BUG, KIND.IDEA]


def test_every_kind_of_alias_is_written_under_a_key_that_the_model_reads():
    class Inner(BaseModel):
        model_config = ConfigDict(validate_by_alias=False, validate_by_name=True)
        ok: bool = Field(alias="isOk")

    class Outer(BaseModel):
        choice: AB = Field(validation_alias=AliasChoices(AliasPath("x", 0), "theChoice"))
        dotted: bool = Field(alias="inner.ok")
        inner: Inner = Field(alias="theInner")

    built = schema_from_model(Outer).build({"choice": "b", "dotted": True, "inner.ok": False})
    assert (built.choice, built.dotted, built.inner.ok) == ("b", True, False)


def test_a_validator_that_refuses_names_the_field_by_its_dotted_name():
    class Inner(BaseModel):
        a: bool = Field(alias="isA")
        b: bool

        @model_validator(mode="after")
        def not_both(self):
            if self.a and self.b:
                raise ValueError("not both")
            return self

    class Outer(BaseModel):
        pair: Inner = Field(alias="thePair")

    schema = schema_from_model(Outer)
    assert schema.build({"pair.a": True, "pair.b": False}).pair.a is True
    with pytest.raises(SchemaError, match=r"'pair'.*not both") as found:
        schema.build({"pair.a": True, "pair.b": True})
    assert isinstance(found.value.__cause__, ValidationError)
    with pytest.raises(SchemaError, match="unanswered") as found:
        schema.build({"pair.a": None, "pair.b": True})
    assert found.value.path == "pair.a"
    with pytest.raises(SchemaError, match="has no answer") as found:
        schema.build({"pair.a": True})
    assert found.value.path == "pair.b"


class Nothing(BaseModel):
    pass


class Loop(BaseModel):
    ok: bool
    again: Loop | None


@pytest.mark.parametrize(
    ("annotation", "field", "message"),
    [
        (List, ..., "list without options"),  # noqa: UP006
        (tuple[()], ..., "fixed length"),
        (list[bool], ..., "items may be None or booleans"),
        (list[AB | None], ..., "items may be None or booleans"),
        (list[Loop], ..., "list of models"),
        (list[AB], Field(min_length=1), "bound on the number"),
        (AB, Field(json_schema_extra={"choice_description": {}}), "did you mean 'choice_descriptions'"),
        (AB, Field(json_schema_extra={"ordered": 1}), "'ordered' is 1"),
        (AB, Field(json_schema_extra={"choice_descriptions": ["x"]}), "descriptions are a list"),
        (bool, Field(json_schema_extra={"choice_descriptions": {"yes": "x"}}), "use one of 'true', 'false'"),
        (int, Field(ge=0), "give it bounds"),
        (int, Field(ge=0, le=255), "256 levels"),
        (int, Field(ge=3, le=2), "0 levels"),
        (int, Field(ge=0, le=4, multiple_of=2), "multiple_of"),
        (RootModel[AB], ..., "no named fields"),
        (Nothing, ..., "no fields"),
        (Loop, ..., "contains itself"),
        (dict, ..., "use a nested model"),
        (IntEnum("Many", [f"M{i}" for i in range(256)]), ..., "256 options"),
        (Enum("Half", {"A": 0.5}), ..., "a float"),
    ],
)
def test_a_field_that_would_go_wrong_later_is_refused_at_once(annotation, field, message):
    with pytest.raises(SchemaError, match=message) as found:
        schema_from_model(model(annotation, field))
    assert found.value.path.startswith("f")


class Ticket(BaseModel):
    """A ticket."""

    urgent: bool = Field(json_schema_extra={"choice_descriptions": {"true": "today"}})
    kind: KIND | None
    plan: Literal["free", "paid"] = Field(
        "free", description="Which plan?", json_schema_extra={"choice_descriptions": {"free": "no invoice"}}
    )
    tags: list[Literal["x", "y"]]
    effort: Literal["low", "high"] = Field(json_schema_extra={"ordered": True})
    stars: int = Field(ge=1, le=5)
    only: Literal["this"]
    where: Address = Field(description="The address")


class Address(BaseModel):
    country: AB


@given(st.data())
def test_a_model_and_its_json_schema_ask_the_same_and_their_answers_agree(data):
    written = Ticket.model_json_schema()
    of_model, of_document = schema_from_model(Ticket), schema_from_any(written)
    assert of_model.fingerprint == of_document.fingerprint
    answers = {question.name: answer_to(question, data.draw) for question in of_document.questions}
    value = of_document.build(answers)
    jsonschema.validate(value, written)
    assert of_model.build(answers).model_dump(mode="json") == value


def test_a_score_of_a_str_enum_gives_its_members_and_dumps_their_texts():
    class Size(StrEnum):
        SMALL = "small"
        LARGE = "large"

    schema = schema_from_model(model(Score[Size] | None))
    built = schema.build({"f": Score("large", 1, 0.9)})
    assert built.f.level is Size.LARGE
    assert built.model_dump(mode="json") == {"f": {"level": "large", "index": 1, "expected": 0.9}}
    assert schema.build({"f": None}).f is None


def test_an_expected_index_may_be_off_the_scale_by_rounding_only():
    adapter = TypeAdapter(Score[NAMED])
    assert adapter.validate_python(Score("b", 1, 1.0 + 1e-15)).expected == 1.0
    for expected in (1.001, -0.001, float("nan")):
        with pytest.raises(ValidationError):
            adapter.validate_python(Score("b", 1, expected))
