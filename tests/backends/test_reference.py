"""The reference backend against Transformers in double precision, and against itself path by path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from branchwise.backends.base import Backend, ClassicBackend, PackedBatch, RowBatch, Segment
from branchwise.backends.fake import ByteTokenizer, FakeBackend
from branchwise.backends.reference import ReferenceBackend
from branchwise.errors import BackendMemoryError, ModelError, ModelNotFoundError, UnsupportedModelError
from tiny_models import tiny_llama_folder, tiny_llama_weights

VOCAB = 40
TINY = {"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 24, "head_dim": 4}
LLAMA3_ROPE = {
    "rope_theta": 500.0,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
QWEN2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False}
MISTRAL = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None}
VARIANTS: dict[str, dict[str, Any]] = {
    "grouped heads, tied": {},
    "grouped heads, untied": {"tied": False},
    "one key head": {"num_key_value_heads": 1},
    "a key head per head": {"num_key_value_heads": 4},
    "biases everywhere": {"attention_bias": True, "mlp_bias": True},
    "heads wider than the model": {"head_dim": 6},
    "rope of Llama 3.1": {"rope_scaling": LLAMA3_ROPE},
    "rope as Transformers 5 writes it": {"rope_parameters": {"rope_theta": 300.0, "rope_type": "default"}},
    "qwen2": QWEN2,
    "mistral": MISTRAL,
}


def load(folder: Path) -> ReferenceBackend:
    return ReferenceBackend.load(folder, name="tiny", revision="1", tokenizer=ByteTokenizer())


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> ReferenceBackend:
    return load(tiny_llama_folder(tmp_path_factory.mktemp("tiny"), **TINY))


def whole_logits(backend: ReferenceBackend, ids: list[int]) -> np.ndarray:
    """float64 ``[T, V]``: every logit of one path, asked as a forest of one segment."""
    size = len(ids)
    found = backend.score_packed(forest_batch([(ids, None)], {t: range(VOCAB) for t in range(size)}))
    return found.logits.reshape(size, VOCAB)


def forest_batch(
    segments: list[tuple[list[int], int | None]],
    asked: dict[int, Any],
    **options: Any,
) -> PackedBatch:
    """``segments``: (tokens, parent), parents first. ``asked``: node → allowed ids. Positions are depths."""
    above = options["prefix"].length if options.get("prefix") else 0
    made: list[Segment] = []
    ends: list[int] = []
    ids: list[int] = []
    positions: list[int] = []
    for tokens, parent in segments:
        depth = above if parent is None else ends[parent]
        made.append(Segment(len(ids), len(ids) + len(tokens), parent))
        ids += tokens
        positions += range(depth, depth + len(tokens))
        ends.append(depth + len(tokens))
    return PackedBatch(
        token_ids=np.array(ids, np.int32),
        positions=np.array(positions, np.int32),
        segments=tuple(made),
        nodes=np.array(list(asked), np.int64),
        allowed_ids=np.array([i for allowed in asked.values() for i in allowed], np.int32),
        allowed_offsets=np.cumsum([0, *map(len, asked.values())]),
        **options,
    )


@st.composite
def forests(draw: st.DrawFn) -> list[tuple[list[int], int | None]]:
    """Up to 8 segments in depth-first order, each of 1 to 4 tokens."""
    segments: list[tuple[list[int], int | None]] = []
    open_path: list[int] = []
    for i in range(draw(st.integers(1, 8))):
        keep = draw(st.integers(0, len(open_path)))
        open_path = open_path[:keep]
        tokens = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4))
        segments.append((tokens, open_path[-1] if open_path else None))
        open_path = [*open_path, i]
    return segments


def path_tokens(segments: list[tuple[list[int], int | None]], segment: int) -> list[int]:
    """The tokens from the root to the end of ``segment``, by hand."""
    tokens, parent = segments[segment]
    return (path_tokens(segments, parent) if parent is not None else []) + tokens


def nodes_of(segments: list[tuple[list[int], int | None]]) -> dict[int, list[int]]:
    """Flat index of every token → the path that ends with it."""
    nodes: dict[int, list[int]] = {}
    for i, (tokens, _) in enumerate(segments):
        path = path_tokens(segments, i)
        for missing in reversed(range(len(tokens))):
            nodes[len(nodes)] = path[: len(path) - missing]
    return nodes


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_full_path_gives_the_logits_of_transformers_in_double_precision(variant, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = tiny_llama_folder(tmp_path, dtype=np.float64, **TINY | VARIANTS[variant])
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    assert model.dtype == torch.float64
    ids = np.random.default_rng(3).integers(0, VOCAB, 100).tolist()
    ours = whole_logits(load(folder), ids)
    with torch.inference_mode():
        rounded = model(torch.tensor([ids])).logits[0].numpy()
        compute_in_double_precision(model)
        exact = model(torch.tensor([ids])).logits[0].numpy()
    assert ours.std() > 1
    np.testing.assert_allclose(ours, exact, rtol=0, atol=1e-9)
    np.testing.assert_allclose(ours, rounded, rtol=0, atol=1e-3)


def compute_in_double_precision(model: Any) -> None:
    """Transformers rounds norms and angles to float32 in a double model too; put torch's own there."""
    import torch

    for name, norm in list(model.named_modules()):
        if name.endswith("norm"):
            exact = torch.nn.RMSNorm(norm.weight.shape, norm.variance_epsilon, dtype=torch.float64)
            exact.weight = norm.weight
            model.set_submodule(name, exact)
    rotary = DoubleRotary(model.model.rotary_emb)
    del model.model.rotary_emb  # a plain attribute can't take a module's place
    model.model.rotary_emb = rotary


