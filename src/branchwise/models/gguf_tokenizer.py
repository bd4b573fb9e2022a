"""The tokenizer that a GGUF file describes, as a ``tokenizer.json`` document.

A GGUF holds vocabulary, merges and token types, and names its pre-tokenizer
(``tokenizer.ggml.pre``). What each name stands for is defined by llama.cpp (``llama-vocab.cpp``,
``llm_tokenizer_bpe``); a name that is not in the table below is refused, because a wrong split
gives other tokens without any error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from branchwise.errors import UnsupportedModelError

JsonObject = dict[str, Any]

CONTROL, USER_DEFINED = 3, 4  # llama.cpp's llama_token_type

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_CASED = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_LEAD}\p{{L}}+|\p{{N}}{{1,3}}|{_PUNCTUATION}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_LEAD}\p{{L}}+|\p{{N}}|{_PUNCTUATION}|{_SPACES}"
_QWEN35 = rf"{_CONTRACTIONS}|{_LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_TEKKEN = (
    rf"{_LEAD}{_CASED}*{_LOWER}+|{_LEAD}{_CASED}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_GPT4O = (
    rf"{_LEAD}{_CASED}*{_LOWER}+{_CONTRACTIONS}?|{_LEAD}{_CASED}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)


@dataclass(frozen=True)
class Splitting:
    """How a text is cut before merging.

    ``patterns``: each cuts the pieces of the one before, matches and gaps alike. ``whole``:
    whether a piece that is a vocabulary entry is taken without merging. ``starts_with_bos``: what
    holds when the file does not say. ``nfc``: whether the model's own tokenizer composes first.
    """

    patterns: tuple[str, ...]
    whole: bool = False
    starts_with_bos: bool = False
    nfc: bool = False


_DIGITS_GPT2 = Splitting((r"\p{N}", _GPT2))
_LLAMA3_SPLITTING = Splitting((_LLAMA3,), whole=True, starts_with_bos=True)
_QWEN2_SPLITTING = Splitting((_QWEN2,), nfc=True)

SPLITTINGS: Mapping[str, Splitting] = {
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"), _DIGITS_GPT2),
    "command-r": replace(_DIGITS_GPT2, nfc=True),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4"), Splitting((_GPT2,))),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2"), _LLAMA3_SPLITTING),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), Splitting((_LLAMA3,))),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN2_SPLITTING),
    "stablelm2": Splitting((_QWEN2,)),
    "qwen35": Splitting((_QWEN35,), nfc=True),
    "tekken": Splitting((_TEKKEN,), whole=True, starts_with_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4"), Splitting((_GPT4O,))),
    "deepseek-v3": Splitting(_DEEPSEEK3),
    "falcon": Splitting((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
}


def byte_level_document(fields: Mapping[str, Any]) -> JsonObject:
    """``tokenizer.json`` of a byte-level BPE vocabulary, from the GGUF's metadata.

    ``fields``: metadata by full key, arrays as lists. Control tokens become special added tokens,
    user-defined ones plain added tokens. Raises :class:`UnsupportedModelError` when the
    pre-tokenizer is not one of ``SPLITTINGS``.
    """
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    types: list[int] = fields.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    splitting = _splitting(fields)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added_token(i, tokens[i], special=kind == CONTROL)
            for i, kind in enumerate(types)
            if kind in (CONTROL, USER_DEFINED)
        ],
        "normalizer": {"type": "NFC"} if splitting.nfc else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                *(_split(pattern) for pattern in splitting.patterns),
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": _bos_processor(fields),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": splitting.whole,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [_pair(merge) for merge in fields["tokenizer.ggml.merges"]],
        },
    }


def starts_with_bos(fields: Mapping[str, Any]) -> bool:
    """Whether the file's tokenizer puts its begin token in front of a text."""
    stated = fields.get("tokenizer.ggml.add_bos_token")
    return _splitting(fields).starts_with_bos if stated is None else bool(stated)


def special_names(fields: Mapping[str, Any]) -> dict[str, str]:
    """The named special tokens, as ``tokenizer_config.json`` spells them."""
    tokens = fields["tokenizer.ggml.tokens"]
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: fields.get(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}
    return {name: tokens[i] for name, i in ids.items() if i is not None and 0 <= i < len(tokens)}


def _splitting(fields: Mapping[str, Any]) -> Splitting:
    name = fields.get("tokenizer.ggml.pre", "default")
    if name not in SPLITTINGS:
        raise UnsupportedModelError(
            f"the GGUF file names the pre-tokenizer {name!r}, which Branchwise does not know; "
            f"use the model's safetensors folder, which has a tokenizer.json"
        )
    return SPLITTINGS[name]


def _added_token(token_id: int, content: str, *, special: bool) -> JsonObject:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, **flags, "special": special}


def _split(pattern: str) -> JsonObject:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _pair(merge: str) -> list[str]:
    cut = merge.index(" ", 1)  # a left part may start with a space
    return [merge[:cut], merge[cut + 1 :]]


def _bos_processor(fields: Mapping[str, Any]) -> JsonObject | None:
    token = special_names(fields).get("bos_token")
    if token is None or not starts_with_bos(fields):
        return None
    bos = {"SpecialToken": {"id": token, "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 1}}
    token_id = fields["tokenizer.ggml.bos_token_id"]
    return {
        "type": "TemplateProcessing",
        "single": [bos, text],
        "pair": [bos, text, bos, second],
        "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}},
    }
