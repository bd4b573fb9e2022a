"""HFTokenizer over small tokenizers of the five kinds that model folders have."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from branchwise.backends.hf_tokenizer import HFTokenizer, plain_document
from branchwise.backends.tokenizer import Tokenizer as TokenizerProtocol
from branchwise.errors import ModelNotFoundError, PromptError
from branchwise.models.chat_template import ChatTemplate

MARKERS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
CORPUS = [
    "the cat sat on the mat and the dog sat on the log",
    "<think> a marker that the corpus spells </think> <think> </think>",
    "one two three, 1 2 3;\n\nnew line\n  indented\tand a tab",
]


def _byte_level() -> Tokenizer:
    """Like GPT-2; its merges spell <think>, which is an added token as well."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "merged_with_next"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([*CORPUS, "<think>" + "\n<think>" * 20, "</think>\n" * 20], trainer)
    assert tokenizer.token_to_id("<think>") is not None
    tokenizer.add_special_tokens(list(MARKERS[:2]))
    tokenizer.add_tokens(list(MARKERS[2:]))
    return tokenizer


def _runs_of_space() -> Tokenizer:
    """Like GPT-NeoX: white space runs among the added tokens, behind a marker, above the vocabulary."""
    tokenizer = Tokenizer.from_str(_byte_level().to_str())
    tokenizer.add_tokens([AddedToken("|||ADDRESS|||", normalized=False)])
    tokenizer.add_tokens([AddedToken(" " * n, normalized=False) for n in (4, 3)])
    return tokenizer


