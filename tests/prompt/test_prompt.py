"""What a model is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchwise.backends.fake import ByteTokenizer
from branchwise.errors import PromptError
from branchwise.prompt import PROMPT_VERSION, Special, context_text, fenced, nonce_of, scaffold_for
from branchwise.prompt.pieces import joined
from branchwise.schema.questions import BooleanQuestion, ChoiceQuestion, MultiQuestion, Option, Schema
from worlds import TICKET, options, plan_for


class Templated(ByteTokenizer):
    """Byte tokens under a chat template given as a function of the messages."""

    def __init__(self, render, markers=("<|start|>", "<|end|>")):
        self.render = render
        self.special_tokens = {marker: 256 + i for i, marker in enumerate(markers)}

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str | None:
        return self.render(messages)


def text_of(pieces) -> str:
    return "".join(piece.token if isinstance(piece, Special) else piece for piece in pieces)


def test_the_shared_layout_shows_all_questions_before_the_context_and_ends_at_the_answer():
    plan = plan_for(TICKET, "shared", "labels")
    prefix = text_of(plan.prefix)
    for question in TICKET.questions:
        assert f"{question.name}: {question.text}\n" in prefix
    assert "- billing dispute\n" in prefix
    assert prefix.startswith("<|start|>system\n")
    assert prefix.endswith("\n")
    assert text_of(plan.after_context) == "<|end|>\n<|start|>assistant\n"
    assert [row.stem for row in plan.rows] == [
        "urgent: ",
        "category: ",
        "tags / refund: ",
        "tags / login: ",
        "tags / slow: ",
        "severity: ",
    ]
    assert plan.rows[1].endings == ("billing\n", "billing dispute\n", "bug\n", "praise\n")
    assert all(row.lead == () for row in plan.rows)


def test_the_isolated_layout_gives_each_question_its_own_branch():
    plan = plan_for(TICKET, "isolated", "labels")
    assert not any(question.text in text_of(plan.prefix) for question in TICKET.questions)
    assert plan.after_context == ()
    for row in plan.rows:
        lead = text_of(row.lead)
        mine = TICKET.questions[row.question]
        assert mine.text in lead
        assert not any(other.text in lead for other in TICKET.questions if other is not mine)
        assert lead.endswith("<|end|>\n<|start|>assistant\n")


@pytest.mark.parametrize("layout", ["shared", "isolated"])
def test_codes_are_shown_beside_the_options_they_stand_for(layout):
    plan = plan_for(TICKET, layout, "codes")
    shown = text_of(plan.prefix) + "".join(text_of(row.lead) for row in plan.rows)
    assert "- B = billing dispute\n" in shown
    category = next(row for row in plan.rows if row.question == 1)
    assert category.endings == ("A\n", "B\n", "C\n", "D\n")
    urgent = next(row for row in plan.rows if row.question == 0)
    assert urgent.endings == ("A\n", "B\n")
    assert "- A = yes\n- B = no\n" in shown
    assert all(row.endings == ("yes\n", "no\n") for row in plan.rows if row.option is not None)


@pytest.mark.parametrize("layout", ["shared", "isolated"])
def test_descriptions_are_shown_on_one_line_each(layout):
    schema = Schema(
        (
            ChoiceQuestion("kind", "Which\nkind", (Option("a", "a", "the\nfirst  one"), Option("b", "b"))),
            BooleanQuestion("ok", "Is it ok", true_description="all is well"),
            MultiQuestion("tags", "Which apply", (Option("x", "x", "has an x"),)),
        )
    )
    plan = plan_for(schema, layout, "labels")
    shown = text_of(plan.prefix) + "".join(text_of(row.lead) for row in plan.rows)
    assert "Which kind\n" in shown
    assert "- a: the first one\n- b\n" in shown
    assert "- yes: all is well\n- no\n" in shown
    assert "has an x" in shown


def test_a_template_that_refuses_a_system_role_gets_it_in_the_user_turn():
    def render(messages):
        if messages[0]["role"] == "system":
            raise PromptError("no system role")
        return "".join(f"<|start|>{m['role']}\n{m['content']}<|end|>\n" for m in messages) + "<|start|>a\n"

    found = scaffold_for(Templated(render))
    assert text_of(found.before_system) == "<|start|>user\n"
    assert found.before_user == ("\n\n",)
    assert text_of(found.after_user) == "<|end|>\n<|start|>a\n"


def test_a_template_that_drops_the_system_role_gets_it_in_the_user_turn():
    def render(messages):
        return "".join(f"<|start|>{m['content']}<|end|>" for m in messages if m["role"] == "user")

    found = scaffold_for(Templated(render))
    assert found.before_user == ("\n\n",)


def test_a_template_that_refuses_the_user_too_is_an_error():
    def refuse(messages):
        raise PromptError("nothing allowed")

    with pytest.raises(PromptError, match="nothing allowed"):
        scaffold_for(Templated(refuse))
    with pytest.raises(PromptError, match="user's text"):
        scaffold_for(Templated(lambda messages: "constant"))


def test_a_model_without_a_template_gets_plain_text():
    found = scaffold_for(Templated(lambda messages: None))
    assert found.before_system == ()
    assert found.before_user == ("\n\n",)
    assert found.after_user == ("\n",)


def test_markers_of_the_template_become_ids_and_never_text():
    found = scaffold_for(ByteTokenizer())
    assert found.before_system == (Special("<|start|>"), "system\n")
    assert found.before_user == (Special("<|end|>"), "\n", Special("<|start|>"), "user\n")


def test_the_longest_marker_wins():
    def render(messages):
        return "<a><a>b" + "".join(m["content"] for m in messages) + "<a>"

    found = scaffold_for(Templated(render, markers=("<a>", "<a>b")))
    assert found.before_system == (Special("<a>"), Special("<a>b"))


def test_neighbouring_texts_are_joined_and_empty_ones_dropped():
    assert joined(("a", "b", Special("<x>"), "", "c")) == ("ab", Special("<x>"), "c")


@given(st.text(st.characters(codec="utf-8")))
def test_a_context_never_holds_its_own_fence(text):
    nonce = nonce_of(text)
    assert nonce not in text
    assert nonce.islower()
    assert len(nonce) == 13
    assert fenced(text) == f"{nonce}\n{text}\n{nonce}\n"


def test_the_fence_of_one_context_does_not_close_another():
    inner = fenced("secret")
    assert nonce_of(inner) != nonce_of("secret")


@pytest.mark.parametrize(
    ("context", "text"),
    [
        ("plain", "plain"),
        ({"b": 1, "a": [True, None, "ü"]}, '{"b": 1, "a": [true, null, "ü"]}'),
        ([1, {"x": "y"}], '[1, {"x": "y"}]'),
        (
            [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}],
            "user: hi\n\nassistant: hello",
        ),
        ([{"role": "user", "content": "hi", "id": 3}], '[{"role": "user", "content": "hi", "id": 3}]'),
        ([{"role": "pilot", "content": "hi"}], '[{"role": "pilot", "content": "hi"}]'),
    ],
)
def test_contexts_of_every_kind_become_text(context, text):
    assert context_text(context, 0) == text


def test_the_prompt_has_a_version():
    assert PROMPT_VERSION


def test_options_of_a_question_stay_in_order():
    schema = Schema((ChoiceQuestion("kind", "Which", options("zebra", "ant", "mole")),))
    assert "- zebra\n- ant\n- mole\n" in text_of(plan_for(schema, "shared", "labels").prefix)
