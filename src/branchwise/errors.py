"""Every error that Branchwise raises on purpose.

    BranchwiseError
     ├─ ConfigError            a setting of a Decider or of a call is not allowed      (also ValueError)
     ├─ SchemaError            a question can't be decided as it is written            (also ValueError)
     ├─ ContextError           one item of the input can't be decided                  (also ValueError)
     │   ├─ ContextTypeError       it is not text, JSON data or chat messages          (also TypeError)
     │   ├─ EmptyContextError      it holds nothing
     │   └─ ContextTooLongError    its longest path does not fit the model
     ├─ PromptError            a tokenizer or chat template can't carry the prompt
     ├─ ModelError             a model can't be had
     │   ├─ ModelNotFoundError     nothing of that name is here, or can be fetched
     │   └─ UnsupportedModelError  its architecture can't be run, and would be silently wrong
     └─ BackendError           a runtime failed
         ├─ BackendUnavailableError  it is not installed, or can't work on this machine
         └─ BackendMemoryError       it ran out of memory; the engine retries with half

A message names the field or the item, says what was wrong, and what to do. Errors of other
libraries are translated where they enter, with ``raise ... from``.
"""

from __future__ import annotations


class BranchwiseError(Exception):
    """Root of the tree above."""


class ConfigError(BranchwiseError, ValueError):
    """A setting of a Decider or of a call is not allowed."""


class SchemaError(BranchwiseError, ValueError):
    """A question can't be decided as it is written.

    ``path`` is the field's dotted path (empty for the document itself), ``problem`` what is wrong
    with it, ``fix`` what to write instead.
    """

    def __init__(self, path: str, problem: str, fix: str) -> None:
        self.path = path
        self.problem = problem
        self.fix = fix
        where = f"field {path!r}" if path else "schema"
        super().__init__(f"{where}: {problem}; {fix}")


class ContextError(BranchwiseError, ValueError):
    """One item of the input can't be decided. ``index`` is its place in the input."""

    def __init__(self, index: int, problem: str) -> None:
        self.index = index
        self.problem = problem
        super().__init__(f"context {index}: {problem}")


class ContextTypeError(ContextError, TypeError):
    """The item is not text, JSON data or chat messages."""


class EmptyContextError(ContextError):
    """The item holds nothing to decide about."""


class ContextTooLongError(ContextError):
    """The item's longest path has ``tokens`` tokens, where ``limit`` are allowed."""

    def __init__(self, index: int, tokens: int, limit: int, limited_by: str) -> None:
        self.tokens = tokens
        self.limit = limit
        self.limited_by = limited_by
        super().__init__(
            index,
            f"its longest path has {tokens} tokens (schema, context and answer together) of at most "
            f"{limit} ({limited_by}); shorten the context or split it",
        )


class PromptError(BranchwiseError):
    """A tokenizer or chat template can't carry the prompt."""


class ModelError(BranchwiseError):
    """A model can't be had."""


class ModelNotFoundError(ModelError):
    """Nothing of that name is on this machine, or can be fetched."""


class UnsupportedModelError(ModelError):
    """The model's architecture can't be run by the chosen backend."""


class BackendError(BranchwiseError):
    """A runtime failed."""


class BackendUnavailableError(BackendError):
    """The runtime is not installed, or can't work on this machine."""


class BackendMemoryError(BackendError):
    """The runtime ran out of memory during a pass."""
