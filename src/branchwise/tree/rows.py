"""Schema × tokenizer × prompt → rows: everything about a prompt that no context changes.

Compiled once and kept; a pass only puts contexts in (``packing.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial

import numpy as np

from branchwise.backends.base import Int32Array, Int64Array
from branchwise.backends.tokenizer import Tokenizer
from branchwise.config import AnswerForm, LayoutName
from branchwise.errors import SchemaError
from branchwise.prompt import LAYOUTS, PromptPlan, RowText, fenced, scaffold_for
from branchwise.schema.questions import Schema
from branchwise.tree.codes import codes_for
from branchwise.tree.encoding import check_cut, encode_pieces, first_text, last_text
from branchwise.tree.trie import FlatTrie, branch_points, merge, split_head


@dataclass(frozen=True)
class Row:
    """One row: which question it answers, and where each candidate's numbers will be found.

    ``option`` is the option's index for a row of a multi question, else None. ``paths``: int64
    ``[P, 3]``: candidate, node (into K) and allowed id (into A) of every step that is not
    certain. A candidate's log-probability is the sum over its steps. ``candidates`` is their
    number.
    """

    question: int
    option: int | None
    candidates: int
    paths: Int64Array


@dataclass(frozen=True)
class CompiledSchema:
    """A schema ready for one tokenizer and prompt form. It holds no names, options or values.

    ``prefix_ids``: int32, everything before a context. ``suffix_ids``: int32, what follows a
    context's fence. ``forest``: the answer trie of all rows, depth 0 right below the context.
    ``nodes``: int64 ``[K]``, indices into the forest, ROOT for the context's own last token.
    ``node_paths``: for each node, its token path below the context. ``allowed_ids`` int32
    ``[A]``, ``allowed_offsets`` int64 ``[K + 1]``.
    """

    layout: LayoutName
    answers: AnswerForm
    prefix_ids: Int32Array
    suffix_ids: Int32Array
    forest: FlatTrie
    rows: tuple[Row, ...]
    nodes: Int64Array
    node_paths: tuple[tuple[int, ...], ...]
    allowed_ids: Int32Array
    allowed_offsets: Int64Array

    @cached_property
    def depth(self) -> int:
        """Tokens of the longest path below a context."""
        return int(self.forest.depths.max()) + 1 if len(self.forest.depths) else 0

    def prompt_tokens(self, context: Int32Array) -> int:
        """Tokens from the root to the last token of ``context`` and its suffix."""
        return len(self.prefix_ids) + len(context) + len(self.suffix_ids)

    def allowed_for(self, contexts: int) -> tuple[Int32Array, Int64Array]:
        """``allowed_ids`` and ``allowed_offsets`` of the nodes of that many contexts, one after another."""
        sizes = np.tile(np.diff(self.allowed_offsets), contexts)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return np.tile(self.allowed_ids, contexts), offsets


def compile_schema(
    schema: Schema, tokenizer: Tokenizer, *, layout: LayoutName, answers: AnswerForm
) -> CompiledSchema:
    """Lay the schema's prompt out and tokenize all of it.

    Raises :class:`SchemaError` when two options have the same tokens, and
    :class:`~branchwise.errors.PromptError` when the tokenizer merges across a segment border.
    """
    codes = cache(partial(codes_for, tokenizer=tokenizer)) if answers == "codes" else None
    plan = LAYOUTS[layout](schema, scaffold_for(tokenizer), codes)
    _check_cuts(plan, tokenizer)
    encoded = [
        [(*lead, *answer) for answer in written] for lead, written in _encode_rows(plan.rows, tokenizer)
    ]
    for row, candidates in zip(plan.rows, encoded, strict=True):
        _check_distinct(schema, row, candidates)
    return _assemble(layout, answers, plan, encoded, tokenizer)


def _encode_rows(rows: Sequence[RowText], tokenizer: Tokenizer) -> list[tuple[list[int], list[list[int]]]]:
    """For each row its lead's ids and the ids of every whole answer text."""
    texts = [row.stem + ending for row in rows for ending in row.endings]
    ids = iter(tokenizer.encode_many(texts))
    return [(encode_pieces(row.lead, tokenizer), [next(ids) for _ in row.endings]) for row in rows]


def _check_distinct(schema: Schema, row: RowText, candidates: list[tuple[int, ...]]) -> None:
    question = schema.questions[row.question]
    seen: dict[tuple[int, ...], str] = {}
    for ids, ending in zip(candidates, row.endings, strict=True):
        if ids in seen:
            raise SchemaError(
                question.name,
                f"options {seen[ids]!r} and {ending.strip()!r} are the same tokens to this model",
                "rename one of them",
            )
        seen[ids] = ending.strip()


def _assemble(
    layout: LayoutName,
    answers: AnswerForm,
    plan: PromptPlan,
    encoded: list[list[tuple[int, ...]]],
    tokenizer: Tokenizer,
) -> CompiledSchema:
    rows: list[Row] = []
    node_paths: list[tuple[int, ...]] = []
    allowed: list[int] = []
    offsets = [0]
    for row, candidates in zip(plan.rows, encoded, strict=True):
        head, tails = split_head(candidates)
        place: dict[tuple[int, ...], tuple[int, dict[int, int]]] = {}
        for path, ids in branch_points(tails).items():
            place[path] = (len(node_paths), {token: len(allowed) + i for i, token in enumerate(ids)})
            node_paths.append(head + path)
            allowed += ids
            offsets.append(len(allowed))
        steps = [
            (number, place[tail[:cut]][0], place[tail[:cut]][1][tail[cut]])
            for number, tail in enumerate(tails)
            for cut in range(len(tail))
            if tail[:cut] in place
        ]
        paths = np.array(steps, np.int64).reshape(-1, 3)
        rows.append(Row(row.question, row.option, len(candidates), paths))
    forest = merge(node_paths)
    return CompiledSchema(
        layout=layout,
        answers=answers,
        prefix_ids=np.array(encode_pieces(plan.prefix, tokenizer), np.int32),
        suffix_ids=np.array(encode_pieces(plan.after_context, tokenizer), np.int32),
        forest=forest,
        rows=tuple(rows),
        nodes=np.array(forest.ends, np.int64),
        node_paths=tuple(node_paths),
        allowed_ids=np.array(allowed, np.int32),
        allowed_offsets=np.array(offsets, np.int64),
    )


def encode_contexts(texts: Sequence[str], tokenizer: Tokenizer) -> list[Int32Array]:
    """The fenced ids (int32) of each text; markers spelled in it are read as ordinary text."""
    encoded = tokenizer.encode_many([fenced(text) for text in texts])
    return [np.array(ids, np.int32) for ids in encoded]


def _check_cuts(plan: PromptPlan, tokenizer: Tokenizer) -> None:
    """Check every border of the prompt on the texts that meet there."""
    probe = fenced("x")
    before = last_text(plan.prefix)
    if before is not None:
        check_cut(before, probe, tokenizer)
    after = first_text(plan.after_context)
    if after is not None:
        check_cut(probe, after, tokenizer)
    above = last_text(plan.after_context) if plan.after_context else probe
    for row in plan.rows:
        answer = row.stem + row.endings[0]
        below = first_text(row.lead) if row.lead else answer
        if above is not None and below is not None:
            check_cut(above, below, tokenizer)
        end_of_lead = last_text(row.lead)
        if end_of_lead is not None:
            check_cut(end_of_lead, answer, tokenizer)
