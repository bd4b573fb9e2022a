"""Weights of Llama, Qwen2 and Mistral models for the reference backend, read without torch."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from branchwise.backends.base import Float64Array
from branchwise.errors import ModelError, ModelNotFoundError, UnsupportedModelError

MODEL_TYPES = ("llama", "qwen2", "mistral")
ROPE_TYPES = ("default", "llama3")

_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16}
_NOT_NEEDED = ("rotary_emb.inv_freq",)  # follows from the config; old folders have it as well


@dataclass(frozen=True)
class Shape:
    """The numbers of ``config.json`` that the formulas need."""

    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    key_heads: int
    head_size: int
    vocab_size: int
    max_positions: int
    norm_epsilon: float
    tied: bool


@dataclass(frozen=True, eq=False)
class Linear:
    """``weight`` float64 ``[out, in]``, ``bias`` float64 ``[out]`` or None."""

    weight: Float64Array
    bias: Float64Array | None


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """One block."""

    input_norm: Float64Array
    query: Linear
    key: Linear
    value: Linear
    output: Linear
    mlp_norm: Float64Array
    gate: Linear
    up: Linear
    down: Linear


@dataclass(frozen=True, eq=False)
class LlamaModel:
    """``embedding`` and ``head`` are ``[V, D]``, and one array if tied. ``frequencies``: ``[head size / 2]``,
    radians per position. ``parameters``: weights, tied ones counted once.
    """

    shape: Shape
    embedding: Float64Array
    layers: tuple[LayerWeights, ...]
    final_norm: Float64Array
    head: Float64Array
    frequencies: Float64Array
    parameters: int


def load_llama(folder: Path) -> LlamaModel:
    """The model in ``folder``. Raises :class:`UnsupportedModelError` for what the formulas don't cover,
    and :class:`ModelError` when weights are broken, missing, or left over.
    """
    config = _read_config(folder)
    model_type = config.get("model_type")
    _check_supported(config)
    shape = _shape(config)
    if model_type == "qwen2":
        biased = {"q_proj", "k_proj", "v_proj"}
    else:
        biased = {"q_proj", "k_proj", "v_proj", "o_proj"} if config.get("attention_bias") else set()
        biased |= {"gate_proj", "up_proj", "down_proj"} if config.get("mlp_bias") else set()
    tensors = _Tensors(folder, _read_tensors(folder))
    embedding = tensors.take("model.embed_tokens.weight", shape.vocab_size, shape.hidden_size)
    layers = tuple(_layer(tensors, f"model.layers.{i}.", shape, biased) for i in range(shape.layers))
    final_norm = tensors.take("model.norm.weight", shape.hidden_size)
    if shape.tied:
        tensors.drop("lm_head.weight")
        head = embedding
    else:
        head = tensors.take("lm_head.weight", shape.vocab_size, shape.hidden_size)
    tensors.check_empty()
    frequencies = _frequencies(_rope(config), shape.head_size)
    return LlamaModel(shape, embedding, layers, final_norm, head, frequencies, tensors.taken)


class _Tensors:
    """The tensors of a folder, each taken once."""

    def __init__(self, folder: Path, tensors: dict[str, Float64Array]) -> None:
        self._folder = folder
        self._tensors = tensors
        self.taken = 0

    def take(self, name: str, *shape: int) -> Float64Array:
        """Raises :class:`ModelError` unless the tensor is there and has this shape."""
        if name not in self._tensors:
            raise ModelError(f"{self._folder} lacks the weights {name}")
        tensor = self._tensors.pop(name)
        if tensor.shape != shape:
            raise ModelError(
                f"{self._folder}: {name} has shape {list(tensor.shape)}, and config.json says {list(shape)}"
            )
        self.taken += tensor.size
        return tensor

    def drop(self, name: str) -> None:
        self._tensors.pop(name, None)

    def check_empty(self) -> None:
        """Raises when a weight was not used: the formulas would be another model's."""
        rest = sorted(name for name in self._tensors if not name.endswith(_NOT_NEEDED))
        if rest:
            raise UnsupportedModelError(
                f"{self._folder} has weights that the reference backend has no use for: {', '.join(rest[:3])}"
            )


def _layer(tensors: _Tensors, prefix: str, shape: Shape, biased: set[str]) -> LayerWeights:
    width, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.heads * shape.head_size, shape.key_heads * shape.head_size

    def linear(place: str, name: str, rows: int, columns: int) -> Linear:
        full = f"{prefix}{place}.{name}"
        weight = tensors.take(f"{full}.weight", rows, columns)
        return Linear(weight, tensors.take(f"{full}.bias", rows) if name in biased else None)

    return LayerWeights(
        input_norm=tensors.take(f"{prefix}input_layernorm.weight", width),
        query=linear("self_attn", "q_proj", queries, width),
        key=linear("self_attn", "k_proj", keys, width),
        value=linear("self_attn", "v_proj", keys, width),
        output=linear("self_attn", "o_proj", width, queries),
        mlp_norm=tensors.take(f"{prefix}post_attention_layernorm.weight", width),
        gate=linear("mlp", "gate_proj", inner, width),
        up=linear("mlp", "up_proj", inner, width),
        down=linear("mlp", "down_proj", width, inner),
    )


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        raise ModelNotFoundError(f"{folder} has no config.json")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ModelError(f"{file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{file} is not a JSON object")
    return config


