"""What a user may write for a model, taken apart."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from branchwise.errors import ModelNotFoundError
from branchwise.models.catalog import CATALOG, ModelCard, card_of_hub_id

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model on the hub. ``revision``: a branch, tag or commit; None for the newest."""

    hub_id: str
    revision: str | None
    card: ModelCard | None


@dataclass(frozen=True, slots=True)
class FolderModel:
    """A model folder on this machine."""

    path: Path


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A GGUF file on this machine."""

    path: Path


ModelSpec = HubModel | FolderModel | GgufModel


def parse_spec(text: str) -> ModelSpec:
    """An alias, a folder, a .gguf file or a hub id, tried in this order.

    Alias and hub id may end in "@revision". Raises :class:`ModelNotFoundError` when the text can be
    none of them, with the nearest alias.
    """
    name, at, revision = text.partition("@")
    wanted = revision if at else None
    if name in CATALOG:
        return _of_card(CATALOG[name], wanted)
    path = Path(text).expanduser()
    if text and path.is_dir():
        return FolderModel(path.resolve())
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelNotFoundError(f"{text} is a file, but not a .gguf; give that, or the model's folder")
        return GgufModel(path.resolve())
    if text.startswith((".", "/", "~")) or path.suffix.lower() == ".gguf":
        raise ModelNotFoundError(f"there is no model folder and no .gguf file at {text}")
    if _HUB_ID.fullmatch(name):
        card = card_of_hub_id(name)
        return HubModel(name, wanted, None) if card is None else _of_card(card, wanted)
    near = difflib.get_close_matches(name.lower(), CATALOG, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"the short names are {', '.join(CATALOG)}"
    raise ModelNotFoundError(
        f"no model is called {text!r}; {hint} "
        f"(a hub id looks like 'organisation/name'; a folder or .gguf file must exist)"
    )


def _of_card(card: ModelCard, revision: str | None) -> HubModel:
    return HubModel(card.hub_id, revision or card.revision, card)
