"""From a folder of safetensors to a model in memory, quietly, or to an error that says why not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM
from transformers.utils import logging

from branchwise.backends.torch_attention import IMPLEMENTATION, register
from branchwise.backends.torch_families import check_config, check_model_class, unsupported
from branchwise.errors import ModelError, ModelNotFoundError


def load_model(folder: Path, device: torch.device, dtype: torch.dtype) -> Any:
    """The causal language model in ``folder``, ready to be run with our attention.

    Raises :class:`ModelNotFoundError`, :class:`UnsupportedModelError`, or :class:`ModelError` for
    weights that are broken or not all there.
    """
    register()
    config = _read_config(folder)
    check_config(config)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise unsupported(config.model_type, "transformers has no causal language model of that type")
    check_model_class(config.model_type, MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])
    with quiet_transformers():
        try:
            model, report = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                device_map=None if device.type == "cpu" else {"": device},
                attn_implementation=IMPLEMENTATION,
                trust_remote_code=False,
                use_safetensors=True,
                local_files_only=True,
                ignore_mismatched_sizes=True,  # they are errors here, below
                output_loading_info=True,
            )
        except SafetensorError as error:
            raise ModelError(f"{folder} has a broken safetensors file: {error}") from error
        except OSError as error:
            raise ModelNotFoundError(f"{folder} has no weights in safetensors files: {error}") from error
    lost = sorted(report["missing_keys"]) + sorted(name for name, *_ in report["mismatched_keys"])
    if lost:
        shown = ", ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
        raise ModelError(f"{folder} has no weights that fit {config.model_type!r} for {shown}")
    return model.eval().requires_grad_(False)


def _read_config(folder: Path) -> Any:
    file = folder / "config.json"
    if not file.is_file():
        raise ModelNotFoundError(f"{folder} has no config.json")
    try:
        model_type = json.loads(file.read_text(encoding="utf-8")).get("model_type")
    except (json.JSONDecodeError, AttributeError) as error:
        raise ModelError(f"{file} is not a JSON object") from error
    if model_type not in CONFIG_MAPPING:
        raise unsupported(
            model_type, "this transformers does not know them (code that comes with a model is not run)"
        )
    with quiet_transformers():
        return AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and no remarks from transformers inside; as it was, after."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
