"""What a question accepts, whatever it was built from."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchwise.errors import SchemaError
from branchwise.schema.questions import (
    BooleanQuestion,
    ChoiceQuestion,
    MultiQuestion,
    Option,
    Schema,
    ScoreQuestion,
)
from worlds import options

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@pytest.mark.parametrize("kind", [ChoiceQuestion, MultiQuestion, ScoreQuestion])
@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("Yes", "yes"), "'Yes' and 'yes'"),
        (("a b", "a  b"), "'a b' and 'a  b'"),
        (("caf\u00e9", "cafe\u0301"), "differ at most"),
        (("straße", "STRASSE"), "'straße' and 'STRASSE'"),
        (("a", ""), "option 1 .* is empty"),
        (("a", " \t"), "option 1 .* is empty"),
        *((("a", f"b{character}c"), "line break") for character in "\n\r\t\0\x1b\x85\u2028\ud800"),
        ((), "0 options"),
        (tuple(map(str, range(256))), "256 options"),
    ],
)
def test_options_that_cannot_be_told_apart_are_refused_with_both_names(kind, texts, message):
    with pytest.raises(SchemaError, match=message) as found:
        kind("field", "Which", options(*texts))
    assert found.value.path == "field"
    assert "'field'" in str(found.value)


def test_255_options_are_allowed():
    assert len(ChoiceQuestion("f", "Which", options(*map(str, range(255)))).options) == 255


@given(st.lists(st.text(max_size=8), min_size=1, max_size=12))
def test_an_option_list_builds_exactly_when_its_folded_texts_differ(texts):
    folded = [unicodedata.normalize("NFC", " ".join(text.split())).casefold() for text in texts]
    on_a_line = all(len(text.splitlines()) <= 1 and not CONTROL.search(text) for text in texts)
    sound = len(set(folded)) == len(folded) and all(folded) and on_a_line
    if sound:
        assert [o.text for o in ChoiceQuestion("f", "Which", options(*texts)).options] == texts
    else:
        with pytest.raises(SchemaError):
            ChoiceQuestion("f", "Which", options(*texts))


def test_two_questions_of_one_name_are_refused():
    with pytest.raises(SchemaError, match="two questions"):
        Schema((BooleanQuestion("a", "x"), BooleanQuestion("a", "y")))


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\u2028b", "a\tb"])
def test_a_name_stands_on_one_line(name):
    with pytest.raises(SchemaError, match="field name"):
        BooleanQuestion(name, "x")


def test_the_fingerprint_follows_everything_that_is_asked():
    base = Schema((ChoiceQuestion("a", "Which", options("x", "y")),))
    assert (
        base.fingerprint == Schema((ChoiceQuestion("a", "Which", options("x", "y")),), build=list).fingerprint
    )
    others = [
        Schema((ChoiceQuestion("b", "Which", options("x", "y")),)),
        Schema((ChoiceQuestion("a", "What", options("x", "y")),)),
        Schema((ChoiceQuestion("a", "Which", options("y", "x")),)),
        Schema((ScoreQuestion("a", "Which", options("x", "y")),)),
        Schema((ChoiceQuestion("a", "Which", (Option("x", "x", "why"), Option("y", "y"))),)),
        Schema((ChoiceQuestion("a", "Which", options("x", "y"), nullable=True),)),
    ]
    assert len({schema.fingerprint for schema in [base, *others]}) == 7