def _sentencepiece(*, prepend_by_normalizer: bool) -> Tokenizer:
    """Like Llama 2 (normalizer) or Mistral (Metaspace): a space in front, bytes as a fallback."""
    specials = ["<unk>", "<s>", "</s>"]
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    letters = sorted({letter for text in CORPUS for letter in text.replace(" ", "▁") if letter not in "\n\t"})
    merges = [
        ("▁", "t"),
        ("h", "e"),
        ("▁t", "he"),
        ("a", "t"),
        ("▁", "s"),
        ("▁s", "at"),
        ("i", "n"),
        ("▁", "▁"),
    ]
    entries = [*specials, *bytes_, *letters, *("".join(pair) for pair in merges), *MARKERS]
    vocab = {entry: i for i, entry in enumerate(dict.fromkeys(entries))}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if prepend_by_normalizer:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        space = decoders.Replace("▁", " ")
        tail = [decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        tokenizer.decoder = decoders.Sequence([space, *tail])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
        tail = [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")]
        tokenizer.decoder = decoders.Sequence(tail)
    tokenizer.add_special_tokens([*specials, *MARKERS])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", vocab["<s>"])]
    )
    return tokenizer


def _unigram() -> Tokenizer:
    """Like T5 or XGLM: every vocabulary entry is reachable, the markers' too."""
    letters = sorted({letter for text in CORPUS for letter in text.replace(" ", "▁")})
    pieces = [("<unk>", 0.0), *((marker, -1.0) for marker in MARKERS)]
    pieces += [("▁the", -2.0), ("▁sat", -3.0), *((letter, -5.0) for letter in letters)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens(["<unk>", *MARKERS])
    return tokenizer


WORLDS = {
    "byte level": _byte_level,
    "runs of space": _runs_of_space,
    "prepending normalizer": lambda: _sentencepiece(prepend_by_normalizer=True),
    "prepending metaspace": lambda: _sentencepiece(prepend_by_normalizer=False),
    "unigram": _unigram,
}
LOSSLESS = ("byte level", "runs of space", "prepending normalizer")
every_world = pytest.mark.parametrize("world", WORLDS)


@cache
def original(world: str) -> Tokenizer:
    return WORLDS[world]()


@cache
def ours(world: str) -> HFTokenizer:
    return HFTokenizer(original(world).to_str(), None, {})


text_with_markers = st.lists(
    st.one_of(
        st.sampled_from(
            [*MARKERS, "<s>", "<unk>", "|||ADDRESS|||", " ", "   ", "\n", "the", "<", "|>", "think"]
        ),
        st.text(max_size=6),
    ),
    max_size=12,
).map("".join)


@every_world
@settings(max_examples=150, deadline=None)
@given(text=text_with_markers)
def test_no_text_is_read_as_a_marker(world: str, text: str) -> None:
    tokenizer = ours(world)
    markers = {i for token, i in tokenizer.special_tokens.items() if token != "<unk>"}
    assert markers.isdisjoint(tokenizer.encode(text))


@pytest.mark.parametrize("world", LOSSLESS)
@settings(max_examples=150, deadline=None)
@given(text=text_with_markers)
def test_decoding_gives_the_text_back(world: str, text: str) -> None:
    spaces = world == "prepending normalizer"  # SentencePiece writes a space as this sign
    expected = text.replace("▁", " ") if spaces else text
    assert ours(world).decode(ours(world).encode(text)) == expected


@every_world
@settings(max_examples=50, deadline=None)
@given(texts=st.lists(text_with_markers, max_size=4))
def test_encode_many_is_encode_of_each(world: str, texts: list[str]) -> None:
    assert ours(world).encode_many(texts) == [ours(world).encode(text) for text in texts]


@every_world
@pytest.mark.parametrize("text", ["the cat", " the cat", "  the", "1", "a\nb", "cat", "\tthe"])
def test_a_text_has_the_tokens_it_has_after_a_line_break(world: str, text: str) -> None:
    def library(whole: str) -> list[int]:
        return list(original(world).encode(whole, add_special_tokens=False).ids)

    assert ours(world).encode(text) == library("\n" + text)[len(library("\n")) :]


@every_world
def test_a_marker_spelled_in_text_is_one_token_for_the_library_and_several_here(world: str) -> None:
    for marker in MARKERS:
        token_id = ours(world).special_tokens[marker]
        assert token_id in original(world).encode(marker, add_special_tokens=False).ids
        assert len(ours(world).encode(marker)) > 1
        assert ours(world).decode([token_id]) == marker


def test_white_space_tokens_keep_their_ids_and_are_no_markers() -> None:
    library, tokenizer = original("runs of space"), ours("runs of space")
    four = library.token_to_id("    ")
    assert four > library.token_to_id("|||ADDRESS|||") > library.get_vocab_size(with_added_tokens=False)
    assert tokenizer.encode("a    b") == library.encode("a    b").ids
    assert four in tokenizer.encode("a    b")
    assert "    " not in tokenizer.special_tokens


@every_world
def test_vocab_size_bounds_every_id(world: str) -> None:
    assert ours(world).vocab_size == 1 + max(original(world).get_vocab(with_added_tokens=True).values())


def test_a_vocabulary_without_markers_reads_the_same(tmp_path: Path) -> None:
    """The JSON with markers taken out and the shared model are two ways to one reading."""
    shared = ours("byte level")
    rebuilt = Tokenizer.from_str(json.dumps(plain_document(json.loads(original("byte level").to_str()))))
    for text in CORPUS[::2]:
        assert rebuilt.encode(text).ids == shared.encode(text)


def _bos(world: str, **config: object) -> int | None:
    return HFTokenizer(original(world).to_str(), None, config).bos_id


def test_bos_is_what_the_post_processor_puts_in_front() -> None:
    assert _bos("prepending normalizer") == original("prepending normalizer").token_to_id("<s>")
    assert _bos("byte level", bos_token="<|im_start|>") is None


def test_add_bos_token_in_the_configuration_wins() -> None:
    assert _bos("prepending normalizer", bos_token="<s>", add_bos_token=False) is None
    found = _bos("byte level", bos_token="<|im_start|>", add_bos_token=True)
    assert found == original("byte level").token_to_id("<|im_start|>")


def test_unknown_characters_are_the_unknown_token_and_no_error() -> None:
    assert ours("unigram").encode("☃") == [0]


def test_a_tokenizer_that_trims_texts_is_refused() -> None:
    tokenizer = _byte_level()
    tokenizer.normalizer = normalizers.Strip()
    with pytest.raises(PromptError, match="can't be joined"):
        HFTokenizer(tokenizer.to_str(), None, {})


def test_fingerprint_depends_on_tokenizer_and_template() -> None:
    document = original("byte level").to_str()
    base = HFTokenizer(document, None, {}).fingerprint
    assert base == ours("byte level").fingerprint != ours("unigram").fingerprint
    assert base != HFTokenizer(document, ChatTemplate("{{ messages }}", {}), {}).fingerprint
    assert len(base) == 16


def test_a_folder_gives_tokenizer_template_and_special_tokens(tmp_path: Path) -> None:
    original("byte level").save(str(tmp_path / "tokenizer.json"))
    config = {
        "bos_token": {"content": "<|im_start|>"},
        "chat_template": "{{ bos_token }}{{ messages[0].content }}",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer: TokenizerProtocol = HFTokenizer.from_folder(tmp_path)
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]) == "<|im_start|>hi"
    assert tokenizer.bos_id is None


def test_a_folder_without_a_template_renders_none(tmp_path: Path) -> None:
    original("byte level").save(str(tmp_path / "tokenizer.json"))
    assert HFTokenizer.from_folder(tmp_path).render_chat([]) is None


def test_a_folder_without_tokenizer_json_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no tokenizer\.json"):
        HFTokenizer.from_folder(tmp_path)


def test_a_broken_tokenizer_json_is_a_prompt_error() -> None:
    with pytest.raises(PromptError, match="can't be read"):
        HFTokenizer("{}", None, {})


def test_loading_and_rendering_import_no_model_library(tmp_path: Path) -> None:
    original("byte level").save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    script = (
        "import sys\n"
        "from branchwise.backends.hf_tokenizer import HFTokenizer\n"
        "tokenizer = HFTokenizer.from_folder(sys.argv[1])\n"
        "assert tokenizer.render_chat([{'role': 'user', 'content': 'hi'}]) == 'hi'\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'heavy import'\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
