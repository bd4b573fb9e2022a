"""Model folders: where the cache is, what a usable folder holds, and which weights it has."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from branchwise.errors import ModelNotFoundError, UnsupportedModelError

Source = Literal["hub", "wheel", "gguf", "folder"]

_PICKLED = (".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder with config.json, safetensors and tokenizer.json.

    ``revision``: which weights these are. For the hub, the commit; for a converted GGUF file,
    "gguf-" with the start of the file's sha256; for a local folder, :func:`weights_digest`.
    """

    path: Path
    name: str
    revision: str
    source: Source

    @property
    def nbytes(self) -> int:
        return sum(file.stat().st_size for file in self.path.iterdir() if file.is_file())


def cache_folder() -> Path:
    """``BRANCHWISE_CACHE``, or "branchwise" in the platform's place for caches."""
    chosen = os.environ.get("BRANCHWISE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    if shared:
        return Path(shared) / "branchwise"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "branchwise"
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"]) / "branchwise"
    return Path.home() / ".cache" / "branchwise"


def local_folder(path: Path) -> ModelFolder:
    """The folder at ``path``, checked."""
    check_folder(path)
    return ModelFolder(path, path.name, weights_digest(path), "folder")


def check_folder(path: Path) -> None:
    """Raise unless the folder has all that a backend loads; pickled weights are never loaded."""
    if not (path / "config.json").is_file():
        found = sorted(path.glob("*.gguf"))
        hint = f"give the file itself: {found[0]}" if found else "give the folder that holds config.json"
        raise ModelNotFoundError(f"{path} is no model folder: it has no config.json; {hint}")
    if not safetensors_files(path):
        pickled = sorted(file.name for file in path.iterdir() if file.suffix in _PICKLED)
        if pickled:
            raise UnsupportedModelError(
                f"{path} holds its weights pickled only ({pickled[0]}), and loading a pickle runs code; "
                f"convert them to safetensors"
            )
        raise ModelNotFoundError(f"{path} has no .safetensors weights")
    missing = [name for name in _indexed_files(path) if not (path / name).is_file()]
    if missing:
        raise ModelNotFoundError(f"{path} lacks {missing[0]}, which its safetensors index names")
    if not (path / "tokenizer.json").is_file():
        raise UnsupportedModelError(f"{path} has no tokenizer.json; Branchwise needs that form of tokenizer")


def is_usable(path: Path) -> bool:
    """Whether :func:`check_folder` would pass."""
    try:
        check_folder(path)
    except (ModelNotFoundError, UnsupportedModelError):
        return False
    return True


def safetensors_files(path: Path) -> list[Path]:
    return sorted(path.glob("*.safetensors"))


def weights_digest(path: Path) -> str:
    """12 hex digits over config.json and each weight file's name, size and header.

    The header has every tensor's name, type and shape, so another model or another format shows. The
    values themselves are not read, which would take as long as loading: the same model trained
    further has the same digest.
    """
    digest = hashlib.sha256((path / "config.json").read_bytes())
    for file in safetensors_files(path):
        digest.update(f"\0{file.name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            digest.update(stream.read(min(length, file.stat().st_size)))
    return digest.hexdigest()[:12]


def _indexed_files(path: Path) -> list[str]:
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        return []
    return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