def _check_supported(config: Mapping[str, Any]) -> None:
    """Raise :class:`UnsupportedModelError`, naming the model type or the setting that is not covered."""
    model_type = config.get("model_type")
    if model_type not in MODEL_TYPES:
        raise UnsupportedModelError(
            f"models of type {model_type!r} can't be run by the reference backend, "
            f"which knows {', '.join(MODEL_TYPES)}"
        )
    windowed = model_type != "qwen2" or config.get("use_sliding_window", False)
    # Mistral's own default is a window of 4096; the others have none.
    window = config.get("sliding_window", 4096 if model_type == "mistral" else None)
    if windowed and window is not None:
        _refuse(model_type, "sliding_window", window)
    if any(kind != "full_attention" for kind in config.get("layer_types") or ()):
        _refuse(model_type, "layer_types", sorted(set(config["layer_types"])))
    if config.get("hidden_act", "silu") != "silu":
        _refuse(model_type, "hidden_act", config["hidden_act"])
    if config.get("quantization_config") is not None:
        _refuse(model_type, "quantization_config", config["quantization_config"])
    rope = _rope(config)
    if rope["rope_type"] not in ROPE_TYPES:
        _refuse(model_type, "rope_type", rope["rope_type"])
    if rope.get("partial_rotary_factor", 1) != 1:
        _refuse(model_type, "partial_rotary_factor", rope["partial_rotary_factor"])


def _refuse(model_type: str, setting: str, value: object) -> None:
    raise UnsupportedModelError(
        f"{model_type!r} with {setting} {value!r} can't be run by the reference backend"
    )


def _shape(config: Mapping[str, Any]) -> Shape:
    try:
        heads = config["num_attention_heads"]
        shape = Shape(
            layers=config["num_hidden_layers"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            heads=heads,
            key_heads=config.get("num_key_value_heads") or heads,
            head_size=config.get("head_dim") or config["hidden_size"] // heads,
            vocab_size=config["vocab_size"],
            max_positions=config["max_position_embeddings"],
            norm_epsilon=config["rms_norm_eps"],
            tied=bool(config.get("tie_word_embeddings", False)),
        )
    except KeyError as error:
        raise ModelError(f"config.json lacks {error.args[0]}") from error
    if shape.heads % shape.key_heads:
        raise ModelError(
            f"config.json: {shape.heads} attention heads can't share {shape.key_heads} key heads evenly"
        )
    return shape


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary settings as they are written since Transformers 5, or as they were before."""
    written = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return {
        **written,
        "rope_theta": written.get("rope_theta", config.get("rope_theta", 10000.0)),
        "rope_type": written.get("rope_type", written.get("type", "default")),
    }


def _frequencies(rope: Mapping[str, Any], head_size: int) -> Float64Array:
    """float64 ``[head size / 2]``: θ^(-2i/D), stretched for long waves in Llama 3.1's way."""
    plain: Float64Array = rope["rope_theta"] ** -(np.arange(0, head_size, 2) / head_size)
    if rope["rope_type"] == "default":
        return plain
    try:
        factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
        turns = plain * rope["original_max_position_embeddings"] / (2 * math.pi)
    except KeyError as error:
        raise ModelError(f"config.json: the rotary settings lack {error.args[0]}") from error
    # Fewer than `low` turns over the original length: stretched; more than `high`: as they are.
    keep = np.clip((turns - low) / (high - low), 0, 1)
    stretched: Float64Array = keep * plain + (1 - keep) * plain / factor
    return stretched


def _read_tensors(folder: Path) -> dict[str, Float64Array]:
    """Every tensor of the folder's safetensors files, in float64."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelNotFoundError(f"{folder} has no weights in safetensors files")
    tensors: dict[str, Float64Array] = {}
    for file in files:
        tensors.update(_read_file(file))
    return tensors


def _read_file(file: Path) -> dict[str, Float64Array]:
    from safetensors import SafetensorError, deserialize

    read: Callable[[bytes], list[tuple[str, dict[str, Any]]]] = deserialize
    try:
        stored = read(file.read_bytes())
    except SafetensorError as error:
        raise ModelError(f"{file} is a broken safetensors file: {error}") from error
    tensors = {}
    while stored:
        name, tensor = stored.pop()  # each is freed once it is widened
        tensors[name] = _widened(name, tensor["dtype"], tensor["data"]).reshape(tensor["shape"])
    return tensors


def _widened(name: str, dtype: str, data: bytes | bytearray) -> Float64Array:
    if dtype == "BF16":  # the upper half of a float32
        halves = np.frombuffer(data, "<u2").astype(np.uint32)
        return (halves << 16).view(np.float32).astype(np.float64)
    if dtype not in _DTYPES:
        raise UnsupportedModelError(f"{name} is stored as {dtype}, which the reference backend can't read")
    return np.frombuffer(data, np.dtype(_DTYPES[dtype]).newbyteorder("<")).astype(np.float64)
