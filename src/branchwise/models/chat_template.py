"""A model's chat template, rendered as the transformers library renders it, without loading that.

A template is code from a stranger: it runs in Jinja's sandbox and sees plain data only.
``strftime_now`` is told a fixed date, because the same input must give the same prompt on any day;
the date is the one that Llama's own templates fall back to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from branchwise.errors import PromptError

if TYPE_CHECKING:
    import jinja2

TODAY = datetime(2024, 7, 26)

# what the expressions of a template may raise; its own refusals are jinja2.TemplateError
_EXPRESSION_ERRORS = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)


class ChatTemplate:
    """``source`` with the special tokens it may name (``bos_token`` and so on)."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        self.source = source
        self._variables = dict(variables)

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Text of ``messages`` and of the generation prompt, with thinking off where there is a switch.

        Raises :class:`PromptError` when the template refuses the messages, or can't be read.
        """
        from jinja2 import TemplateError

        try:
            return self._compiled.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                enable_thinking=False,
                **self._variables,
            )
        except (TemplateError, *_EXPRESSION_ERRORS) as error:
            raise PromptError(f"the model's chat template can't render the messages: {error}") from error

    @cached_property
    def _compiled(self) -> jinja2.Template:
        from jinja2 import nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.parser import Parser
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        class GenerationTag(Extension):
            """``{% generation %}`` marks an assistant's words for training; here it only groups."""

            tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

            def parse(self, parser: Parser) -> nodes.Node:
                line = next(parser.stream).lineno
                body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
                return nodes.Scope(body, lineno=line)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = TODAY.strftime
        return environment.from_string(self.source)


def load_chat_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> ChatTemplate | None:
    """The template of a model folder, or None.

    ``chat_template.jinja`` comes before the configuration's ``chat_template``, which may be a list
    of named ones; of these the one named "default" is taken.
    """
    file = folder / "chat_template.jinja"
    source = file.read_text(encoding="utf-8") if file.is_file() else tokenizer_config.get("chat_template")
    if isinstance(source, list):
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    if not source:
        return None
    return ChatTemplate(source, special_token_variables(folder, tokenizer_config))


def special_token_variables(folder: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """``bos_token``, ``eos_token`` and so on, by name; a token that is not set is left out."""
    file = folder / "special_tokens_map.json"
    older = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    found = {}
    for name in ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"):
        value = tokenizer_config[name] if name in tokenizer_config else older.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[name] = value
    return found


def _refuse(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
