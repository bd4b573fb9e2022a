"""Where the questions stand: before the context, shared by all, or each in a branch of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from branchwise.prompt import wording
from branchwise.prompt.pieces import Piece, PromptPlan, RowText, joined
from branchwise.prompt.scaffold import Scaffold
from branchwise.schema.questions import MultiQuestion, Question, Schema

CodesFor = Callable[[int], tuple[str, ...]]
"""``codes_for(n)``: n neutral codes of one token each."""

TERMINATOR = "\n"


class Layout(Protocol):
    """Turns a schema into a prompt plan. ``codes_for`` is None when answers are written as labels."""

    def __call__(self, schema: Schema, scaffold: Scaffold, codes_for: CodesFor | None) -> PromptPlan: ...


def shared(schema: Schema, scaffold: Scaffold, codes_for: CodesFor | None) -> PromptPlan:
    """System and all questions once, then the context, then a short row per question."""
    blocks = []
    rows: list[RowText] = []
    for index, question in enumerate(schema.questions):
        codes = _codes(question, codes_for)
        blocks.append(f"{question.name}: {_asked(question, codes)}\n")
        if isinstance(question, MultiQuestion):
            rows += (
                _row(index, number, (), f"{question.name} / {option.text}: ", wording.YES_NO)
                for number, option in enumerate(question.options)
            )
        elif len(question.options) > 1:
            rows.append(_row(index, None, (), f"{question.name}: ", _written(question, codes)))
    questions = "".join(blocks)
    prefix = (
        *scaffold.before_system,
        wording.SYSTEM,
        *scaffold.before_user,
        f"Questions:\n\n{questions}The text:\n",
    )
    return PromptPlan(joined(prefix), joined(scaffold.after_user), tuple(rows))


def isolated(schema: Schema, scaffold: Scaffold, codes_for: CodesFor | None) -> PromptPlan:
    """System, then the context, then every question in its own branch; names are not shown."""
    rows: list[RowText] = []
    for index, question in enumerate(schema.questions):
        if isinstance(question, MultiQuestion):
            for number, option in enumerate(question.options):
                text = wording.multi_item(question, option)
                lead: tuple[Piece, ...] = joined((text, *scaffold.after_user))
                rows.append(_row(index, number, lead, "Answer: ", wording.YES_NO))
        elif len(question.options) > 1:
            codes = _codes(question, codes_for)
            lead = joined((_asked(question, codes), *scaffold.after_user))
            rows.append(_row(index, None, lead, "Answer: ", _written(question, codes)))
    prefix = (*scaffold.before_system, wording.SYSTEM, *scaffold.before_user, "The text:\n")
    return PromptPlan(joined(prefix), (), tuple(rows))


LAYOUTS: dict[str, Layout] = {"shared": shared, "isolated": isolated}


def _codes(question: Question, codes_for: CodesFor | None) -> tuple[str, ...] | None:
    """A code per option; None for labels and for multi questions, whose rows are yes or no."""
    if codes_for is None or question.kind == "multi" or len(question.options) < 2:
        return None
    return codes_for(len(question.options))


def _asked(question: Question, codes: tuple[str, ...] | None) -> str:
    """The question, how to answer it, and its options."""
    how = wording.how_to_answer(question, codes)
    return f"{wording.heading(question)}\n{how}\n{_listed(question, codes)}"


def _listed(question: Question, codes: tuple[str, ...] | None) -> str:
    """The option lines; a boolean without codes or descriptions needs none."""
    plain = question.kind == "boolean" and codes is None
    if plain and not any(option.description for option in question.options):
        return ""
    return wording.option_lines(question.options, codes)


def _written(question: Question, codes: tuple[str, ...] | None) -> tuple[str, ...]:
    return codes if codes is not None else tuple(option.text for option in question.options)


def _row(
    question: int, option: int | None, lead: tuple[Piece, ...], stem: str, answers: tuple[str, ...]
) -> RowText:
    return RowText(question, option, lead, stem, tuple(answer + TERMINATOR for answer in answers))
