"""One model and one prompt form, ready to answer: what lives as long as a Decider."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from branchwise.backends.base import Backend, ClassicBackend
from branchwise.config import CallOptions, Settings
from branchwise.engine.classic import ClassicStrategy
from branchwise.engine.job import Job, Outcome, Reconcile, unchanged
from branchwise.engine.packed import PackedStrategy
from branchwise.engine.planner import Cost
from branchwise.engine.prefix_cache import PrefixCache
from branchwise.engine.strategy import Serialized, Strategy
from branchwise.engine.stream import answer
from branchwise.errors import ConfigError
from branchwise.prompt import PROMPT_VERSION
from branchwise.results import Provenance
from branchwise.schema.questions import Schema
from branchwise.tree.rows import CompiledSchema, compile_schema

COMPILED_SCHEMAS = 128
"""How many compiled schemas an engine keeps; the least recently used goes first."""


class Engine:
    """Holds a backend, its prefix cache and its compiled schemas; hands out decision streams.

    Safe to use from several threads: passes run one after the other.
    """

    def __init__(self, backend: Backend | ClassicBackend, settings: Settings) -> None:
        self.backend = backend
        self.settings = settings
        self.prefixes = PrefixCache(settings.cache_bytes)
        self.strategy = Serialized(_strategy(backend, settings, self.prefixes))
        can = backend.capabilities
        self.budget = Cost(
            settings.token_budget or can.token_budget, settings.memory_budget or can.memory_budget
        )
        self._compiled: OrderedDict[str, CompiledSchema] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, schema: Schema) -> CompiledSchema:
        """The schema's rows and tries for this model, from the cache if it was compiled before."""
        key = schema.fingerprint
        with self._lock:
            if key in self._compiled:
                self._compiled.move_to_end(key)
                return self._compiled[key]
        compiled = compile_schema(
            schema, self.backend.tokenizer, layout=self.settings.layout, answers=self.settings.answers
        )
        with self._lock:
            self._compiled[key] = compiled
            while len(self._compiled) > COMPILED_SCHEMAS:
                self._compiled.popitem(last=False)
        return compiled

    def stream(
        self,
        schema: Schema,
        contexts: Iterable[object],
        options: CallOptions,
        reconcile: Reconcile = unchanged,
    ) -> Iterator[Outcome]:
        """One outcome per context, in input order: a decision, or that item's error."""
        started = time.perf_counter()
        job = Job(
            schema=schema,
            compiled=self.compile(schema),
            options=options,
            provenance=self.provenance(schema),
            strategy=self.strategy,
            tokenizer=self.backend.tokenizer,
            max_positions=self.backend.capabilities.max_positions,
            budget=self.budget,
            reconcile=reconcile,
        )
        return answer(job, contexts, compile_seconds=time.perf_counter() - started)

    def provenance(self, schema: Schema) -> Provenance:
        model = self.backend.identity
        return Provenance(
            model=model.name,
            revision=model.revision,
            backend=model.backend,
            device=model.device,
            dtype=model.dtype,
            strategy=self.strategy.name,
            layout=self.settings.layout,
            answers=self.settings.answers,
            prompt_version=PROMPT_VERSION,
            schema=schema.fingerprint,
        )


def _strategy(backend: Backend | ClassicBackend, settings: Settings, prefixes: PrefixCache) -> Strategy:
    can = backend.capabilities
    if settings.strategy == "packed" and can.packed and isinstance(backend, Backend):
        return PackedStrategy(backend, prefixes)
    if settings.strategy == "classic" and can.classic and isinstance(backend, ClassicBackend):
        return ClassicStrategy(backend)
    other = "classic" if settings.strategy == "packed" else "packed"
    raise ConfigError(
        f"strategy={settings.strategy!r} can't be run by backend {backend.identity.backend!r}; "
        f"use strategy={other!r} or another backend"
    )
