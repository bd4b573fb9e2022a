"""Conversion of GGUF files; the oracles are the gguf package and the model a file was written from."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from branchwise.backends.hf_tokenizer import HFTokenizer
from branchwise.errors import ModelNotFoundError, UnsupportedModelError
from branchwise.models import gguf as conversion
from models.gguf_samples import (
    TEMPLATE,
    llama_tensors,
    random_llama,
    sentencepiece_vocabulary,
    vocabulary,
    write_gguf,
    write_sentencepiece_gguf,
)

pytest.importorskip("gguf")
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def source() -> Any:
    return random_llama()


def _convert(file: Path, cache: Path) -> Path:
    return conversion.convert(file, cache, conversion.file_digest(file, cache))


def _loaded(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def test_logits_are_those_of_the_model_the_file_was_written_from(tmp_path: Path, source: Any) -> None:
    folder = _convert(write_gguf(tmp_path / "tiny.gguf", llama_tensors(source)), tmp_path / "cache")
    ids = torch.arange(20)[None] * 7 % len(vocabulary()[0])
    with torch.no_grad():
        torch.testing.assert_close(_loaded(folder)(ids).logits, source(ids).logits, atol=1e-6, rtol=0)


@pytest.mark.parametrize("quantized", ["Q4_1", "Q8_0"])
def test_values_are_those_of_the_gguf_package(tmp_path: Path, source: Any, quantized: str) -> None:
    import gguf
    from safetensors.numpy import load_file

    file = write_gguf(tmp_path / "tiny.gguf", llama_tensors(source), quantized=quantized)
    folder = _convert(file, tmp_path / "cache")
    found = load_file(folder / "model.safetensors")
    wanted = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(file).tensors}
    same = {
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.1.ffn_down.weight": "model.layers.1.mlp.down_proj.weight",
        "blk.0.attn_v.weight": "model.layers.0.self_attn.v_proj.weight",
        "blk.0.attn_norm.weight": "model.layers.0.input_layernorm.weight",
    }
    for name, stored in same.items():
        np.testing.assert_array_equal(found[stored], wanted[name].reshape(found[stored].shape))
        assert found[stored].dtype == np.float32


def test_values_that_fit_bfloat16_are_stored_as_that(tmp_path: Path) -> None:
    source = random_llama().to(torch.bfloat16)
    file = write_gguf(tmp_path / "tiny.gguf", llama_tensors(source), quantized="BF16")
    config = json.loads((_convert(file, tmp_path / "cache") / "config.json").read_text(encoding="utf-8"))
    assert config["dtype"] == "bfloat16"
    assert "quantization_config" not in config


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1.0, 0.5], "bfloat16"),
        ([1.0, 1 + 2**-10], "float16"),
        ([1 + 2**-10, 1e30], "float32"),
        ([0.1], "float32"),
    ],
)
def test_the_narrowest_exact_type(values: list[float], dtype: str) -> None:
    assert conversion.narrowest_exact_dtype([torch.tensor(values)]) == getattr(torch, dtype)


def test_tokenizer_and_template_come_with_it(tmp_path: Path, source: Any) -> None:
    folder = _convert(write_gguf(tmp_path / "tiny.gguf", llama_tensors(source)), tmp_path / "cache")
    tokenizer = HFTokenizer.from_folder(folder)
    assert dict(tokenizer.special_tokens) == {"<|im_start|>": 0, "<|im_end|>": 1, "<think>": 261}
    assert tokenizer.bos_id is None
    assert tokenizer.vocab_size == len(vocabulary()[0])
    assert (folder / "chat_template.jinja").read_text(encoding="utf-8") == TEMPLATE
    assert tokenizer.render_chat([{"role": "user", "content": "x"}]) == "<|im_start|>user\nx<|im_end|>\n"


def test_a_sentencepiece_tokenizer_keeps_ids_markers_and_bos(tmp_path: Path) -> None:
    file = write_sentencepiece_gguf(tmp_path / "tiny.gguf")
    fields, _ = conversion.read_gguf(file)
    (tmp_path / "model").mkdir()
    conversion.write_tokenizer(file, fields, tmp_path / "model")
    tokenizer = HFTokenizer.from_folder(tmp_path / "model")
    tokens = sentencepiece_vocabulary()[0]
    assert tokenizer.bos_id == tokens.index("<s>")
    assert tokenizer.vocab_size == len(tokens)
    for marker in ("<s>", "</s>", "<|im_start|>", "<think>"):
        assert tokenizer.special_tokens[marker] == tokens.index(marker)
        assert tokens.index(marker) not in tokenizer.encode(marker)
    assert [tokens[i] for i in tokenizer.encode("he the\n")] == ["he", "▁the", "<0x0A>"]
    assert tokenizer.decode(tokenizer.encode(" the cat é")) == " the cat é"


@pytest.mark.parametrize("extra", ["rope_freqs.weight", None])
def test_scaled_rotary_positions_are_refused(tmp_path: Path, source: Any, extra: str | None) -> None:
    arrays = llama_tensors(source)
    if extra:
        arrays[extra] = np.ones(8, np.float32)
        file = write_gguf(tmp_path / "tiny.gguf", arrays)
    else:
        file = write_gguf(tmp_path / "tiny.gguf", arrays, llama__rope__scaling__type="yarn")
    with pytest.raises(UnsupportedModelError, match="rotary"):
        _convert(file, tmp_path / "cache")


def test_a_weight_that_transformers_would_drop_is_refused(tmp_path: Path, source: Any) -> None:
    arrays = llama_tensors(source)
    arrays["blk.0.attn_q.bias"] = np.ones(64, np.float32)
    with pytest.raises(UnsupportedModelError, match="would use"):
        _convert(write_gguf(tmp_path / "tiny.gguf", arrays), tmp_path / "cache")


def test_a_weight_that_is_not_there_is_refused(tmp_path: Path, source: Any) -> None:
    arrays = llama_tensors(source)
    del arrays["blk.1.ffn_up.weight"]
    with pytest.raises(UnsupportedModelError, match=r"without .*up_proj"):
        _convert(write_gguf(tmp_path / "tiny.gguf", arrays), tmp_path / "cache")


def test_a_refused_file_leaves_nothing_in_the_cache(tmp_path: Path, source: Any) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", llama_tensors(source), pre="of tomorrow")
    with pytest.raises(UnsupportedModelError, match="of tomorrow"):
        _convert(file, tmp_path / "cache")
    assert list((tmp_path / "cache" / "gguf").iterdir()) == []


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"not a model" * 10)
    with pytest.raises(ModelNotFoundError, match=r"broken\.gguf is not a readable GGUF"):
        _convert(file, tmp_path / "cache")


def test_a_renamed_copy_is_not_converted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []
    monkeypatch.setattr(conversion, "write_folder", lambda file, folder: calls.append(file))
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    first.write_bytes(b"same")
    second.write_bytes(b"same")
    assert _convert(first, tmp_path / "cache") == _convert(second, tmp_path / "cache")
    assert calls == [first]


def test_two_conversions_at_once_end_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both_at_work = threading.Barrier(2, timeout=10)

    def write(file: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}", encoding="utf-8")
        both_at_work.wait()

    monkeypatch.setattr(conversion, "write_folder", write)
    file = tmp_path / "a.gguf"
    file.write_bytes(b"weights")
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(_convert(file, tmp_path / "cache"))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert list((tmp_path / "cache" / "gguf").iterdir()) == [found[0]] == [found[1]]


def test_a_file_is_hashed_once_and_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, cache = tmp_path / "a.gguf", tmp_path / "cache"
    file.write_bytes(b"one")
    assert conversion.file_digest(file, cache) == hashlib.sha256(b"one").hexdigest()
    hashed: list[object] = []
    real = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda stream, name: hashed.append(0) or real(stream, name))
    assert conversion.file_digest(file, cache) == hashlib.sha256(b"one").hexdigest()
    assert not hashed
    file.write_bytes(b"other")
    assert conversion.file_digest(file, cache) == hashlib.sha256(b"other").hexdigest()
    assert hashed


def test_a_broken_index_costs_a_hash_and_nothing_else(tmp_path: Path) -> None:
    file, cache = tmp_path / "a.gguf", tmp_path / "cache"
    file.write_bytes(b"one")
    conversion.file_digest(file, cache)
    (cache / "gguf-index.json").write_text("[", encoding="utf-8")
    assert conversion.file_digest(file, cache) == hashlib.sha256(b"one").hexdigest()
