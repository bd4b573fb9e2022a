"""The public surface, over the fake backend."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from enum import Enum
from typing import Literal

import pytest
from pydantic import BaseModel, Field

import branchwise as bw
from branchwise.backends.fake import FakeBackend
from worlds import CONTEXTS, TICKET


class Kind(Enum):
    BUG = "bug"
    IDEA = "idea"


class Ticket(BaseModel):
    urgent: bool
    category: Literal["billing", "technical", "feedback"] = Field(description="What the ticket is about")
    kind: Kind
    tags: list[Literal["refund", "login", "performance"]] = []
    severity: bw.Score[Literal["cosmetic", "annoying", "blocking"]]


def decider(**settings):
    return bw.Decider(FakeBackend(), **settings)


def test_a_decision_is_a_validated_model_with_a_result_for_every_field():
    decision = decider().decide(Ticket, "Charged twice, please refund one of the charges.")
    assert isinstance(decision.value, Ticket)
    assert set(decision.fields) == set(Ticket.model_fields)
    category = decision.fields["category"]
    assert decision.value.category == category.value
    assert set(category.probabilities) == {"billing", "technical", "feedback"}
    assert sum(category.probabilities.values()) == pytest.approx(1)
    assert (
        category.probability == category.probabilities[category.value] == max(category.probabilities.values())
    )
    ranked = [category.probability, *(other.probability for other in category.alternatives)]
    assert ranked == sorted(category.probabilities.values(), reverse=True)
    assert category.margin == pytest.approx(ranked[0] - ranked[1])
    assert 0 < category.legal_mass <= 1
    assert isinstance(decision.value.kind, Kind)
    assert isinstance(decision.value.urgent, bool)
    severity = decision.value.severity
    assert severity == decision.fields["severity"].value
    levels = ("cosmetic", "annoying", "blocking")
    probabilities = decision.fields["severity"].probabilities
    assert severity.level == levels[severity.index] == max(probabilities, key=probabilities.get)
    assert severity.expected == pytest.approx(sum(i * probabilities[x] for i, x in enumerate(levels)))


def test_decide_many_equals_decide_one_by_one():
    made = decider(token_budget=800)
    many = list(made.decide_many(Ticket, iter(CONTEXTS)))
    assert [d.fields for d in many] == [decider().decide(Ticket, c).fields for c in CONTEXTS]
    assert [d.value for d in many] == [decider().decide(Ticket, c).value for c in CONTEXTS]
    assert list(made.decide_many(Ticket, [])) == []


def test_an_items_error_is_raised_at_its_turn_or_returned_in_its_place():
    contexts = ["fine", 3, "also fine"]
    stream = decider().decide_many(Ticket, contexts)
    assert isinstance(next(stream), bw.Decision)
    with pytest.raises(bw.ContextTypeError, match="context 1"):
        next(stream)
    returned = list(decider().decide_many(Ticket, contexts, on_error="return"))
    assert [type(outcome) for outcome in returned] == [bw.Decision, bw.ContextTypeError, bw.Decision]


@pytest.mark.parametrize("contexts", ["one text", b"bytes", {"a": "mapping"}, 7, None])
def test_what_is_no_list_of_contexts_is_refused_at_once(contexts):
    with pytest.raises(bw.ConfigError, match="contexts"):
        decider().decide_many(Ticket, contexts)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"temperature": 0}, "temperature"),
        ({"on_error": "ignore"}, "on_error"),
        ({"legal_mass": "yes"}, "legal_mass"),
    ],
)
def test_a_wrong_argument_is_refused_before_a_context_is_read(call, message):
    def never():
        raise AssertionError("read")
        yield

    with pytest.raises(bw.ConfigError, match=message):
        decider().decide_many(Ticket, never(), **call)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "packd"}, "did you mean 'packed'"),
        ({"layout": "own"}, "'shared', 'isolated'"),
        ({"answers": "label"}, "did you mean 'labels'"),
        ({"token_budget": 0}, "token_budget"),
        ({"memory_budget": -1}, "memory_budget"),
        ({"cache_bytes": -1}, "cache_bytes"),
        ({"device": "cpu"}, "backend object"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_is_allowed(settings, message):
    with pytest.raises(bw.ConfigError, match=message):
        decider(**settings)


def test_an_unknown_backend_or_option_is_refused():
    with pytest.raises(bw.ConfigError, match="'torch'"):
        bw.Decider("smollm2-135m", backend="torhc")
    with pytest.raises(TypeError):
        decider(temprature=2)


def test_the_async_twins_give_the_same():
    async def run():
        made = decider()
        one = await made.adecide(Ticket, CONTEXTS[0])
        many = [d async for d in made.adecide_many(Ticket, CONTEXTS, on_error="return")]
        return one, many

    one, many = asyncio.run(run())
    assert one.fields == decider().decide(Ticket, CONTEXTS[0]).fields
    assert [d.fields for d in many] == [d.fields for d in decider().decide_many(Ticket, CONTEXTS)]


def test_the_one_question_helpers_give_one_field():
    made = decider()
    chosen = made.choose("The soup is cold.", ["food", "service"], "What is it about?")
    assert chosen.kind == "choice"
    assert chosen.value in ("food", "service")
    described = made.choose("The soup is cold.", {"food": "what is eaten", "service": None})
    assert described.probabilities != chosen.probabilities
    judged = made.judge("The soup is cold.", "Is it a complaint?")
    assert judged.kind == "boolean"
    assert judged.value is (judged.probabilities["yes"] >= 0.5)
    rated = made.rate("The soup is cold.", ["low", "middle", "high"], "How angry?")
    assert rated.kind == "score"
    assert 0 <= rated.expected <= 2
    with pytest.raises(bw.ConfigError, match="at least 2"):
        made.choose("x", ["one"])
    with pytest.raises(bw.ConfigError, match="a list"):
        made.choose("x", "food")
    with pytest.raises(bw.SchemaError, match="'food' and 'Food'"):
        made.choose("x", ["food", "Food"])


def test_a_decision_becomes_json_without_rounding():
    decision = decider().decide(Ticket, "x")
    data = json.loads(decision.to_json())
    assert data == decision.to_dict()
    assert data["value"] == json.loads(decision.value.model_dump_json())
    assert data["fields"]["category"]["probability"] == decision.fields["category"].probability
    assert data["fields"]["kind"]["value"] == decision.value.kind.value
    assert data["provenance"]["schema"] == decision.provenance.schema
    assert data["telemetry"]["tokens_computed"] == decision.telemetry.tokens_computed


def test_a_plain_schema_gives_a_dict():
    decision = decider().decide(TICKET, "x")
    assert set(decision.value) == {question.name for question in TICKET.questions}


def test_progress_goes_to_standard_error(capfd):
    made = decider()
    assert len(list(made.decide_many(Ticket, CONTEXTS, progress=True))) == len(CONTEXTS)
    assert capfd.readouterr().out == ""


def test_the_public_names_are_exactly_these():
    ours = {
        name for name, thing in vars(bw).items() if getattr(thing, "__module__", "").startswith("branchwise")
    }
    assert ours - {"__getattr__"} | {"Decider"} == set(bw.__all__) - {"__version__"}
    assert all(getattr(bw, name) is not None for name in bw.__all__)


def test_importing_branchwise_loads_no_model_library():
    code = (
        "import sys, branchwise; "
        "heavy = {'torch', 'transformers', 'mlx', 'llama_cpp', 'scipy', 'huggingface_hub', 'typer', 'rich'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
