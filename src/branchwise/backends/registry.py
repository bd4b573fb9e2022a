"""Which runtimes there are, which one a model gets, and how it is opened."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from branchwise.backends.base import Backend, ClassicBackend
from branchwise.config import check_choice
from branchwise.errors import BackendUnavailableError

if TYPE_CHECKING:
    from branchwise.models.folders import ModelFolder


@dataclass(frozen=True)
class Runtime:
    """A runtime by name: the modules it needs, the extra that brings them, and its loader."""

    name: str
    modules: tuple[str, ...]
    extra: str | None
    open: Callable[[ModelFolder, str | None, str | None], Backend | ClassicBackend]

    def missing(self) -> tuple[str, ...]:
        """The needed modules that are not installed."""
        return tuple(name for name in self.modules if importlib.util.find_spec(name) is None)

    def require(self) -> None:
        """Raise :class:`BackendUnavailableError` unless everything it needs is installed."""
        missing = self.missing()
        if missing:
            raise BackendUnavailableError(
                f"backend {self.name!r} needs {', '.join(missing)}, not installed here; "
                f"run: pip install 'branchwise[{self.extra}]'"
            )


def _open_torch(folder: ModelFolder, device: str | None, dtype: str | None) -> Backend | ClassicBackend:
    from branchwise.backends.hf_tokenizer import HFTokenizer
    from branchwise.backends.torch_backend import TorchBackend

    return TorchBackend.load(
        folder.path,
        name=folder.name,
        revision=folder.revision,
        tokenizer=HFTokenizer.from_folder(folder.path),
        device=device,
        dtype=dtype,
    )


def _open_reference(folder: ModelFolder, device: str | None, dtype: str | None) -> Backend | ClassicBackend:
    from branchwise.backends.hf_tokenizer import HFTokenizer
    from branchwise.backends.reference import ReferenceBackend

    check_choice("device", device or "cpu", ("cpu",))
    check_choice("dtype", dtype or "float64", ("float64",))
    return ReferenceBackend.load(
        folder.path,
        name=folder.name,
        revision=folder.revision,
        tokenizer=HFTokenizer.from_folder(folder.path),
    )


RUNTIMES: dict[str, Runtime] = {
    "torch": Runtime("torch", ("torch", "transformers", "safetensors"), "torch", _open_torch),
    "reference": Runtime("reference", ("safetensors",), "torch", _open_reference),
}


def open_backend(
    model: str | Path, *, backend: str | None, device: str | None, dtype: str | None
) -> Backend | ClassicBackend:
    """Find the model and load it into a runtime; ``backend=None`` takes torch.

    Raises :class:`BackendUnavailableError` when the runtime is not installed, and
    :class:`~branchwise.errors.ModelError` when the model can't be had.
    """
    from branchwise.models.store import resolve

    check_choice("backend", backend or "torch", tuple(RUNTIMES))
    runtime = RUNTIMES[backend or "torch"]
    runtime.require()
    return runtime.open(resolve(str(model)), device, dtype)
