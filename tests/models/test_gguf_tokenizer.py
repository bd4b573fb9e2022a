"""Pre-tokenizers by the name a GGUF file gives them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

from branchwise.errors import UnsupportedModelError
from branchwise.models.gguf_tokenizer import SPLITTINGS, byte_level_document
from models.gguf_samples import vocabulary


def _fields(**changed: Any) -> dict[str, Any]:
    tokens, merges, types = vocabulary()
    fields = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.bos_token_id": 0,
    }
    return fields | {f"tokenizer.ggml.{key}": value for key, value in changed.items()}


def _tokenizer(**changed: Any) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(byte_level_document(_fields(**changed))))


def _pieces(pre: str, text: str) -> list[str]:
    """What ``text`` is cut into, in readable letters."""
    cut = _tokenizer(pre=pre).pre_tokenizer.pre_tokenize_str(text)
    return [text[start:stop] for _, (start, stop) in cut]


SMOLLM = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)])
GPT2 = ByteLevel(add_prefix_space=False, use_regex=True)
prose = st.lists(
    st.sampled_from(
        ["we'll", " I'm", "a", "é", "漢字", "12", " 345", "٣", "½", "  ", "\n", "\t", "--", " ?!", "_"]
    )
).map("".join)


@settings(max_examples=200, deadline=None)
@given(text=st.one_of(prose, st.text(max_size=20)))
def test_smollm_splits_as_its_published_tokenizer_does(text: str) -> None:
    assert _tokenizer(pre="smollm").pre_tokenizer.pre_tokenize_str(text) == SMOLLM.pre_tokenize_str(text)


@settings(max_examples=200, deadline=None)
@given(text=st.one_of(prose, st.text(max_size=20)))
def test_gpt_2_splits_as_the_library_does(text: str) -> None:
    assert _tokenizer(pre="gpt-2").pre_tokenizer.pre_tokenize_str(text) == GPT2.pre_tokenize_str(text)


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["We", "'ll", " pay", " ", "1", "2", "3", "4", "€", "\n\n", " DieS"]),
        ("gpt-2", ["We", "'ll", " pay", " 1234", "€", "\n\n", " DieS"]),
        ("llama-bpe", ["We", "'ll", " pay", " ", "123", "4", "€\n\n", " DieS"]),
        ("qwen2", ["We", "'ll", " pay", " ", "1", "2", "3", "4", "€\n\n", " DieS"]),
        ("tekken", ["We", "'ll", " pay", " ", "1", "2", "3", "4", "€\n\n", " Die", "S"]),
        ("gpt-4o", ["We'll", " pay", " ", "123", "4", "€\n\n", " Die", "S"]),
        ("deepseek-v3", ["We", "'ll", " pay", " ", "123", "4", "€\n\n", " DieS"]),
        ("falcon", ["We", "'", "ll", " pay", " ", "123", "4", "€", "\n\n", " DieS"]),
    ],
)
def test_splits_worked_out_from_the_expressions_by_hand(pre: str, pieces: list[str]) -> None:
    assert _pieces(pre, "".join(pieces)) == pieces


@pytest.mark.parametrize("pre", SPLITTINGS)
@settings(max_examples=20, deadline=None)
@given(text=prose)
def test_every_splitting_keeps_every_character(pre: str, text: str) -> None:
    tokenizer = _tokenizer(pre=pre)
    normal = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
    assert tokenizer.decode(tokenizer.encode(text).ids) == normal


@pytest.mark.parametrize("name", ["default", "of tomorrow"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=name):
        byte_level_document(_fields(pre=name))


def test_a_file_that_names_no_pre_tokenizer_is_refused() -> None:
    fields = _fields()
    del fields["tokenizer.ggml.pre"]
    with pytest.raises(UnsupportedModelError, match="default"):
        byte_level_document(fields)


def test_control_tokens_are_special_and_user_defined_ones_plain_added_tokens() -> None:
    added = _tokenizer().get_added_tokens_decoder()
    assert {token.content: token.special for token in added.values()} == {
        "<|im_start|>": True,
        "<|im_end|>": True,
        "<think>": False,
    }


@pytest.mark.parametrize(
    ("stated", "pre", "starts"),
    [(None, "smollm", False), (True, "smollm", True), (None, "llama-bpe", True), (False, "llama-bpe", False)],
)
def test_bos_as_stated_or_as_the_pre_tokenizer_implies(stated: bool | None, pre: str, starts: bool) -> None:
    changed = {"pre": pre} if stated is None else {"pre": pre, "add_bos_token": stated}
    assert (_tokenizer(**changed).encode("a").ids[0] == 0) == starts
