"""What a user may write for a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from branchwise.errors import ModelNotFoundError
from branchwise.models.catalog import CATALOG, EMBEDDED
from branchwise.models.specs import FolderModel, GgufModel, HubModel, parse_spec


def test_alias_and_hub_id_are_one_model() -> None:
    for card in CATALOG.values():
        assert parse_spec(card.alias) == parse_spec(card.hub_id) == HubModel(card.hub_id, card.revision, card)
    assert parse_spec("huggingfacetb/smollm2-135m-instruct") == parse_spec(EMBEDDED)


def test_a_revision_stands_behind_an_at_sign() -> None:
    assert parse_spec("some/model@v1.0") == HubModel("some/model", "v1.0", None)
    assert parse_spec("some/model") == HubModel("some/model", None, None)
    assert parse_spec(f"{EMBEDDED}@refs/pr/1") == HubModel(
        CATALOG[EMBEDDED].hub_id, "refs/pr/1", CATALOG[EMBEDDED]
    )


def test_paths_that_exist_come_before_hub_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some" / "model").mkdir(parents=True)
    assert parse_spec("some/model") == FolderModel(tmp_path.resolve() / "some" / "model")


def test_a_gguf_file_is_told_from_other_files(tmp_path: Path) -> None:
    file = tmp_path / "tiny.GGUF"
    file.touch()
    assert parse_spec(str(file)) == GgufModel(file.resolve())
    other = tmp_path / "model.safetensors"
    other.touch()
    with pytest.raises(ModelNotFoundError, match=r"not a \.gguf"):
        parse_spec(str(other))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("smollm-135m", "did you mean 'smollm2-135m'"),
        ("Qwen2.5-7B", "did you mean 'qwen2.5-7b'"),
        ("zebra", "the short names are smollm2-135m, "),
        ("", "no model is called ''"),
        ("./nowhere", "no model folder and no .gguf file at ./nowhere"),
        ("models/tiny.gguf", "no model folder and no .gguf file at models/tiny.gguf"),
        ("a/b/c", "no model is called 'a/b/c'"),
        ("../../etc/passwd", "no model folder"),
    ],
)
def test_anything_else_is_refused_with_what_to_write(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError) as refusal:
        parse_spec(text)
    assert says in str(refusal.value)


def _llama_parameters(vocab: int, hidden: int, layers: int, feed: int, kv: int) -> int:
    """Tied embeddings, no biases: W = V·h + L·(2·h² + 2·h·kv + 3·h·f + 2·h) + h."""
    layer = 2 * hidden**2 + 2 * hidden * kv + 3 * hidden * feed + 2 * hidden
    return vocab * hidden + layers * layer + hidden


@pytest.mark.parametrize(
    ("alias", "counted"),
    [
        ("smollm2-135m", _llama_parameters(49152, 576, 30, 1536, 192)),
        ("smollm2-360m", _llama_parameters(49152, 960, 32, 2560, 320)),
        ("smollm3-3b", _llama_parameters(128256, 2048, 36, 11008, 512)),
    ],
)
def test_parameters_are_those_of_the_published_shapes(alias: str, counted: int) -> None:
    assert CATALOG[alias].parameters == counted
    assert CATALOG[alias].float32_bytes == 2 * CATALOG[alias].bfloat16_bytes == 4 * counted
