"""Snapshots of the hub, in the hub library's own cache.

Its errors end here. Only configuration, tokenizer and safetensors are ever asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from branchwise.errors import BackendUnavailableError, ModelNotFoundError
from branchwise.models.folders import is_usable

PROBE_SECONDS = 3.0

WANTED = ("*.json", "*.safetensors", "*.jinja")
UNWANTED = ("*/*", "consolidated*")  # other formats in sub-folders; the same weights once more


def cached_snapshot(hub_id: str, revision: str | None) -> Path | None:
    """The snapshot on this machine, if it is there whole. Asks no network.

    Reads the cache's documented layout (``models--org--name``: ``refs`` name commits, ``snapshots``
    hold their files), because importing the library's downloader takes longer than all the rest
    of a warm start.
    """
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        return None
    repository = Path(HF_HUB_CACHE) / f"models--{hub_id.replace('/', '--')}"
    reference = repository / "refs" / (revision or "main")
    commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else revision
    if not commit:
        return None
    path = repository / "snapshots" / commit
    return path if path.is_dir() and is_usable(path) else None


def is_reachable(hub_id: str, revision: str | None) -> bool:
    """Whether the hub answers for this model within ``PROBE_SECONDS``.

    Raises :class:`ModelNotFoundError` when it answers that it has no such model or revision, or
    that the model needs a login.
    """
    hub = _hub()
    wanted = f"{hub_id}@{revision}" if revision else hub_id
    try:
        hub.HfApi().model_info(hub_id, revision=revision, timeout=PROBE_SECONDS)
    except hub.errors.GatedRepoError as error:
        raise ModelNotFoundError(
            f"the hub gives {wanted} only to those who agreed to its terms; log in with `hf auth login`"
        ) from error
    except (hub.errors.RepositoryNotFoundError, hub.errors.RevisionNotFoundError) as error:
        raise ModelNotFoundError(f"the hub has no model {wanted} (or it is private)") from error
    except hub.errors.HFValidationError as error:
        raise ModelNotFoundError(f"{wanted} can't be a hub id: {error}") from error
    except (hub.errors.HTTPError, OSError):
        return False
    return True


def download_snapshot(hub_id: str, revision: str | None) -> Path:
    """Fetch the model's files; those that are here already are not fetched again."""
    hub = _hub()
    try:
        path = hub.snapshot_download(
            hub_id, revision=revision, allow_patterns=list(WANTED), ignore_patterns=list(UNWANTED)
        )
    except (hub.errors.HTTPError, OSError) as error:
        raise ModelNotFoundError(f"fetching {hub_id} was interrupted ({error}); try again") from error
    return Path(path)


def _hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        raise BackendUnavailableError(
            "models of the hub need the huggingface_hub package; install branchwise[torch]"
        ) from error
    return huggingface_hub
