"""Compiling a schema for tokenizers that merge, fold or lack what the prompt needs."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from branchwise.backends.fake import ByteTokenizer
from branchwise.errors import ConfigError, PromptError, SchemaError
from branchwise.schema.questions import ChoiceQuestion, MultiQuestion, Schema
from branchwise.tree.codes import codes_for, single_token_codes
from branchwise.tree.rows import compile_schema
from worlds import TICKET, options


@dataclass
class Merging(ByteTokenizer):
    """Bytes, with some strings merged into one token wherever they stand, as byte pairs would."""

    merges: tuple[str, ...] = ()
    replaced: dict[str, str] = field(default_factory=dict)

    def encode(self, text):
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        ids, place = [], 0
        while place < len(text):
            for number, merged in enumerate(self.merges):
                if text.startswith(merged, place):
                    ids.append(1000 + number)
                    place += len(merged)
                    break
            else:
                ids += text[place].encode()
                place += 1
        return ids


def compiled(schema, tokenizer=None, layout="shared", answers="labels"):
    return compile_schema(schema, tokenizer or ByteTokenizer(), layout=layout, answers=answers)


def choice(*texts):
    return Schema((ChoiceQuestion("kind", "Which kind", options(*texts)),))


def allowed(result, node):
    start, stop = result.allowed_offsets[node : node + 2]
    return result.allowed_ids[start:stop].tolist()


def test_a_candidate_is_tokenized_as_one_whole_answer_text():
    """'kind: a' merges into one token with the stem; cutting before the option would miss it."""
    result = compiled(choice("apple", "banana"), Merging(merges=(": ap",)))
    assert result.node_paths == ((*b"kind",),)
    assert allowed(result, 0) == [ord(":"), 1000]


def test_tokens_after_the_last_branch_point_are_not_laid_out():
    result = compiled(choice("alpha", "beta", "bench"))
    assert [bytes(path) for path in result.node_paths] == [b"kind: ", b"kind: be"]
    assert bytes(result.forest.token_ids.tolist()) == b"kind: be"


def test_options_that_share_long_beginnings_or_differ_only_at_the_end_are_kept_apart():
    texts = [f"{'very ' * 20}long option {i}" for i in range(11)] + [f"option{i:03d}" for i in range(100)]
    result = compiled(choice(*texts))
    row = result.rows[0]
    steps = [tuple(map(tuple, row.paths[row.paths[:, 0] == i][:, 1:])) for i in range(len(texts))]
    assert len(set(steps)) == len(texts)


def test_255_options_compile():
    result = compiled(choice(*(f"option {i}" for i in range(255))))
    assert result.rows[0].candidates == 255


def test_options_that_are_the_same_tokens_are_refused_with_both_names():
    folding = Merging(replaced={"é": "e"})
    with pytest.raises(SchemaError, match="'café' and 'cafe'"):
        compiled(choice("café", "tea", "cafe"), folding)


def test_a_tokenizer_that_merges_across_a_segment_border_is_refused():
    with pytest.raises(PromptError, match="segment border"):
        compiled(TICKET, Merging(merges=("text:\nu", *(f"\n{c}" for c in "abcdefghijklmnopqrstuvwxyz"))))


def test_every_row_of_a_multi_question_asks_about_its_own_option():
    schema = Schema((MultiQuestion("tags", "Which apply", options("refund", "reset")),))
    result = compiled(schema)
    assert [(row.question, row.option, row.candidates) for row in result.rows] == [(0, 0, 2), (0, 1, 2)]
    assert [bytes(path) for path in result.node_paths] == [b"tags / refund: ", b"tags / reset: "]
    assert [allowed(result, node) for node in (0, 1)] == [sorted(b"yn"), sorted(b"yn")]


def test_names_that_share_a_beginning_share_its_tokens():
    schema = Schema((*choice("a", "b").questions, ChoiceQuestion("kinds", "Which", options("a", "b"))))
    result = compiled(schema)
    assert sorted(bytes(result.forest.token_ids.tolist())) == sorted(b"kind" + b": " + b"s: ")


def test_codes_are_one_token_each_and_prefix_free():
    tokenizer = ByteTokenizer()
    codes = codes_for(26, tokenizer)
    assert codes == tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    with pytest.raises(ConfigError, match="needs 53 codes of one token, and this tokenizer has 52"):
        codes_for(53, tokenizer)
    pairs = Merging(merges=tuple(a + b for a in "ABCDEFGHIJKLMNOPQRST" for b in "ABCDEFGHIJKLMNOPQRST"))
    many = codes_for(255, pairs)
    assert len(set(many)) == 255
    assert all(len(pairs.encode(code)) == 1 for code in many)
    assert {len(code) for code in many} == {2}


def test_a_code_whose_token_swallows_its_neighbours_is_not_chosen():
    swallowing = Merging(merges=("B\n",))
    assert "B" not in single_token_codes("ABC", swallowing)


def test_codes_leave_one_branch_point_per_question():
    result = compiled(choice("alpha", "beta", "bench", "best"), answers="codes")
    assert [bytes(path) for path in result.node_paths] == [b"kind: "]
    assert allowed(result, 0) == sorted(b"ABCD")
