"""What a user imports: a Decider."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

from branchwise.backends.base import Backend, ClassicBackend
from branchwise.backends.registry import open_backend
from branchwise.config import (
    DEFAULT_CACHE_BYTES,
    AnswerForm,
    CallOptions,
    LayoutName,
    Settings,
    StrategyName,
    check_choice,
)
from branchwise.engine.engine import Engine
from branchwise.engine.job import Outcome
from branchwise.errors import BranchwiseError, ConfigError
from branchwise.prompt.contexts import Context
from branchwise.results import Decision, FieldResult
from branchwise.schema.build import SchemaSource, schema_from_any
from branchwise.schema.questions import (
    BooleanQuestion,
    ChoiceQuestion,
    Option,
    Question,
    Schema,
    ScoreQuestion,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

ModelT = TypeVar("ModelT", bound="BaseModel")
OnError = Literal["raise", "return"]
Options = Sequence[str] | Mapping[str, str | None]


class Decider:
    """A model that answers typed questions about contexts.

    ``model``: an alias (``branchwise models list``), a Hugging Face id (``org/name`` or
    ``org/name@revision``), a folder with safetensors, a ``.gguf`` file, or a backend object.
    ``backend``, ``device``, ``dtype``: chosen for this machine unless named. ``strategy``:
    ``"packed"`` (one pass over a token tree) or ``"classic"`` (a prefill per context, one pass
    over all rows). ``layout``: ``"shared"`` (all questions before the context) or ``"isolated"``
    (each in a branch of its own, so that none can influence another). ``answers``: ``"labels"``
    (the options' own texts) or ``"codes"`` (a neutral code for each). ``token_budget``: most
    tokens of one group of contexts. ``memory_budget``: most bytes of one group. ``cache_bytes``:
    most bytes of kept schema prefixes. Safe to share between threads.

    Raises :class:`~branchwise.errors.ConfigError` for a setting that does not exist,
    :class:`~branchwise.errors.ModelError` or :class:`~branchwise.errors.BackendError` when the
    model can't be loaded.
    """

    def __init__(  # noqa: PLR0913 - the settings a user can name, all keyword-only
        self,
        model: str | Path | Backend | ClassicBackend = "smollm2-135m",
        *,
        backend: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        strategy: StrategyName = "packed",
        layout: LayoutName = "shared",
        answers: AnswerForm = "labels",
        token_budget: int | None = None,
        memory_budget: int | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        settings = Settings(
            strategy=strategy,
            layout=layout,
            answers=answers,
            token_budget=token_budget,
            memory_budget=memory_budget,
            cache_bytes=DEFAULT_CACHE_BYTES if cache_bytes is None else cache_bytes,
        )
        if isinstance(model, (str, Path)):
            model = open_backend(model, backend=backend, device=device, dtype=dtype)
        elif (backend, device, dtype) != (None, None, None):
            raise ConfigError("backend, device and dtype are set in the backend object that was given")
        self._engine = Engine(model, settings)

    @property
    def backend(self) -> Backend | ClassicBackend:
        """The runtime that holds the model."""
        return self._engine.backend

    @overload
    def decide(
        self, schema: type[ModelT], context: Context, *, temperature: float = ..., legal_mass: bool = ...
    ) -> Decision[ModelT]: ...

    @overload
    def decide(
        self, schema: SchemaSource, context: Context, *, temperature: float = ..., legal_mass: bool = ...
    ) -> Decision[Any]: ...

    def decide(
        self,
        schema: SchemaSource,
        context: Context,
        *,
        temperature: float = 1.0,
        legal_mass: bool = True,
    ) -> Decision[Any]:
        """Answer every question of ``schema`` about ``context``.

        ``schema``: a Pydantic model, a JSON Schema document, our own JSON form, or a Schema.
        ``context``: text, JSON data, or chat messages. ``temperature`` divides log-probabilities
        once, at the end. ``legal_mass=False`` saves the LM head's full vocabulary.

        Raises :class:`~branchwise.errors.SchemaError` for a question that can't be decided and
        :class:`~branchwise.errors.ContextError` for a context that can't.
        """
        options = CallOptions(temperature, legal_mass)
        for outcome in self._engine.stream(schema_from_any(schema), [context], options):
            return _decision(outcome)
        raise AssertionError("a stream over one context gives one outcome")

    @overload
    def decide_many(
        self,
        schema: type[ModelT],
        contexts: Iterable[Context],
        *,
        temperature: float = ...,
        legal_mass: bool = ...,
        on_error: Literal["raise"] = ...,
        progress: bool = ...,
    ) -> Iterator[Decision[ModelT]]: ...

    @overload
    def decide_many(
        self,
        schema: SchemaSource,
        contexts: Iterable[Context],
        *,
        temperature: float = ...,
        legal_mass: bool = ...,
        on_error: Literal["raise"] = ...,
        progress: bool = ...,
    ) -> Iterator[Decision[Any]]: ...

    @overload
    def decide_many(
        self,
        schema: SchemaSource,
        contexts: Iterable[Context],
        *,
        temperature: float = ...,
        legal_mass: bool = ...,
        on_error: Literal["return"],
        progress: bool = ...,
    ) -> Iterator[Outcome]: ...

    def decide_many(
        self,
        schema: SchemaSource,
        contexts: Iterable[Context],
        *,
        temperature: float = 1.0,
        legal_mass: bool = True,
        on_error: OnError = "raise",
        progress: bool = False,
    ) -> Iterator[Outcome] | Iterator[Decision[Any]]:
        """Answer ``schema`` about every context, in input order, as groups finish.

        ``contexts`` may be any iterable, endless ones too: it is read in windows. Identical
        contexts are computed once. ``on_error="raise"`` raises an item's error when its turn
        comes; ``"return"`` puts the error in the item's place, and nobody else's answer is lost.
        ``progress`` shows a bar on standard error. Arguments are checked at once, contexts as
        they are read.
        """
        options = CallOptions(temperature, legal_mass)
        check_choice("on_error", on_error, ("raise", "return"))
        if isinstance(contexts, (str, bytes, Mapping)) or not isinstance(contexts, Iterable):
            raise ConfigError(
                f"contexts is a {type(contexts).__name__}; give a list or another iterable of contexts"
            )
        outcomes = self._engine.stream(schema_from_any(schema), contexts, options)
        if progress:
            from branchwise.progress import with_progress

            outcomes = with_progress(outcomes, len(contexts) if isinstance(contexts, Sequence) else None)
        return outcomes if on_error == "return" else map(_decision, outcomes)

    async def adecide(
        self,
        schema: SchemaSource,
        context: Context,
        *,
        temperature: float = 1.0,
        legal_mass: bool = True,
    ) -> Decision[Any]:
        """:meth:`decide` in a worker thread."""
        import asyncio

        return await asyncio.to_thread(
            self.decide, schema, context, temperature=temperature, legal_mass=legal_mass
        )

    async def adecide_many(
        self,
        schema: SchemaSource,
        contexts: Iterable[Context],
        *,
        temperature: float = 1.0,
        legal_mass: bool = True,
        on_error: OnError = "raise",
    ) -> AsyncIterator[Outcome]:
        """:meth:`decide_many`, each step in a worker thread."""
        import asyncio

        outcomes = iter(
            self.decide_many(
                schema,
                contexts,
                temperature=temperature,
                legal_mass=legal_mass,
                on_error=cast(Any, on_error),
            )
        )
        end = object()
        while True:
            outcome = await asyncio.to_thread(next, outcomes, end)
            if outcome is end:
                return
            yield cast(Outcome, outcome)

    def choose(
        self, context: Context, options: Options, question: str = "Which option fits best?"
    ) -> FieldResult:
        """One of ``options`` (texts, or text → description)."""
        listed = _options(options)
        return self._one(ChoiceQuestion("choice", question, listed), context)

    def judge(self, context: Context, question: str) -> FieldResult:
        """Yes or no."""
        return self._one(BooleanQuestion("judgment", question), context)

    def rate(
        self, context: Context, levels: Options, question: str = "Which level fits best?"
    ) -> FieldResult:
        """A level of ``levels`` (lowest first; texts, or text → description)."""
        return self._one(ScoreQuestion("rating", question, _options(levels)), context)

    def _one(self, question: Question, context: Context) -> FieldResult:
        return self.decide(Schema((question,)), context).fields[question.name]


def _decision(outcome: Outcome) -> Decision[Any]:
    if isinstance(outcome, BranchwiseError):
        raise outcome
    return outcome


def _options(options: Options) -> tuple[Option, ...]:
    if isinstance(options, str):
        raise ConfigError("options is a text; give a list of texts, or a dict of text to description")
    described = options.items() if isinstance(options, Mapping) else ((text, None) for text in options)
    listed = tuple(Option(text, text, description) for text, description in described)
    if len(listed) < 2:
        raise ConfigError(f"{len(listed)} options were given; give at least 2")
    return listed
