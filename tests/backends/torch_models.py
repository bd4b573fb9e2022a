"""Small random models of many architectures, and plain forwards of them as the oracle.

Weights are drawn wide enough that attention is sharp and logits differ clearly: a wrong mask,
position or scale moves them by far more than rounding does.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from branchwise.backends.base import PackedBatch, PrefixHandle, Segment
from branchwise.backends.fake import ByteTokenizer
from branchwise.backends.torch_attention import IMPLEMENTATION, register
from branchwise.backends.torch_backend import TorchBackend

Array = npt.NDArray[np.float64]

VOCABULARY = 200
WINDOW = 7  # shorter than the paths of the forests

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}

# name: (class, configuration, its arguments)
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", SMALL),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**SMALL, "sliding_window": WINDOW}),
    "qwen2": (
        "Qwen2ForCausalLM",
        "Qwen2Config",
        {**SMALL, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**SMALL, "head_dim": 16, "tie_word_embeddings": True}),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**SMALL, "head_dim": 12, "sliding_window": WINDOW, "query_pre_attn_scalar": 20},
    ),
    "gemma3_text": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**SMALL, "head_dim": 12, "sliding_window": WINDOW, "layer_types": MIXED},
    ),
    "phi3": (
        "Phi3ForCausalLM",
        "Phi3Config",
        {**SMALL, "sliding_window": WINDOW, "original_max_position_embeddings": 256},
    ),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", SMALL),
    "gpt_neox": (
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        {name: value for name, value in SMALL.items() if name != "num_key_value_heads"},
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "vocab_size": VOCABULARY,
            "n_embd": 48,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": 256,
            "scale_attn_by_inverse_layer_idx": True,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "smollm3": ("SmolLM3ForCausalLM", "SmolLM3Config", {**SMALL, "no_rope_layers": [1, 0, 1]}),
    "granite": (
        "GraniteForCausalLM",
        "GraniteConfig",
        {**SMALL, "logits_scaling": 3.0, "attention_multiplier": 0.5, "residual_multiplier": 0.7},
    ),
    "cohere": ("CohereForCausalLM", "CohereConfig", {**SMALL, "logit_scale": 0.5}),
    "mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        {**SMALL, "num_local_experts": 4, "sliding_window": None},
    ),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {**SMALL, **EXPERTS, "num_experts": 4, "head_dim": 12},
    ),
    "gpt_oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {
            **SMALL,
            "head_dim": 12,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": WINDOW,
            "layer_types": MIXED,
        },
    ),
    "phi": ("PhiForCausalLM", "PhiConfig", SMALL),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        {**SMALL, "ffn_dim": 64, "word_embed_proj_dim": 48},
    ),
    "cohere2": ("Cohere2ForCausalLM", "Cohere2Config", {**SMALL, "sliding_window": WINDOW}),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        {
            **SMALL,
            **EXPERTS,
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "kv_lora_rank": 8,
            "q_lora_rank": 8,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 12,
        },
    ),
    "gemma3n_text": (
        "Gemma3nForCausalLM",
        "Gemma3nTextConfig",
        {
            **SMALL,
            "head_dim": 12,
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "intermediate_size": [64] * 4,
            "activation_sparsity_pattern": None,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCABULARY,
            "laurel_rank": 4,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "modernbert_decoder": (
        "ModernBertDecoderForCausalLM",
        "ModernBertDecoderConfig",
        {**SMALL, "local_attention": 2 * WINDOW},
    ),
}


def build_model(family: str) -> Any:
    """A random model, as it would be loaded for the backend."""
    model_name, config_name, arguments = FAMILIES[family]
    register()
    config = getattr(transformers, config_name)(**copy.deepcopy(arguments))
    config._attn_implementation = IMPLEMENTATION
    torch.manual_seed(len(family))
    model = getattr(transformers, model_name)(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            parameter.normal_(0.0, 1.2 / parameter.shape[-1] ** 0.5)
        elif "norm" not in name and "ln_" not in name:
            parameter.normal_(0.0, 0.5)
    return model


@cache
def backend(family: str) -> TorchBackend:
    return TorchBackend(build_model(family), ByteTokenizer(), name=family, revision="random")


def with_chunks(base: TorchBackend, chunk_tokens: int, piece_tokens: int = 1 << 20) -> TorchBackend:
    """The same model, cut differently."""
    other = copy.copy(base)
    other.loaded = dataclasses.replace(base.loaded, chunk_tokens=chunk_tokens, piece_tokens=piece_tokens)
    return other


def forest(
    shape: Sequence[tuple[int, int | None]],
    *,
    seed: int = 0,
    prefix: PrefixHandle | None = None,
    keep: int | None = None,
    want_normalizer: bool = True,
) -> PackedBatch:
    """``shape``: (length, parent) of each segment, depth first. Every segment's last token is a node,
    and so is the middle one of longer segments; each node asks for five random ids."""
    random = np.random.default_rng(seed)
    segments: list[Segment] = []
    depth_after: list[int] = []
    positions, nodes = [], []
    for length, parent in shape:
        start = segments[-1].stop if segments else 0
        segments.append(Segment(start, start + length, parent))
        below = (prefix.length if prefix else 0) if parent is None else depth_after[parent]
        positions.append(np.arange(below, below + length))
        depth_after.append(below + length)
        nodes += [start + length // 2] if length > 2 else []
        nodes.append(start + length - 1)
    return PackedBatch(
        token_ids=random.integers(3, VOCABULARY, segments[-1].stop).astype(np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        segments=tuple(segments),
        nodes=random.permutation(np.array(nodes, dtype=np.int64)),
        allowed_ids=random.integers(0, VOCABULARY, 5 * len(nodes)).astype(np.int32),
        allowed_offsets=5 * np.arange(len(nodes) + 1, dtype=np.int64),
        prefix=prefix,
        keep=keep,
        want_normalizer=want_normalizer,
    )


def _path(batch: PackedBatch, segment: int | None) -> list[int]:
    """The tokens of the batch from its root down to the end of a segment."""
    if segment is None:
        return []
    found = batch.segments[segment]
    return [*_path(batch, found.parent), *range(found.start, found.stop)]


def plain_logits(model: Any, batch: PackedBatch, prefix_ids: Sequence[int] = ()) -> torch.Tensor:
    """float64 ``[K, V]``: one plain forward of every root-to-leaf path, with eager attention."""
    parents = {segment.parent for segment in batch.segments}
    logits: dict[int, torch.Tensor] = {}
    model.set_attn_implementation("eager")
    try:
        for leaf in set(range(len(batch.segments))) - parents:
            path = _path(batch, leaf)
            ids = [*prefix_ids, *batch.token_ids[path].tolist()]
            with torch.inference_mode():
                rows = model(torch.tensor([ids]), use_cache=False).logits[0, len(prefix_ids) :].double()
            logits |= zip(path, rows, strict=True)
    finally:
        model.set_attn_implementation(IMPLEMENTATION)
    return torch.stack([logits[int(node)] for node in batch.nodes])


def expected(model: Any, batch: PackedBatch, prefix_ids: Sequence[int] = ()) -> tuple[Array, Array]:
    """Logits ``[A]`` and log-normalizers ``[K]`` by plain forwards."""
    rows = plain_logits(model, batch, prefix_ids).numpy()
    node = np.repeat(np.arange(len(rows)), np.diff(batch.allowed_offsets))
    return rows[node, batch.allowed_ids], np.logaddexp.reduce(rows, axis=1)
