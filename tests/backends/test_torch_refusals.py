"""Architectures that would be silently wrong are refused, by name and with the reason."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.masking_utils import create_sliding_window_causal_mask

from backends.torch_models import MIXED, SMALL, WINDOW, build_model
from branchwise.backends.fake import ByteTokenizer
from branchwise.backends.torch_attention import IMPLEMENTATION, register
from branchwise.backends.torch_backend import TorchBackend
from branchwise.backends.torch_families import declared_windows, max_positions
from branchwise.backends.torch_head import WholeHead
from branchwise.backends.torch_load import load_model
from branchwise.errors import UnsupportedModelError

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2}
REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("MambaConfig", "recurrent state|linear_attention layers", TINY),
    ("JambaConfig", "linear_attention layers|recurrent state|mamba layers", TINY),
    ("RecurrentGemmaConfig", "linear_attention layers|recurrent layers", TINY),
    ("BloomConfig", "ALiBi", {"vocab_size": 50, "hidden_size": 16, "n_layer": 2, "n_head": 2}),
    ("FalconConfig", "ALiBi", {**TINY, "num_attention_heads": 2, "alibi": True}),
    ("T5Config", "encoder-decoder", {"vocab_size": 50, "d_model": 16, "num_layers": 1}),
    ("Llama4TextConfig", "chunk", {**TINY, "num_attention_heads": 2, "num_key_value_heads": 1}),
    ("Qwen3NextConfig", "linear_attention layers", TINY),
]


@pytest.mark.parametrize(("config", "reason", "arguments"), REFUSED, ids=[name for name, _, _ in REFUSED])
def test_refused_before_any_weight_is_read(
    config: str, reason: str, arguments: dict[str, Any], tmp_path: Path
) -> None:
    made = getattr(transformers, config)(**arguments)
    made.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=f"{made.model_type!r}.*({reason})"):
        load_model(tmp_path, torch.device("cpu"), torch.float32)


def make(model: Any) -> TorchBackend:
    return TorchBackend(model, ByteTokenizer(), name="m", revision="r")


def layers(model: Any) -> list[Any]:
    return [layer.self_attn for layer in model.model.layers]


def test_a_layer_whose_window_is_not_the_declared_one() -> None:
    model = build_model("gemma2")
    layers(model)[1].sliding_window = 3
    with pytest.raises(UnsupportedModelError, match=r"'gemma2'.*layer 1 attends within 3 tokens, not None"):
        make(model)


def test_a_window_that_the_masks_do_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in models that hand the window to a kernel only."""
    model = build_model("mistral")
    module = sys.modules[type(model).__module__]
    monkeypatch.setattr(module, "create_sliding_window_causal_mask", module.create_causal_mask)
    with pytest.raises(
        UnsupportedModelError, match=r"layers attend within \{7\} tokens, but its masks say set"
    ):
        make(model)


def test_a_window_that_no_layer_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model("llama")
    module = sys.modules[type(model).__module__]
    model.config.sliding_window = WINDOW
    model.config.use_sliding_window = False
    monkeypatch.setattr(module, "create_causal_mask", create_sliding_window_causal_mask)
    with pytest.raises(UnsupportedModelError, match=r"its masks hide what is \{7\} tokens away"):
        make(model)


def test_a_model_that_reads_both_ways() -> None:
    register()
    config = transformers.BertConfig(**TINY, num_attention_heads=2, intermediate_size=16)
    config._attn_implementation = IMPLEMENTATION
    with pytest.raises(UnsupportedModelError, match=r"'bert'.*layer 0 attends to later tokens"):
        make(transformers.BertLMHeadModel(config).eval())


def test_a_layer_that_can_see_the_future() -> None:
    model = build_model("llama")
    layers(model)[2].is_causal = False
    with pytest.raises(UnsupportedModelError, match="layer 2 attends to later tokens"):
        make(model)


def test_a_layer_that_hands_on_what_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model("llama")
    attention = layers(model)[0]
    forward = attention.forward
    monkeypatch.setattr(
        attention, "forward", lambda *args, **kwargs: forward(*args, **kwargs, position_bias=1.0)
    )
    with pytest.raises(UnsupportedModelError, match="position_bias"):
        make(model)


def test_layers_that_do_not_all_attend(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model("llama")
    layers(model)[1].layer_idx = 2
    with pytest.raises(UnsupportedModelError, match="layer 2 attends more than once"):
        make(model)


def test_a_model_that_mixes_tokens_beside_its_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a short convolution does: every token also hears the one before it in the array."""
    model = build_model("llama")
    mlp = model.model.layers[0].mlp
    forward = mlp.forward
    monkeypatch.setattr(mlp, "forward", lambda x: forward(x + 0.5 * x.roll(1, dims=1)))
    with pytest.raises(UnsupportedModelError, match=r"'llama'.*other numbers"):
        make(model)


def test_a_head_that_is_more_than_a_product_is_left_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model("llama")
    forward = model.lm_head.forward
    monkeypatch.setattr(model.lm_head, "forward", lambda x: forward(x).cumsum(-1) / 20)
    assert isinstance(make(model).loaded.head, WholeHead)


def test_windows_as_declared() -> None:
    gemma = transformers.Gemma2Config(**SMALL, sliding_window=WINDOW, layer_types=MIXED)
    assert declared_windows(gemma) == (WINDOW, None, WINDOW)
    mistral = transformers.MistralConfig(**SMALL, sliding_window=WINDOW)
    assert declared_windows(mistral) == (WINDOW,) * 3
    assert declared_windows(transformers.MistralConfig(**SMALL, sliding_window=None)) == (None,) * 3
    assert declared_windows(transformers.Qwen2Config(**SMALL, sliding_window=WINDOW)) == (None,) * 3


def test_rotary_frequencies_that_depend_on_the_longest_path_limit_it() -> None:
    plain = {**SMALL, "max_position_embeddings": 4096}
    assert max_positions(transformers.LlamaConfig(**plain)) == 4096
    dynamic = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    assert max_positions(transformers.LlamaConfig(**plain, rope_parameters=dynamic)) == 4096
    factors = [1.0] * 6
    long = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": factors,
        "long_factor": factors,
        "original_max_position_embeddings": 1024,
    }
    phi = transformers.Phi3Config(**plain, rope_parameters=long, original_max_position_embeddings=1024)
    assert max_positions(phi) == 1024
    llama3 = {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    }
    assert max_positions(transformers.LlamaConfig(**plain, rope_parameters=llama3)) == 4096
