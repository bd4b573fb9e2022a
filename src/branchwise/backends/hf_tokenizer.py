"""The tokenizer of a model folder, by the ``tokenizers`` library alone.

Two things differ from the library's own reading of a folder:

- A text is only text. Added tokens (``<|im_start|>``, ``<think>``) that are spelled in it become
  ordinary tokens. Added tokens of white space alone are kept: they are no markers, and models were
  trained on them.
- A text is a fragment, tokenized as it would be in the middle of a running text. SentencePiece-like
  tokenizers put a space in front of a text; that is left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from branchwise.errors import ModelNotFoundError, PromptError
from branchwise.models.chat_template import ChatTemplate, load_chat_template, special_token_variables

JsonObject = dict[str, Any]

_PROBES = ("a", " a", "1")
_ANCHORS = ("\n", ":", ".")
_UNREACHABLE = " \U0010ffff"  # a raw space and a noncharacter: no tokenizer's alphabet has both


class HFTokenizer:
    """Implements :class:`branchwise.backends.tokenizer.Tokenizer` for a model folder."""

    def __init__(self, document: str, template: ChatTemplate | None, variables: Mapping[str, Any]) -> None:
        """``document``: ``tokenizer.json``. ``variables``: of ``tokenizer_config.json``."""
        self._template = template
        self._full = _parse(document)
        self._full.no_truncation()
        self._full.no_padding()
        added = self._full.get_added_tokens_decoder()
        self.special_tokens: Mapping[str, int] = {
            token.content: i for i, token in sorted(added.items()) if not is_white_space(token.content)
        }
        self._markers = frozenset(self.special_tokens.values()) - {_unknown_id(self._full)}
        self._plain = _share_model(self._full, added)
        if not self._reads_plainly(self._plain, added):
            changed = plain_document(json.loads(document))
            self._markers -= {changed["model"].get("unk_id")}  # a Unigram model's unknown token
            self._plain = _parse(json.dumps(changed))
            self._full.decoder = self._plain.decoder
            if not self._reads_plainly(self._plain, added):
                raise PromptError("this tokenizer changes the start of a text, so texts can't be joined")
        self.bos_id = _bos_id(self._full, variables)
        self.vocab_size = max(self._full.get_vocab_size(with_added_tokens=True), 1 + max(added, default=-1))
        source = template.source if template else ""
        self.fingerprint = hashlib.sha256(f"{document}\0{source}".encode()).hexdigest()[:16]

    @classmethod
    def from_folder(cls, path: str | Path) -> HFTokenizer:
        """Reads ``tokenizer.json``, ``tokenizer_config.json`` and the chat template."""
        folder = Path(path)
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ModelNotFoundError(
                f"{folder} has no tokenizer.json; Branchwise needs that form of tokenizer"
            )
        config_file = folder / "tokenizer_config.json"
        config = json.loads(config_file.read_text(encoding="utf-8")) if config_file.is_file() else {}
        variables = {**special_token_variables(folder, config), "add_bos_token": config.get("add_bos_token")}
        return cls(file.read_text(encoding="utf-8"), load_chat_template(folder, config), variables)

    def encode(self, text: str) -> list[int]:
        return self._checked(self._plain.encode(text, add_special_tokens=False).ids)

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        encodings = self._plain.encode_batch_fast(list(texts), add_special_tokens=False)
        return [self._checked(encoding.ids) for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._full.decode(list(ids), skip_special_tokens=False)
        return text

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str | None:
        return None if self._template is None else self._template.render(messages)

    def _checked(self, ids: list[int]) -> list[int]:
        if not self._markers.isdisjoint(ids):
            raise PromptError("the tokenizer read a marker out of plain text")
        return ids

    def _reads_plainly(self, plain: Tokenizer, added: Mapping[int, AddedToken]) -> bool:
        """Whether white space tokens have their ids, no marker can be read, and no prefix is put."""
        for i, token in added.items():
            known = plain.token_to_id(token.content)
            if is_white_space(token.content):
                if known != i:
                    return False
            elif known is not None and _is_one_token(plain, token.content):
                return False
        return all(_is_fragment(plain, probe) for probe in _PROBES)


def is_white_space(content: str) -> bool:
    """Whether an added token is white space alone, SentencePiece's written space counted."""
    return content.replace("▁", " ").isspace()


