"""The cache's place, and what a model folder must hold."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from branchwise.errors import ModelNotFoundError, UnsupportedModelError
from branchwise.models.folders import cache_folder, check_folder, is_usable, local_folder, weights_digest
from models.gguf_samples import write_model_folder


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("BRANCHWISE_CACHE")
    assert cache_folder() == tmp_path / "shared" / "branchwise"


@pytest.mark.parametrize(
    ("platform", "place"), [("linux", ".cache/branchwise"), ("darwin", "Library/Caches/branchwise")]
)
def test_the_cache_is_where_the_platform_keeps_caches(
    platform: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BRANCHWISE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache_folder() == tmp_path / place


def test_a_whole_folder_is_used_as_it_is(tmp_path: Path) -> None:
    folder = local_folder(write_model_folder(tmp_path / "mine", shards=2))
    assert (folder.path, folder.name, folder.source) == (tmp_path / "mine", "mine", "folder")
    assert folder.nbytes == sum(file.stat().st_size for file in (tmp_path / "mine").iterdir())


@pytest.mark.parametrize(
    ("lost", "error", "says"),
    [
        ("config.json", ModelNotFoundError, "no config.json"),
        ("model-1.safetensors", ModelNotFoundError, "lacks model-1.safetensors"),
        ("tokenizer.json", UnsupportedModelError, "no tokenizer.json"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, lost: str, error: type[Exception], says: str) -> None:
    folder = write_model_folder(tmp_path / "mine", shards=2)
    (folder / lost).unlink()
    with pytest.raises(error, match=says):
        check_folder(folder)
    assert not is_usable(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth", "last.ckpt"])
def test_pickled_weights_are_refused_by_name(tmp_path: Path, name: str) -> None:
    folder = write_model_folder(tmp_path / "mine")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match=r"no \.safetensors"):
        check_folder(folder)
    (folder / name).touch()
    with pytest.raises(UnsupportedModelError, match=name):
        check_folder(folder)


def test_a_folder_around_a_gguf_file_points_to_it(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").touch()
    with pytest.raises(ModelNotFoundError, match=r"give the file itself: .*tiny\.gguf"):
        check_folder(tmp_path)


def test_the_digest_is_of_configuration_and_tensor_shapes(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "mine")
    first = weights_digest(folder)
    assert first == weights_digest(write_model_folder(tmp_path / "copy"))
    save_file({"w0": np.ones((2, 2), np.float32)}, folder / "model.safetensors")
    assert weights_digest(folder) == first, "values alone are not read"
    save_file({"w0": np.zeros((1, 4), np.float32)}, folder / "model.safetensors")
    assert weights_digest(folder) != first
    (tmp_path / "copy" / "config.json").write_text('{"rope_theta": 1}', encoding="utf-8")
    assert weights_digest(tmp_path / "copy") != first
