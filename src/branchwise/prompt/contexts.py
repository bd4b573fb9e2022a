"""Contexts of every accepted type, as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from branchwise.errors import ContextTypeError, EmptyContextError

Context: TypeAlias = str | Mapping[str, Any] | list[Any]

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


def context_text(context: object, index: int) -> str:
    """The text of one context.

    A string is taken as it is. A list whose items are all ``{"role": ..., "content": text}`` is
    a conversation: one ``role: content`` paragraph per message. Any other mapping or list is
    written as JSON, keys in their own order.

    Raises :class:`ContextTypeError` for anything else (bytes too, and text that is no valid
    Unicode), :class:`EmptyContextError` for blank text, ``{}`` and ``[]``.
    """
    if isinstance(context, str):
        text = context
    elif isinstance(context, (Mapping, list, tuple)):
        if not context:
            raise EmptyContextError(index, "is empty; give it text or data to decide about")
        text = _conversation(context) if _is_conversation(context) else _json(context, index)
    else:
        raise ContextTypeError(
            index,
            f"is of type {type(context).__name__}; give a string, a dict or list of JSON data, "
            'or chat messages ({"role": ..., "content": ...})',
        )
    if not text.strip():
        raise EmptyContextError(index, "is empty; give it text or data to decide about")
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise ContextTypeError(
            index, f"holds a lone surrogate at character {exc.start}; give valid Unicode text"
        ) from exc
    return text


def _is_conversation(context: object) -> bool:
    return isinstance(context, (list, tuple)) and all(
        isinstance(message, Mapping)
        and set(message) == {"role", "content"}
        and message["role"] in ROLES
        and isinstance(message["content"], str)
        for message in context
    )


def _conversation(messages: Any) -> str:
    if not any(message["content"].strip() for message in messages):
        return ""
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


def _json(data: object, index: int) -> str:
    try:
        return json.dumps(data, ensure_ascii=False, allow_nan=False, default=_refuse)
    except (TypeError, ValueError, RecursionError) as exc:
        raise ContextTypeError(
            index, f"can't be written as JSON ({exc}); use strings, numbers, lists and dicts"
        ) from exc


def _refuse(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a value is of type {type(value).__name__}")