class DoubleRotary:
    """Cosine and sine ``[1, T, head size]`` of float64 angles."""

    def __init__(self, rounded: Any) -> None:
        import torch

        half, rope = len(rounded.inv_freq), rounded.config.rope_parameters
        self.frequencies = rope["rope_theta"] ** -(torch.arange(half, dtype=torch.float64) / half)
        if rope["rope_type"] == "llama3":
            self.frequencies = llama3_waves(self.frequencies, rope)
        torch.testing.assert_close(self.frequencies.float(), rounded.inv_freq)

    def __call__(self, x: Any, position_ids: Any) -> tuple[Any, Any]:
        angles = (position_ids[..., None].double() * self.frequencies).repeat(1, 1, 2)
        return angles.cos(), angles.sin()


def llama3_waves(plain: Any, rope: dict[str, Any]) -> Any:
    """By wavelength, as the Llama 3.1 reference code states it: three cases, one wave at a time."""
    import torch

    low_wave = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high_wave = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    waves = []
    for frequency in plain.tolist():
        wave = 2 * np.pi / frequency
        if wave < high_wave:
            waves.append(frequency)
        elif wave > low_wave:
            waves.append(frequency / rope["factor"])
        else:
            smooth = rope["original_max_position_embeddings"] / wave - rope["low_freq_factor"]
            smooth /= rope["high_freq_factor"] - rope["low_freq_factor"]
            waves.append((1 - smooth) * frequency / rope["factor"] + smooth * frequency)
    return torch.tensor(waves, dtype=torch.float64)


@settings(max_examples=60, deadline=None)
@given(segments=forests())
def test_a_forest_gives_what_each_of_its_paths_gives_alone(backend, segments):
    nodes = nodes_of(segments)
    asked = {node: sorted({node % VOCAB, 7, 3}) for node in nodes}
    found = backend.score_packed(forest_batch(segments, asked))
    assert found.tokens_computed == sum(len(tokens) for tokens, _ in segments)
    offset = 0
    for k, (node, path) in enumerate(nodes.items()):
        alone = whole_logits(backend, path)[-1]
        allowed = asked[node]
        ours = found.logits[offset : offset + len(allowed)]
        offset += len(allowed)
        np.testing.assert_allclose(ours, alone[allowed], rtol=0, atol=1e-9)
        assert found.log_normalizer[k] == pytest.approx(np.log(np.exp(alone).sum()), abs=1e-9)
    assert offset == len(found.logits)


@settings(max_examples=40, deadline=None)
@given(segments=forests(), root=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6))
def test_a_kept_prefix_gives_what_the_whole_path_gives(backend, segments, root):
    below = [(tokens, 0 if parent is None else parent + 1) for tokens, parent in segments]
    nodes = list(nodes_of(segments))
    asked = {len(root) + node: [1, 2, 5] for node in nodes}
    whole = backend.score_packed(forest_batch([(root, None), *below], asked, keep=0))
    assert whole.kept.length == len(root)
    assert whole.kept.nbytes == len(root) * backend.capabilities.kv_bytes_per_token
    asked = {node: [1, 2, 5] for node in nodes}
    found = backend.score_packed(forest_batch(segments, asked, prefix=whole.kept))
    assert found.tokens_computed == whole.tokens_computed - len(root)
    assert found.kept is None
    np.testing.assert_allclose(found.logits, whole.logits, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.log_normalizer, whole.log_normalizer, rtol=0, atol=1e-9)