def plain_document(document: JsonObject) -> JsonObject:
    """``tokenizer.json`` without markers and without the prefix of a text.

    An added token's entry goes from the vocabulary, with every merge that makes or uses it. In a
    Unigram vocabulary the place of an entry is its id, so it is respelled instead, and so is the
    unknown token, which a model must have.
    """
    added = document["added_tokens"]
    kept = [token for token in added if is_white_space(token["content"])]
    markers = {token["content"] for token in added} - {token["content"] for token in kept}
    return {
        **document,
        "added_tokens": kept,
        "truncation": None,
        "padding": None,
        "post_processor": None,
        "normalizer": _without_prefix(document.get("normalizer")),
        "pre_tokenizer": _without_prefix(document.get("pre_tokenizer")),
        "decoder": _without_prefix(document.get("decoder")),
        "model": _without_markers(document["model"], markers, kept),
    }


def _without_markers(model: JsonObject, markers: set[str], kept: Sequence[JsonObject]) -> JsonObject:
    if isinstance(model["vocab"], list):
        pieces = [
            [f"{_UNREACHABLE}{i}" if piece in markers else piece, score]
            for i, (piece, score) in enumerate(model["vocab"])
        ]
        return {**model, "vocab": pieces}
    changed = {**model, "vocab": {name: i for name, i in model["vocab"].items() if name not in markers}}
    changed["vocab"].update((token["content"], token["id"]) for token in kept)
    unknown = model.get("unk_token")
    if unknown in markers and unknown in model["vocab"]:
        changed["unk_token"] = _UNREACHABLE
        changed["vocab"][_UNREACHABLE] = model["vocab"][unknown]
    if "merges" in model:
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        changed["merges"] = [pair for pair in pairs if markers.isdisjoint((*pair, "".join(pair)))]
    return changed


def _without_prefix(step: JsonObject | None) -> JsonObject | None:
    """A normalizer, pre-tokenizer or decoder that neither puts nor takes a leading space."""
    if step is None or step["type"] == "Prepend":
        return None
    changed = dict(step)
    match step["type"]:
        case "Sequence":
            key = next(name for name in ("normalizers", "pretokenizers", "decoders") if name in step)
            steps = [_without_prefix(inner) for inner in step[key]]
            changed[key] = [inner for inner in steps if inner is not None]
        case "Metaspace":
            changed |= {"prepend_scheme": "never", "add_prefix_space": False}
        case "ByteLevel":
            changed["add_prefix_space"] = False
        case "Strip" if step.get("start") == 1:  # Llama's decoder; a normalizer's Strip has no number
            changed["start"] = 0
    return changed


def _parse(document: str) -> Tokenizer:
    try:
        return Tokenizer.from_str(document)
    except Exception as error:  # the library raises bare Exception
        raise PromptError(f"tokenizer.json can't be read: {error}") from error


def _share_model(full: Tokenizer, added: Mapping[int, AddedToken]) -> Tokenizer:
    """A tokenizer over the same model and splitting that knows only the white space tokens."""
    plain = Tokenizer(full.model)
    if full.normalizer is not None:
        plain.normalizer = full.normalizer
    if full.pre_tokenizer is not None:
        plain.pre_tokenizer = full.pre_tokenizer
    if full.decoder is not None:
        plain.decoder = full.decoder
    plain.add_tokens([token for _, token in sorted(added.items()) if is_white_space(token.content)])
    return plain


def _is_one_token(plain: Tokenizer, content: str) -> bool:
    """Whether the model makes this entry from its own characters.

    That settles it for every text around: byte-pair merges that end in a token never crossed its
    borders, so they are the merges of the token's characters alone.
    """
    return [token.value for token in plain.model.tokenize(content)] == [content]


def _is_fragment(plain: Tokenizer, text: str) -> bool:
    """Whether ``text`` is the same tokens alone and behind another text."""

    def encode(part: str) -> list[int]:
        ids: list[int] = plain.encode(part, add_special_tokens=False).ids
        return ids

    anchors = [anchor for anchor in _ANCHORS if encode(anchor)]
    return any(encode(anchor + text) == encode(anchor) + encode(text) for anchor in anchors)


def _unknown_id(full: Tokenizer) -> int | None:
    unknown = getattr(full.model, "unk_token", None)
    return None if unknown is None else full.token_to_id(unknown)


def _bos_id(full: Tokenizer, variables: Mapping[str, Any]) -> int | None:
    """The id in front of a text: by the post-processor, unless ``add_bos_token`` says otherwise."""
    wanted = variables.get("add_bos_token")
    if wanted is False:
        return None
    text: list[int] = full.encode("a", add_special_tokens=False).ids
    framed: list[int] = full.encode("a", add_special_tokens=True).ids
    front = framed[: framed.index(text[0])] if text and text[0] in framed else []
    if front:
        return front[0]
    named = variables.get("bos_token")
    return full.token_to_id(named) if wanted and named else None
