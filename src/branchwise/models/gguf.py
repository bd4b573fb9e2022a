"""A GGUF file, dequantized once into a safetensors folder.

The folder is named after the file's sha256, so a copy or a renamed file is not converted again.
It is written beside its place and moved there whole; of two processes that convert the same file
at once, the later one throws its own copy away.

Weights are stored in the narrowest of bfloat16, float16 and float32 that keeps every dequantized
value exactly (block-quantized values need float32).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from branchwise.errors import BackendUnavailableError, ModelNotFoundError, UnsupportedModelError
from branchwise.models.gguf_tokenizer import byte_level_document, special_names, starts_with_bos

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

LAYOUT = 1  # of a converted folder; another number means converting again
MANIFEST = "branchwise.json"
_INDEX = "gguf-index.json"


def converted_folder(cache: Path, digest: str) -> Path:
    """Where the conversion of the file with this sha256 lies, or would lie."""
    return cache / "gguf" / f"{digest[:16]}-{LAYOUT}"


def is_converted(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def convert(file: Path, cache: Path, digest: str) -> Path:
    """The safetensors folder of ``file``, whose sha256 is ``digest``; made now if it isn't there."""
    folder = converted_folder(cache, digest)
    if is_converted(folder):
        return folder
    logger.warning("converting %s to safetensors, once (this takes a while)", file.name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".converting-", dir=folder.parent) as temporary:
        made = Path(temporary) / "model"
        made.mkdir()
        write_folder(file, made)
        manifest = {"layout": LAYOUT, "source": file.name, "sha256": digest}
        (made / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        try:
            made.replace(folder)
        except OSError:
            if not is_converted(folder):  # not because another process was faster
                raise
    return folder


def write_folder(file: Path, folder: Path) -> None:
    """Write config, weights, tokenizer and chat template of ``file`` into ``folder``."""
    fields, tensors = read_gguf(file)
    name = next((tensor for tensor in tensors if tensor.startswith("rope_")), None)
    if name is not None or _scales_rope(fields):
        raise UnsupportedModelError(
            f"{file.name} scales its rotary positions ({name or 'rope.scaling'}), which is lost when a GGUF "
            f"is converted; use the model's safetensors folder"
        )
    write_tokenizer(file, fields, folder)
    _write_weights(file, tensors, folder)


def read_gguf(file: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Metadata by key, and each tensor's number of values."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise BackendUnavailableError(
            "reading a GGUF file needs the gguf package; install branchwise[torch]"
        ) from error
    try:
        reader = GGUFReader(file)
    except (ValueError, IndexError) as error:
        raise ModelNotFoundError(f"{file} is not a readable GGUF file ({error})") from error
    fields = {key: field.contents() for key, field in reader.fields.items()}
    return fields, {tensor.name: int(tensor.n_elements) for tensor in reader.tensors}


def write_tokenizer(file: Path, fields: Mapping[str, Any], folder: Path) -> None:
    """Write ``tokenizer.json``, ``tokenizer_config.json`` and the chat template."""
    kind = fields.get("tokenizer.ggml.model")
    if kind == "gpt2":
        document = byte_level_document(fields)
        (folder / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": starts_with_bos(fields),
            "clean_up_tokenization_spaces": False,
            **special_names(fields),
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    elif kind == "llama":
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    else:
        raise UnsupportedModelError(f"{file.name} has a tokenizer of kind {kind!r}, which can't be converted")
    template = fields.get("tokenizer.chat_template")
    if template:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _scales_rope(fields: Mapping[str, Any]) -> bool:
    architecture = fields.get("general.architecture")
    if architecture == "gpt-oss":  # the one whose scaling transformers reads
        return False
    return fields.get(f"{architecture}.rope.scaling.type", "none") not in ("none", "")


def _write_weights(file: Path, tensors: Mapping[str, int], folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32, output_loading_info=True
        )
    except (ValueError, NotImplementedError, KeyError) as error:
        raise UnsupportedModelError(
            f"transformers can't load {file.name} ({error}); use the model's safetensors folder"
        ) from error
    lost = report["missing_keys"] or report["unexpected_keys"] or report["mismatched_keys"]
    tied = model.config.tie_word_embeddings
    stored = sum(count for name, count in tensors.items() if not (tied and name == "output.weight"))
    used = sum(parameter.numel() for parameter in model.parameters())
    if lost or stored != used:
        raise UnsupportedModelError(
            f"{file.name} holds {stored} weights and transformers would use {used} of its model"
            f"{f', without {min(map(str, lost))}' if lost else ''}; use the model's safetensors folder"
        )
    dtype = narrowest_exact_dtype(model.parameters())
    # the converted model is dense; with these, it is taken for a quantized one that can't be saved
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.to(dtype).save_pretrained(folder)


def narrowest_exact_dtype(tensors: Iterable[torch.Tensor]) -> torch.dtype:
    """The narrowest of bfloat16, float16 and float32 that keeps all values of float32 ``tensors``."""
    import torch

    kept = list(tensors)
    for dtype in (torch.bfloat16, torch.float16):
        if all(torch.equal(tensor.to(dtype).to(tensor.dtype), tensor) for tensor in kept):
            return dtype
    return torch.float32


def file_digest(file: Path, cache: Path) -> str:
    """sha256 of ``file``; remembered in the cache by path, size and time of change."""
    path = str(file.resolve())
    status = file.stat()
    stamp = [status.st_size, status.st_mtime_ns]
    index = _read_index(cache)
    known = index.get(path)
    if isinstance(known, dict) and known.get("stamp") == stamp:
        return str(known["sha256"])
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    index[path] = {"stamp": stamp, "sha256": digest}
    write_atomically(cache / _INDEX, json.dumps(index, indent=2))
    return digest


def _read_index(cache: Path) -> dict[str, Any]:
    try:
        index = json.loads((cache / _INDEX).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):  # a lost index costs a hash, nothing else
        return {}
    return index if isinstance(index, dict) else {}


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` so that a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    Path(temporary).replace(path)
