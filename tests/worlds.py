"""Schemas and an oracle for engine tests: every number recomputed from whole root-to-leaf paths."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from branchwise.backends.fake import ByteTokenizer, logits_of, next_state
from branchwise.prompt import LAYOUTS, PromptPlan, Special, fenced, scaffold_for
from branchwise.schema.questions import (
    BooleanQuestion,
    ChoiceQuestion,
    MultiQuestion,
    Option,
    Schema,
    ScoreQuestion,
)
from branchwise.tree.codes import codes_for

ROOT_STATE = 0x9E3779B97F4A7C15


def options(*texts: str) -> tuple[Option, ...]:
    return tuple(Option(text, text) for text in texts)


TICKET = Schema(
    (
        BooleanQuestion("urgent", "Is it urgent?"),
        ChoiceQuestion(
            "category", "What it is about", options("billing", "billing dispute", "bug", "praise")
        ),
        MultiQuestion("tags", "Which apply", options("refund", "login", "slow")),
        ScoreQuestion("severity", "How bad", options("cosmetic", "annoying", "blocking")),
        ChoiceQuestion("source", "Where from", options("email")),
    )
)


def probabilities(decisions):
    """Every option's probability of every field of every decision, one after another."""
    return np.array(
        [p for d in decisions for field in d.fields.values() for p in field.probabilities.values()]
    )


CONTEXTS = [
    "I was charged twice.",
    "The app is slow since the update, and then it logs me out. " * 4,
    "Love it!",
    "Please refund one of the two charges on my card. " * 2,
    "Kann mich nicht anmelden – das Passwort wird abgelehnt. 🙃",
    "x",
    "The app is slow since yesterday.",
]


def path_state(ids: list[int]) -> int:
    state = ROOT_STATE
    for position, token in enumerate(ids):
        state = next_state(state, token, position)
    return state


def ids_of(pieces: tuple[Special | str, ...], tokenizer: ByteTokenizer) -> list[int]:
    ids: list[int] = []
    for piece in pieces:
        ids += [tokenizer.special_tokens[piece.token]] if isinstance(piece, Special) else piece.encode()
    return ids


def plan_for(schema: Schema, layout: str, answers: str) -> PromptPlan:
    tokenizer = ByteTokenizer()
    codes = (lambda n: codes_for(n, tokenizer)) if answers == "codes" else None
    return LAYOUTS[layout](schema, scaffold_for(tokenizer), codes)


def row_log_probabilities(
    schema: Schema, context: str, layout: str, answers: str
) -> Iterator[tuple[int, int | None, list[float], list[float]]]:
    """Per row: question, option, log P of each candidate, log legal mass of each candidate.

    Walks every candidate byte by byte over the whole prompt; no trie, no packing.
    """
    tokenizer = ByteTokenizer()
    plan = plan_for(schema, layout, answers)
    prompt = ids_of(plan.prefix, tokenizer) + list(fenced(context).encode())
    prompt += ids_of(plan.after_context, tokenizer)
    for row in plan.rows:
        lead = prompt + ids_of(row.lead, tokenizer)
        texts = [list((row.stem + ending).encode()) for ending in row.endings]
        logp, mass = [], []
        for text in texts:
            total = total_mass = 0.0
            for cut in range(len(text)):
                rivals = {other[cut] for other in texts if other[:cut] == text[:cut]}
                if len(rivals) == 1:
                    continue
                logits = logits_of(path_state(lead + text[:cut]), tokenizer.vocab_size)
                allowed = math.log(sum(math.exp(logits[rival]) for rival in rivals))
                total += logits[text[cut]] - allowed
                total_mass += allowed - math.log(sum(math.exp(x) for x in logits))
            logp.append(total)
            mass.append(total_mass)
        yield row.question, row.option, logp, mass
