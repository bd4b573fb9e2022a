"""The baseline: write the answers as JSON, token by token, with a key-value cache.

A hand-written loop without any framework overhead. Every token of the JSON text is one forward
step of width 1, as generation libraries do it; at an answer only the tokens of the allowed
options compete, so the result is always valid and needs no retry.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache

from branchwise.schema.questions import MultiQuestion, Schema


def json_fields(schema: Schema) -> list[tuple[str, list[str]]]:
    """Key text and allowed value texts of each field of the JSON object."""
    fields: list[tuple[str, list[str]]] = []
    for question in schema.questions:
        if isinstance(question, MultiQuestion):
            fields += [(f"{question.name} / {o.text}", ["true", "false"]) for o in question.options]
        elif question.kind == "boolean":
            fields.append((question.name, ["true", "false"]))
        else:
            fields.append((question.name, [f'"{option.text}"' for option in question.options]))
    return fields


@torch.inference_mode()
def generate_json(model: Any, tokenizer: Any, prompt: list[int], schema: Schema) -> tuple[str, int]:
    """The JSON text and how many tokens were written."""
    cache = DynamicCache(config=model.config)
    logits = model(torch.tensor([prompt]), cache=cache, logits_to_keep=1).logits[0, -1]
    written: list[int] = []

    def step(token: int) -> torch.Tensor:
        written.append(token)
        out = model(torch.tensor([[token]]), cache=cache, logits_to_keep=1)
        return out.logits[0, -1]

    fields = json_fields(schema)
    for number, (key, values) in enumerate(fields):
        opening = "{" if number == 0 else ""
        ending = "}" if number == len(fields) - 1 else ","
        for token in tokenizer.encode(f'{opening}"{key}":'):
            logits = step(token)
        candidates = [tokenizer.encode(f" {value}{ending}") for value in values]
        place = 0
        while True:
            allowed = sorted({ids[place] for ids in candidates if len(ids) > place})
            if not allowed:
                break
            best = allowed[int(torch.argmax(logits[allowed]))]
            candidates = [ids for ids in candidates if len(ids) > place and ids[place] == best]
            logits = step(best)
            place += 1
    return tokenizer.decode(written), len(written)
