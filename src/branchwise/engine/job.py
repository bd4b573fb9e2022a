"""One call's constants, and what it hands out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from branchwise.backends.tokenizer import Tokenizer
from branchwise.config import CallOptions
from branchwise.engine.planner import Cost
from branchwise.engine.strategy import Strategy
from branchwise.errors import BranchwiseError
from branchwise.results import Decision, Provenance
from branchwise.schema.questions import Schema
from branchwise.tree.rows import CompiledSchema

Outcome: TypeAlias = Decision[Any] | BranchwiseError
"""What stands at one place of the output: a decision, or that item's error."""


@dataclass(frozen=True)
class Job:
    """What is the same for every context of a call."""

    schema: Schema
    compiled: CompiledSchema
    options: CallOptions
    provenance: Provenance
    strategy: Strategy
    tokenizer: Tokenizer
    max_positions: int
    budget: Cost
