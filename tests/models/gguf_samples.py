"""Tiny model folders and GGUF files, written by the libraries that define the formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, models, pre_tokenizers

HIDDEN, HEADS, KV_HEADS, HEAD, FEED, LAYERS = 64, 4, 2, 16, 96, 2
CONTROL = ("<|im_start|>", "<|im_end|>")
USER_DEFINED = ("<think>",)
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"

Arrays = dict[str, npt.NDArray[np.float32]]


def vocabulary() -> tuple[list[str], list[str], list[int]]:
    """Tokens, merges and token types: two markers, 256 bytes, three merges, a thinking marker."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = ["h e", "Ġ t", "Ġt he"]
    tokens = [*CONTROL, *letters, *(merge.replace(" ", "") for merge in merges), *USER_DEFINED]
    types = [3] * len(CONTROL) + [1] * (len(letters) + len(merges)) + [4] * len(USER_DEFINED)
    return tokens, merges, types


def sentencepiece_vocabulary() -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and types as llama.cpp writes them for Llama 2; the longer token the better."""
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    letters = list("▁thecas")
    merged = ["▁t", "he", "▁the", "at"]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *letters, *merged, "<|im_start|>", "<think>"]
    scores = (
        [0.0] * (3 + 256) + [-100.0 - i for i in range(len(letters))] + [-1.0, -2.0, -3.0, -4.0, 0.0, 0.0]
    )
    types = [2, 3, 3] + [6] * 256 + [1] * (len(letters) + len(merged)) + [3, 4]
    return tokens, scores, types


def random_llama(seed: int = 0) -> Any:
    """A transformers Llama with random weights, the source that a GGUF file is written from."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(vocabulary()[0]),
        hidden_size=HIDDEN,
        intermediate_size=FEED,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD,
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 20000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).eval()


def llama_tensors(model: Any) -> Arrays:
    """The model's weights under GGUF names; queries and keys in llama.cpp's rotary order."""
    state = {name: tensor.detach().float().numpy() for name, tensor in model.state_dict().items()}
    renamed = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    arrays = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
    }
    for layer in range(LAYERS):
        for name, short in renamed.items():
            array = state[f"model.layers.{layer}.{name}.weight"]
            if short in ("attn_q", "attn_k"):
                array = _rotary_pairs(array, HEADS if short == "attn_q" else KV_HEADS)
            arrays[f"blk.{layer}.{short}.weight"] = array
    return arrays


def _rotary_pairs(array: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Halves of a head, as transformers rotates them, to neighbouring pairs, as llama.cpp does."""
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, array.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))


def write_gguf(
    path: Path, arrays: Arrays, *, quantized: str = "F32", pre: str = "smollm", **extra: Any
) -> Path:
    """A llama GGUF file. ``quantized``: type of the matrices. ``extra``: more string metadata."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    _add_shape(writer)
    tokens, merges, types = vocabulary()
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_merges(merges)
    writer.add_token_types(types)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    for key, value in extra.items():
        writer.add_string(key.replace("__", "."), value)
    kind = gguf.GGMLQuantizationType[quantized]
    for name, array in arrays.items():
        chosen = kind if array.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quantize(array, chosen), raw_dtype=chosen)
    return _write(writer, path)


def write_sentencepiece_gguf(path: Path) -> Path:
    """A GGUF file with the tokenizer of Llama 2 and no weights."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    _add_shape(writer)
    tokens, scores, types = sentencepiece_vocabulary()
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    return _write(writer, path)


def _add_shape(writer: Any) -> None:
    writer.add_name("tiny")
    writer.add_context_length(256)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(20000.0)
    writer.add_layer_norm_rms_eps(1e-5)


def _write(writer: Any, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_model_folder(folder: Path, *, shards: int = 1) -> Path:
    """A folder that passes for a model; its weights are one small tensor a shard."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 256, "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    names = ["model.safetensors"] if shards == 1 else [f"model-{i}.safetensors" for i in range(shards)]
    for i, name in enumerate(names):
        save_file({f"w{i}": np.zeros((2, 2), np.float32)}, folder / name)
    if shards > 1:
        index = {"weight_map": {f"w{i}": name for i, name in enumerate(names)}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    tokens = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(tokens, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