def test_a_prefix_can_be_kept_below_a_prefix(backend):
    ids = [5, 6, 7, 8, 9]
    first = backend.score_packed(forest_batch([(ids[:2], None)], {}, keep=0)).kept
    second = backend.score_packed(forest_batch([(ids[2:4], None)], {}, prefix=first, keep=0)).kept
    found = backend.score_packed(forest_batch([(ids[4:], None)], {0: range(VOCAB)}, prefix=second))
    assert second.length == 4
    np.testing.assert_allclose(found.logits, whole_logits(backend, ids)[-1], rtol=0, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_prefill_and_rows_give_what_the_forest_gives(backend, data):
    tokens = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6)
    prompts = data.draw(st.lists(tokens, min_size=1, max_size=3))
    rows = data.draw(st.lists(st.tuples(st.integers(0, len(prompts) - 1), tokens), min_size=1, max_size=5))
    rows.sort(key=lambda row: row[0])
    forest: list[tuple[list[int], int | None]] = []
    asked: dict[int, Any] = {}
    done = 0
    for i, prompt in enumerate(prompts):
        forest.append((prompt, None))
        at, done = len(forest) - 1, done + len(prompt)
        for _, row in (pair for pair in rows if pair[0] == i):
            forest.append((row, at))
            done += len(row)
            asked[done - 1] = [0, 4]
    packed = backend.score_packed(forest_batch(forest, asked))
    slots = [backend.prefill(prompt) for prompt in prompts]
    classic = backend.score_rows(
        RowBatch(
            token_ids=tuple(tuple(row) for _, row in rows),
            allowed_ids=np.array([0, 4] * len(rows), np.int32),
            allowed_offsets=np.arange(0, 2 * len(rows) + 1, 2),
        ),
        [slots[i] for i, _ in rows],
    )
    assert [slot.length for slot in slots] == [len(prompt) for prompt in prompts]
    assert classic.tokens_computed == sum(len(row) for _, row in rows)
    np.testing.assert_allclose(classic.logits, packed.logits, rtol=0, atol=1e-9)
    np.testing.assert_allclose(classic.log_normalizer, packed.log_normalizer, rtol=0, atol=1e-9)


def test_the_normalizer_can_be_left_out(backend):
    asked = {1: [3, 4]}
    without = backend.score_packed(forest_batch([([1, 2], None)], asked, want_normalizer=False))
    assert without.log_normalizer is None
    full = backend.score_packed(forest_batch([([1, 2], None)], asked))
    np.testing.assert_array_equal(without.logits, full.logits)


def test_the_peak_counts_keys_values_and_one_row_of_logits(backend):
    per_token = backend.capabilities.kv_bytes_per_token
    assert per_token == 2 * 2 * 2 * 4 * 8  # layers, keys and values, key heads, head size, bytes
    found = backend.score_packed(forest_batch([([1, 2, 3], None)], {2: [0]}))
    assert found.peak_bytes == 3 * per_token + VOCAB * 8
    kept = backend.score_packed(forest_batch([([1, 2, 3], None)], {}, keep=0))
    assert kept.peak_bytes == 6 * per_token
    below = backend.score_packed(forest_batch([([4], None)], {}, prefix=kept.kept))
    assert below.peak_bytes == 4 * per_token + 4 * per_token // 2  # one layer of two is joined


def test_it_says_what_it_is(backend):
    assert isinstance(backend, Backend)
    assert isinstance(backend, ClassicBackend)
    made = backend.identity
    assert (made.name, made.revision, made.backend, made.dtype) == ("tiny", "1", "reference", "float64")
    attention, mlp, norms = 16 * (16 + 8 + 8 + 16), 3 * 16 * 24, 2 * 16
    assert made.parameters == VOCAB * 16 + 2 * (attention + mlp + norms) + 16
    assert backend.capabilities.max_positions == 8192


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"model_type": "gemma2"}, "'gemma2'"),
        ({"model_type": "mamba"}, "'mamba'"),
        ({"model_type": None}, "None"),
        (MISTRAL | {"sliding_window": 4096}, "'mistral' with sliding_window 4096"),
        (QWEN2 | {"use_sliding_window": True, "sliding_window": 32}, "'qwen2' with sliding_window 32"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_type 'yarn'"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor",
        ),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_a_model_that_the_formulas_do_not_cover_is_refused_by_name(config, named, tmp_path):
    folder = tiny_llama_folder(tmp_path, **TINY | config)
    with pytest.raises(UnsupportedModelError, match="reference backend") as refusal:
        load(folder)
    assert named in str(refusal.value)


