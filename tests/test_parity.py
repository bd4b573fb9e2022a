"""Batched equals separate, classic equals packed, torch equals the float64 reference.

Over a small random Llama that reference and torch load from the same folder.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import branchwise as bw
from branchwise.prompt import fenced
from tiny_models import tiny_llama_folder
from worlds import CONTEXTS, TICKET, probabilities

TOLERANCE = {"reference": 1e-9, "torch": 1e-4}
DTYPES = {"reference": None, "torch": "float32"}  # a processor with bfloat16 would choose that


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny-llama")
    tiny_llama_folder(path)
    return path


@pytest.fixture(scope="module", params=["reference", "torch"])
def backend(request, folder):
    return open_decider(folder, request.param).backend


def open_decider(folder, name, **settings):
    return bw.Decider(str(folder), backend=name, dtype=DTYPES[name], **settings)


@pytest.mark.parametrize("strategy", ["packed", "classic"])
@pytest.mark.parametrize("layout", ["shared", "isolated"])
@pytest.mark.parametrize("answers", ["labels", "codes"])
def test_batched_equals_separate_and_classic_equals_packed(backend, strategy, layout, answers):
    form = {"layout": layout, "answers": answers}
    batched = list(
        bw.Decider(backend, strategy=strategy, token_budget=1500, **form).decide_many(TICKET, CONTEXTS)
    )
    alone = bw.Decider(backend, **form)
    separate = [alone.decide(TICKET, context) for context in CONTEXTS]
    assert [d.value | {"severity": d.value["severity"].level} for d in batched] == [
        d.value | {"severity": d.value["severity"].level} for d in separate
    ]
    difference = np.abs(probabilities(batched) - probabilities(separate)).max()
    assert difference < TOLERANCE[backend.identity.backend]
    assert probabilities(batched).std() > 0.1  # the numbers say something


@pytest.mark.parametrize("layout", ["shared", "isolated"])
def test_torch_gives_the_numbers_of_the_reference(folder, layout):
    found, expected = (
        list(open_decider(folder, name, layout=layout).decide_many(TICKET, CONTEXTS))
        for name in ("torch", "reference")
    )
    assert probabilities(found) == pytest.approx(probabilities(expected), abs=1e-4)
    for one, other in zip(found, expected, strict=True):
        for name, field in one.fields.items():
            assert field.legal_mass == pytest.approx(other.fields[name].legal_mass, rel=1e-3)


def test_in_the_isolated_layout_neighbours_change_nothing(folder):
    """Exactly so in float64: the branches share no attention."""
    decider = bw.Decider(str(folder), backend="reference", layout="isolated")
    full = decider.decide(TICKET, CONTEXTS[0])
    turned = decider.decide(bw.Schema(TICKET.questions[::-1]), CONTEXTS[0])
    for question in TICKET.questions:
        single = decider.decide(bw.Schema((question,)), CONTEXTS[0])
        for other in (single, turned):
            found = other.fields[question.name].probabilities
            assert found == pytest.approx(full.fields[question.name].probabilities, abs=1e-12)


def test_without_legal_mass_the_probabilities_are_the_same(backend):
    decider = bw.Decider(backend)
    with_mass = decider.decide(TICKET, CONTEXTS[1])
    without = decider.decide(TICKET, CONTEXTS[1], legal_mass=False)
    assert probabilities([without]) == pytest.approx(probabilities([with_mass]), abs=1e-5)
    assert all(field.legal_mass is None for field in without.fields.values())


def test_the_prefix_cache_changes_no_answer(backend):
    decider = bw.Decider(backend)
    cold = decider.decide(TICKET, CONTEXTS[2])
    warm = decider.decide(TICKET, CONTEXTS[2])
    assert cold.telemetry.tokens_cached == 0 < warm.telemetry.tokens_cached
    difference = np.abs(probabilities([cold]) - probabilities([warm])).max()
    assert difference < TOLERANCE[backend.identity.backend]


def longest_path(decider, schema, text):
    """Tokens from the root to the deepest node below ``text``, counted on whole prompt pieces."""
    compiled = decider._engine.compile(schema)
    fenced_ids = decider.backend.tokenizer.encode(fenced(text))
    return len(compiled.prefix_ids) + len(fenced_ids) + len(compiled.suffix_ids) + compiled.depth


@pytest.mark.parametrize("name", ["reference", "torch"])
def test_a_context_may_fill_the_model_to_its_last_position(tmp_path, name):
    """One token more is that item's error, and names both numbers."""
    tiny_llama_folder(tmp_path, max_position_embeddings=512)
    decider = open_decider(tmp_path, name)
    schema = bw.Schema((bw.BooleanQuestion("ok", "Is it ok?"),))
    texts = {}
    for count, letter in product(range(340, 380), "JQXZ#&"):  # one token each; the fence varies
        text = letter * count
        texts.setdefault(longest_path(decider, schema, text), text)
    fits, too_long = decider.decide_many(schema, [texts[512], texts[513]], on_error="return")
    assert isinstance(fits, bw.Decision)
    assert isinstance(too_long, bw.ContextTooLongError)
    assert (too_long.index, too_long.tokens, too_long.limit) == (1, 513, 512)
    assert "513" in str(too_long)
    assert "512" in str(too_long)
