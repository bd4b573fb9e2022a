"""Branchwise: typed decisions with probabilities, from one packed forward pass of a local model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from branchwise.errors import (
    BackendError,
    BackendMemoryError,
    BackendUnavailableError,
    BranchwiseError,
    ConfigError,
    ContextError,
    ContextTooLongError,
    ContextTypeError,
    EmptyContextError,
    ModelError,
    ModelNotFoundError,
    PromptError,
    SchemaError,
    UnsupportedModelError,
)
from branchwise.results import (
    Alternative,
    Decision,
    FieldResult,
    Provenance,
    Semantics,
    Telemetry,
    Timing,
)
from branchwise.schema.questions import (
    BooleanQuestion,
    ChoiceQuestion,
    MultiQuestion,
    Option,
    Schema,
    ScoreQuestion,
)
from branchwise.schema.score import Score

if TYPE_CHECKING:
    from branchwise.api import Decider

__version__ = "0.1.0"

__all__ = [
    "Alternative",
    "BackendError",
    "BackendMemoryError",
    "BackendUnavailableError",
    "BooleanQuestion",
    "BranchwiseError",
    "ChoiceQuestion",
    "ConfigError",
    "ContextError",
    "ContextTooLongError",
    "ContextTypeError",
    "Decider",
    "Decision",
    "EmptyContextError",
    "FieldResult",
    "ModelError",
    "ModelNotFoundError",
    "MultiQuestion",
    "Option",
    "PromptError",
    "Provenance",
    "Schema",
    "SchemaError",
    "Score",
    "ScoreQuestion",
    "Semantics",
    "Telemetry",
    "Timing",
    "UnsupportedModelError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """The Decider when it is first named: NumPy alone takes longer to import than all the rest."""
    if name == "Decider":
        from branchwise.api import Decider

        return Decider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