def test_a_mistral_without_a_written_window_has_its_families_window(tmp_path):
    folder = tiny_llama_folder(tmp_path, **TINY | MISTRAL)
    config = json.loads((folder / "config.json").read_text())
    del config["sliding_window"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match="sliding_window 4096"):
        load(folder)


def test_weights_that_are_missing_misshapen_or_left_over_are_refused(tmp_path):
    folder = tiny_llama_folder(tmp_path, **TINY)
    config = json.loads((folder / "config.json").read_text())
    weights = {name: value.astype(np.float32) for name, value in tiny_llama_weights(config, 0).items()}

    def with_weights(changed: dict[str, np.ndarray]) -> Path:
        save_file(changed, folder / "model.safetensors")
        return folder

    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(ModelError, match=f"lacks the weights {name}"):
        load(with_weights({key: value for key, value in weights.items() if key != name}))
    with pytest.raises(ModelError, match=r"\[24, 15\].*\[24, 16\]"):
        load(with_weights(weights | {name: weights[name][:, 1:].copy()}))
    extra = {"model.layers.0.self_attn.q_norm.weight": np.ones(4, np.float32)}
    with pytest.raises(UnsupportedModelError, match=r"q_norm\.weight"):
        load(with_weights(weights | extra))
    harmless = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2, np.float32),
        "lm_head.weight": weights["model.embed_tokens.weight"].copy(),
    }
    load(with_weights(weights | harmless))
    (folder / "model.safetensors").write_bytes(b"\x10" + bytes(20))
    with pytest.raises(ModelError, match="broken safetensors"):
        load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match="no weights"):
        load(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="not a JSON object"):
        load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        load(folder)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_stored_formats_widen_to_the_values_torch_reads(dtype, tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    folder = tiny_llama_folder(tmp_path, **TINY)
    config = json.loads((folder / "config.json").read_text())
    stored = {
        name: torch.from_numpy(value).to(getattr(torch, dtype))
        for name, value in tiny_llama_weights(config, 0).items()
    }
    items = list(stored.items())
    save_torch(dict(items[:4]), folder / "model-00001-of-00002.safetensors")
    save_torch(dict(items[4:]), folder / "model-00002-of-00002.safetensors")
    (folder / "model.safetensors").unlink()
    ours = whole_logits(load(folder), [1, 2, 3])
    widened = {name: value.double().numpy() for name, value in stored.items()}
    for file in folder.glob("*.safetensors"):
        file.unlink()
    save_file(widened, folder / "model.safetensors")
    np.testing.assert_array_equal(ours, whole_logits(load(folder), [1, 2, 3]))


def test_handles_of_another_backend_or_model_are_refused(backend, tmp_path):
    other = load(tiny_llama_folder(tmp_path, seed=1, **TINY))
    rows = RowBatch(((1,),), np.array([0], np.int32), np.array([0, 1]))
    with pytest.raises(ValueError, match="another model"):
        backend.score_rows(rows, [other.prefill([1, 2])])
    with pytest.raises(TypeError, match="another backend"):
        backend.score_rows(rows, [FakeBackend().prefill([1, 2])])
    with pytest.raises(ValueError, match="no tokens"):
        backend.prefill([])


def test_running_out_of_memory_is_told_apart(backend, monkeypatch):
    def full(*args: Any, **options: Any) -> None:
        raise MemoryError("Unable to allocate")

    monkeypatch.setattr("branchwise.backends.reference.forward", full)
    with pytest.raises(BackendMemoryError, match="running 2 tokens: Unable to allocate"):
        backend.score_packed(forest_batch([([1, 2], None)], {}))
    with pytest.raises(BackendMemoryError, match="prefilling 3 tokens"):
        backend.prefill([1, 2, 3])
