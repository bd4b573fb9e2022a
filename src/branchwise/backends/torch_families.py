"""What a model's configuration declares about it: whether it can be run, windows, positions, head.

Decided by declared facts. What they don't tell is found by the probe that runs when a model is
loaded (``torch_probe``), which compares our numbers with the model's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from branchwise.backends.torch_head import Finish
from branchwise.errors import UnsupportedModelError

_TOKEN_TYPES = ("full_attention", "sliding_attention")  # layers that are attention to single tokens
_ALIBI_TYPES = ("bloom", "mpt")
_SOFT_CAPPED = ("gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "vaultgemma", "nanochat")
_LOGITS_DIVIDED = ("granite", "granitemoe", "granitemoeshared", "granite_swa", "granitemoe_swa")
_LOGITS_SCALED = {
    "cohere": "logit_scale",
    "cohere2": "logit_scale",
    "cohere2_moe": "logit_scale",
    "hyperclovax": "logits_scaling",
}


def check_config(config: Any) -> None:
    """Raise :class:`UnsupportedModelError` for an architecture that would be wrong or can't be run."""
    model_type = config.model_type
    if config.is_encoder_decoder:
        raise unsupported(model_type, "it is an encoder-decoder, Branchwise needs a decoder-only model")
    text = config.get_text_config()
    if model_type in _ALIBI_TYPES or getattr(text, "alibi", False):
        raise unsupported(model_type, "its positions are attention biases (ALiBi)")
    strange = sorted(set(_layer_types(text)) - set(_TOKEN_TYPES))
    if strange:
        raise unsupported(
            model_type, f"it has {', '.join(strange)} layers, which can't branch from a shared prefix"
        )
    if getattr(text, "attention_chunk_size", None):
        raise unsupported(model_type, "it attends within fixed chunks of positions")


def check_model_class(model_type: str, model_class: Any) -> None:
    """The same, by what the model's class says of itself."""
    if getattr(model_class, "_is_stateful", False):
        raise unsupported(model_type, "it carries a recurrent state, which can't branch from a shared prefix")
    if not getattr(model_class, "_supports_attention_backend", False):
        raise unsupported(
            model_type,
            "its attention can't be replaced (transformers' attention interface does not reach it)",
        )


def declared_windows(config: Any) -> tuple[int | None, ...]:
    """Each layer's sliding window; None where a token sees all of its ancestors."""
    text = config.get_text_config()
    window = getattr(text, "sliding_window", None)
    types = _layer_types(text)
    if types:
        return tuple(window if kind == "sliding_attention" else None for kind in types)
    if not getattr(text, "use_sliding_window", True):
        window = None
    layers: int = text.num_hidden_layers
    return (window,) * layers


def declares_layer_types(config: Any) -> bool:
    return bool(_layer_types(config.get_text_config()))


def max_positions(config: Any) -> int:
    """The longest path.

    Rotary frequencies of the kinds "dynamic" and "longrope" change for a whole pass as soon as its
    longest path is beyond the original length. Then answers would depend on neighbours, so the
    original length is the limit there.
    """
    text = config.get_text_config()
    limit = int(text.max_position_embeddings)
    for parameters in _rope_parameters(text):
        kind = str(parameters.get("rope_type", "default"))
        if "dynamic" in kind or kind == "longrope":
            original = parameters.get("original_max_position_embeddings")
            original = original or getattr(text, "original_max_position_embeddings", None) or limit
            limit = min(limit, int(original))
    return limit


def declared_finish(config: Any) -> Finish:
    """What the model does to the product of its head: nothing, scaling or soft capping."""
    text = config.get_text_config()
    if config.model_type in _SOFT_CAPPED and text.final_logit_softcapping is not None:
        cap = float(text.final_logit_softcapping)
        return lambda logits: torch.tanh(logits / cap) * cap
    if config.model_type in _LOGITS_DIVIDED:
        divisor = float(text.logits_scaling)
        return lambda logits: logits / divisor
    if config.model_type in _LOGITS_SCALED:
        factor = float(getattr(text, _LOGITS_SCALED[config.model_type]))
        return lambda logits: logits * factor
    return lambda logits: logits


def _layer_types(text: Any) -> tuple[str, ...]:
    declared = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None) or ()
    return tuple("full_attention" if kind == "attention" else str(kind) for kind in declared)


def _rope_parameters(text: Any) -> Iterator[Mapping[str, Any]]:
    """The rotary parameters, which some models have for each type of layer."""
    parameters = getattr(text, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, Mapping)]
    yield from nested or [parameters]


def unsupported(model_type: str, why: str) -> UnsupportedModelError:
    """The error that names the architecture and the reason."""
    return UnsupportedModelError(f"models of type {model_type!r} can't be run by the torch backend: {why}")
