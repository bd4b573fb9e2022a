"""Every preset is a schema that compiles, with contexts that differ."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from branchwise.api import Decider
from branchwise.backends.fake import FakeBackend
from branchwise.errors import ConfigError
from branchwise.presets import load_preset, preset_names
from branchwise.schema.build import schema_from_any

NAMES = ("content_moderation", "inbound_email", "product_category_255", "support_triage")
every_preset = pytest.mark.parametrize("name", NAMES)


def test_these_are_the_presets():
    assert preset_names() == NAMES


@pytest.mark.parametrize("name", ["suport_triage", "Support_triage"])
def test_an_unknown_name_is_answered_with_the_nearest(name):
    with pytest.raises(ConfigError, match="did you mean 'support_triage'"):
        load_preset(name)


def test_a_name_is_no_path():
    with pytest.raises(ConfigError, match="'support_triage'"):
        load_preset("../presets/support_triage")


@every_preset
def test_a_preset_is_a_schema_with_five_to_eight_contexts_of_mixed_length(name):
    preset = load_preset(name)
    assert preset.id == name
    assert preset.title
    assert preset.description
    schema = schema_from_any(preset.schema_document)
    assert {question.kind for question in schema.questions} >= {"boolean", "choice", "score"}
    assert 5 <= len(preset.contexts) <= 8
    assert len(set(preset.contexts)) == len(preset.contexts)
    lengths = [len(context) for context in preset.contexts]
    assert min(lengths) * 5 < max(lengths) < 2400


@every_preset
def test_no_two_names_or_options_of_a_preset_differ_in_case_alone(name):
    schema = schema_from_any(load_preset(name).schema_document)
    for texts in [
        [question.name for question in schema.questions],
        *([option.text for option in question.options] for question in schema.questions),
    ]:
        assert len({text.casefold() for text in texts}) == len(texts)


@every_preset
def test_every_text_of_a_preset_is_one_tidy_line(name):
    for text in _texts(load_preset(name).schema_document):
        assert text == " ".join(text.split()), text


@every_preset
def test_every_context_of_a_preset_gets_every_answer(name):
    preset = load_preset(name)
    decisions = list(Decider(FakeBackend()).decide_many(preset.schema_document, preset.contexts))
    assert len(decisions) == len(preset.contexts)
    for decision in decisions:
        assert list(decision.fields) == list(preset.schema_document["questions"])


def test_one_question_has_exactly_255_options():
    schema = schema_from_any(load_preset("product_category_255").schema_document)
    assert max(len(question.options) for question in schema.questions) == 255


def _texts(document: object) -> Iterator[str]:
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict):
        for key, value in document.items():
            yield key
            yield from _texts(value)
    elif isinstance(document, list):
        for value in document:
            yield from _texts(value)
