"""From a folder to a backend, or to an error that says why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.utils import logging

from backends.torch_models import build_model, expected, forest
from branchwise.backends.base import ModelIdentity
from branchwise.backends.fake import ByteTokenizer
from branchwise.backends.torch_backend import TorchBackend
from branchwise.backends.torch_load import quiet_transformers
from branchwise.errors import ConfigError, ModelError, ModelNotFoundError, UnsupportedModelError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_model("qwen3").save_pretrained(folder)
    return folder


def copy_of(folder: Path, into: Path) -> Path:
    for file in folder.iterdir():
        (into / file.name).write_bytes(file.read_bytes())
    return into


def load(folder: Path, **settings: Any) -> TorchBackend:
    return TorchBackend.load(folder, name="q", revision="7", tokenizer=ByteTokenizer(), **settings)


def test_a_loaded_model_is_the_saved_one(saved: Path) -> None:
    model = load(saved, device="cpu", dtype="float32")
    batch = forest([(5, None), (3, 0), (2, 0)])
    scores = model.score_packed(batch)
    logits, normalizer = expected(build_model("qwen3"), batch)
    np.testing.assert_allclose(scores.logits, logits, atol=1e-5)
    np.testing.assert_allclose(scores.log_normalizer, normalizer, atol=1e-5)
    parameters = sum(parameter.numel() for parameter in build_model("qwen3").parameters())
    assert model.identity == ModelIdentity("q", "7", "torch", "cpu", "float32", parameters)


def test_capabilities_are_measured(saved: Path) -> None:
    can = load(saved, device="cpu", dtype="float32").capabilities
    layers, heads, width = 3, 2, 16
    assert can.kv_bytes_per_token == layers * heads * width * 2 * 4
    assert 4 * 48 <= can.pass_bytes_per_token <= 4 * 48 * 100
    assert can.max_positions == 256
    assert can.memory_budget > 0
    assert can.packed
    assert can.classic


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.3), ("float16", 0.05)])
def test_half_precision(saved: Path, dtype: str, tolerance: float) -> None:
    model = load(saved, device="cpu", dtype=dtype)
    batch = forest([(5, None), (3, 0), (2, 0)], keep=0)
    scores = model.score_packed(batch)
    logits, _ = expected(build_model("qwen3"), batch)
    np.testing.assert_allclose(scores.logits, logits, atol=tolerance)
    assert model.identity.dtype == dtype
    assert model.capabilities.kv_bytes_per_token == 3 * 2 * 16 * 2 * 2
    assert scores.kept is not None
    assert scores.kept.nbytes == 5 * model.capabilities.kv_bytes_per_token


def test_nothing_is_printed_and_logging_is_as_before(saved: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = logging.get_verbosity()
    load(saved, device="cpu")
    assert capfd.readouterr() == ("", "")
    assert logging.get_verbosity() == before
    assert logging.is_progress_bar_enabled()


def test_progress_bars_that_were_off_stay_off() -> None:
    logging.disable_progress_bar()
    try:
        with quiet_transformers():
            pass
        assert not logging.is_progress_bar_enabled()
    finally:
        logging.enable_progress_bar()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "gpu"}, "device is 'gpu'.*'cpu'"),
        ({"device": "cpu:x"}, "number after the colon"),
        ({"device": "cpu:1"}, r"torch does not see; it sees .*cpu \(1\)"),
        ({"dtype": "bf16"}, "dtype is 'bf16'.*bfloat16"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
    ],
)
def test_settings_are_checked(saved: Path, settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(saved, **settings)


def test_weights_that_are_missing(saved: Path, tmp_path: Path) -> None:
    folder = copy_of(saved, tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"no weights that fit 'qwen3' for model\.layers\.1\.mlp\.up_proj"):
        load(folder)


def test_weights_of_another_shape(saved: Path, tmp_path: Path) -> None:
    folder = copy_of(saved, tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = torch.ones(5)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"no weights that fit .* for model\.norm\.weight"):
        load(folder)


def test_a_cut_off_file(saved: Path, tmp_path: Path) -> None:
    folder = copy_of(saved, tmp_path)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match="broken safetensors"):
        load(folder)


def test_no_safetensors(saved: Path, tmp_path: Path) -> None:
    folder = copy_of(saved, tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(ModelNotFoundError, match="no weights in safetensors"):
        load(folder)


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="not a JSON object"):
        load(tmp_path)


def test_code_in_the_folder_is_not_run(saved: Path, tmp_path: Path) -> None:
    folder = copy_of(saved, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text("raise SystemExit('run')")
    with pytest.raises(UnsupportedModelError, match=r"'own'.*is not run"):
        load(folder)
