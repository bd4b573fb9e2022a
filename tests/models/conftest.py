"""Caches in a temporary folder, and a hub that can't be reached unless a test makes it answer."""

from __future__ import annotations

from pathlib import Path

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Branchwise's cache; the hub library's own lies beside it."""
    hub = pytest.importorskip("huggingface_hub")
    folder = tmp_path / "cache"
    monkeypatch.setenv("BRANCHWISE_CACHE", str(folder))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))

    def unreachable(*args: object, **options: object) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(hub.HfApi, "model_info", unreachable)
    return folder


@pytest.fixture
def snapshots(cache: Path, tmp_path: Path) -> HubCache:
    return HubCache(tmp_path / "hub")


class HubCache:
    """Writes snapshots as the hub library lays them out."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, hub_id: str, commit: str = COMMIT, branch: str = "main") -> Path:
        """An empty snapshot, to be filled by the caller."""
        repository = self.root / f"models--{hub_id.replace('/', '--')}"
        reference = repository / "refs" / branch
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(commit, encoding="utf-8")
        folder = repository / "snapshots" / commit
        folder.mkdir(parents=True)
        return folder
