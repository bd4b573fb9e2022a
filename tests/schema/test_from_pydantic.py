"""Questions from Pydantic models, and models from answers."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from branchwise.errors import SchemaError
from branchwise.schema.build import schema_from_any
from branchwise.schema.from_pydantic import schema_from_model
from branchwise.schema.score import Score


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(StrEnum):
    LOW = "low"
    HIGH = "high"


class Stars(IntEnum):
    ONE = 1
    TWO = 2


class Customer(BaseModel):
    tier: Literal["free", "paid"]
    loyal: bool = Field(description="Do they stay?")


class Everything(BaseModel):
    """A bit of each."""

    urgent: bool = Field(json_schema_extra={"choice_descriptions": {"true": "today", "false": "later"}})
    topic_area: Literal["billing", "technical"] = Field(
        description="What it is about", json_schema_extra={"choice_descriptions": {"billing": "money"}}
    )
    size: Literal[1, 2, 3] = 2
    colour: Colour
    level: Level | None = None
    other: Colour | None
    stars: Annotated[Stars, Field(description="How many stars")]
    tags: list[Literal["a", "b"]]
    colours: set[Colour]
    pair: tuple[Literal["x", "y"], ...]
    severity: Score[Literal["low", "middle", "high"]]
    maybe: Score[Literal["no", "yes"]] | None
    effort: Level = Field(json_schema_extra={"ordered": True})
    constant: Literal["only"]
    customer: Customer


ANSWERS = {
    "urgent": True,
    "topic_area": "billing",
    "size": 3,
    "colour": Colour.RED,
    "level": None,
    "other": Colour.BLUE,
    "stars": Stars.TWO,
    "tags": ["a"],
    "colours": [Colour.BLUE],
    "pair": ["x", "y"],
    "severity": Score("middle", 1, 1.2),
    "maybe": None,
    "effort": Score("high", 1, 0.7),
    "constant": "only",
    "customer.tier": "paid",
    "customer.loyal": False,
}


def by_name(model):
    return {question.name: question for question in schema_from_model(model).questions}


def test_every_kind_of_field_becomes_its_question():
    found = by_name(Everything)
    kinds = {name: question.kind for name, question in found.items()}
    assert kinds == {
        "urgent": "boolean",
        "topic_area": "choice",
        "size": "choice",
        "colour": "choice",
        "level": "choice",
        "other": "choice",
        "stars": "choice",
        "tags": "multi",
        "colours": "multi",
        "pair": "multi",
        "severity": "score",
        "maybe": "score",
        "effort": "score",
        "constant": "choice",
        "customer.tier": "choice",
        "customer.loyal": "boolean",
    }
    assert found["topic_area"].text == "What it is about"
    assert found["customer.tier"].text == "customer tier"
    assert found["urgent"].text == "urgent"
    assert found["stars"].text == "How many stars"
    assert [o.description for o in found["topic_area"].options] == ["money", None]
    assert found["urgent"].true_description == "today"
    assert [(o.text, o.value) for o in found["size"].options] == [("1", 1), ("2", 2), ("3", 3)]
    assert [(o.text, o.value) for o in found["stars"].options] == [("1", Stars.ONE), ("2", Stars.TWO)]
    assert {name for name, q in found.items() if q.nullable} == {"level", "other", "maybe"}
    assert schema_from_model(Everything).title == "A bit of each."
    assert schema_from_model(Customer).title == ""


def test_answers_are_rebuilt_into_a_validated_model():
    value = schema_from_model(Everything).build(ANSWERS)
    assert isinstance(value, Everything)
    assert value.customer == Customer(tier="paid", loyal=False)
    assert value.urgent is True
    assert value.size == 3
    assert value.colours == {Colour.BLUE}
    assert value.pair == ("x", "y")
    assert value.effort is Level.HIGH
    assert value.severity == Score("middle", 1, 1.2)
    assert value.level is None


def test_the_same_class_is_read_once_and_asks_the_same(monkeypatch):
    first = schema_from_model(Everything)
    monkeypatch.setattr("branchwise.schema.from_pydantic.field_type", None)
    assert schema_from_any(Everything) == first
    assert schema_from_any(Everything).build(ANSWERS) == first.build(ANSWERS)


def test_a_class_that_was_read_can_be_freed():
    class Short(BaseModel):
        ok: bool

    schema_from_model(Short)
    gone = weakref.ref(Short)
    del Short
    gc.collect()
    assert gone() is None


class Recursive(BaseModel):
    again: Recursive


class HasText(BaseModel):
    inner: str


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (str, "a free string can't be decided"),
        (int, "a free integer can't be decided"),
        (float, "a free number can't be decided"),
        (dict[str, str], "can't be decided"),
        (Any, "allows everything"),
        (list[str], "a free string can't be decided"),
        (str | None, "a free string can't be decided"),
        (Literal["a"] | Literal[1] | bool, "union"),
        (Customer | None, "a model that may be None"),
        (Literal["a", True], "option True"),
        (tuple[Literal["a"], Literal["b"]], "fixed length"),
        (Literal["A", "a"], "'A' and 'a'"),
        (Literal[1, "1"], "'1' and '1'"),
        (HasText, "inner.*a free string can't be decided"),
    ],
)
def test_what_cannot_be_decided_is_refused_with_its_path_and_a_way_out(annotation, message):
    model = type("Model", (BaseModel,), {"__annotations__": {"field": annotation}, "__module__": __name__})
    with pytest.raises(SchemaError, match=message) as found:
        schema_from_model(model)
    assert found.value.path.startswith("field")
    assert found.value.fix


def test_a_model_that_contains_itself_is_refused():
    with pytest.raises(SchemaError, match="contains itself"):
        schema_from_model(Recursive)


def test_a_description_of_no_option_is_refused_with_the_nearest_one():
    class Typo(BaseModel):
        kind: Literal["billing", "bug"] = Field(json_schema_extra={"choice_descriptions": {"biling": "x"}})

    with pytest.raises(SchemaError, match="did you mean 'billing'"):
        schema_from_model(Typo)


@pytest.mark.parametrize("annotation", [bool, list[Literal["a", "b"]]])
def test_only_a_choice_can_be_ordered(annotation):
    class Ordered(BaseModel):
        field: annotation = Field(json_schema_extra={"ordered": True})

    with pytest.raises(SchemaError, match="order"):
        schema_from_model(Ordered)


def test_aliases_are_honoured():
    class Aliased(BaseModel):
        by_alias: bool = Field(alias="byAlias")

    class Named(BaseModel):
        model_config = ConfigDict(populate_by_name=True)
        by_alias: bool = Field(alias="byAlias")
        inner: Aliased = Field(alias="theInner")

    answers = {"by_alias": True, "inner.by_alias": False}
    value = schema_from_model(Named).build(answers)
    assert value.by_alias is True
    assert value.inner.by_alias is False


def test_a_models_own_validator_that_refuses_is_a_schema_error():
    class Strict(BaseModel):
        ok: bool

        @field_validator("ok")
        @classmethod
        def check(cls, value):
            if value:
                raise ValueError("never true")
            return value

    assert schema_from_model(Strict).build({"ok": False}).ok is False
    with pytest.raises(SchemaError, match="never true") as found:
        schema_from_model(Strict).build({"ok": True})
    assert isinstance(found.value.__cause__, ValidationError)


SCORE = TypeAdapter(Score[Literal["low", "middle", "high"]])


@pytest.mark.parametrize(
    "given",
    [Score("middle", 1, 1.3), {"level": "middle", "index": 1, "expected": 1.3}],
)
def test_a_score_validates_from_itself_and_its_json_form(given):
    assert SCORE.validate_python(given) == Score("middle", 1, 1.3)
    assert SCORE.validate_json(SCORE.dump_json(Score("middle", 1, 1.3))) == Score("middle", 1, 1.3)


def test_a_score_validates_from_a_level():
    assert SCORE.validate_python("high") == Score("high", 2, 2.0)


@pytest.mark.parametrize(
    "given",
    [
        "none",
        3,
        {"level": "low", "index": 2, "expected": 0.0},
        {"level": "low", "index": 0, "expected": 9.0},
        {"level": "low"},
        Score("low", 1, 0.0),
        Score("odd", 0, 0.0),
    ],
)
def test_a_score_of_no_level_is_refused(given):
    with pytest.raises(ValidationError):
        SCORE.validate_python(given)


def test_a_score_has_a_json_schema():
    schema = SCORE.json_schema()
    assert set(schema["required"]) == {"level", "index", "expected"}
    assert schema["properties"]["level"]["enum"] == ["low", "middle", "high"]


@pytest.mark.parametrize("source", [int, 3, "ticket.json", None, Everything.__doc__])
def test_what_is_no_schema_is_refused(source):
    with pytest.raises(SchemaError, match="is no schema"):
        schema_from_any(source)


def test_a_score_is_an_immutable_value():
    score = Score("low", 0, 0.25)
    assert score == Score("low", 0, 0.25) != Score("low", 0, 0.5)
    assert len({score, Score("low", 0, 0.25)}) == 1
    assert pickle.loads(pickle.dumps(score)) == copy.deepcopy(score) == score
    with pytest.raises(AttributeError):
        score.index = 3


@pytest.mark.parametrize("annotation", [Score, Score[str], Score[Literal[1, 2]]])
def test_a_score_without_levels_is_refused_where_it_is_written(annotation):
    with pytest.raises(SchemaError, match="names no levels"):
        TypeAdapter(annotation)


class Later(BaseModel):
    kind: Kinds  # noqa: F821 - defined by the test below
    other: Literal["a", "b"]


def test_an_annotation_may_be_defined_after_its_model_but_must_be():
    with pytest.raises(SchemaError, match="names 'Kinds', which is not defined"):
        schema_from_model(Later)
    globals()["Kinds"] = Literal["x", "y"]
    try:
        assert [o.text for o in schema_from_model(Later).questions[0].options] == ["x", "y"]
    finally:
        del globals()["Kinds"]
