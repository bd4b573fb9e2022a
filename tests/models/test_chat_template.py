"""Chat templates against transformers' apply_chat_template, which is the oracle."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from branchwise.errors import PromptError
from branchwise.models.chat_template import (
    TODAY,
    ChatTemplate,
    load_chat_template,
    special_token_variables,
)

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, "
    "trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN3_LIKE = """
{%- if tools %}
    {{- tools | tojson }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == "user" and ns.last == messages|length - 1 %}
        {%- set ns.last = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
LLAMA3_LIKE = """
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date_string + "\\n\\n" }}
{{- system_message }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim }}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
GEMMA_LIKE = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}"
    "{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
MISTRAL_LIKE = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported") }}
    {%- endif %}
{%- endfor %}
"""
SMOLLM3_LIKE = """
{%- set today = strftime_now("%d %B %Y") -%}
{%- for message in messages -%}
  {%- if message.role == "tool" -%}{%- continue -%}{%- endif -%}
  {%- if message.role == "assistant" -%}
    {% generation %}{{ message.content + eos_token }}{% endgeneration %}
  {%- else -%}
    {{ "<|im_start|>" + message.role + "\\n" + today + message.content }}
  {%- endif %}
{% endfor %}
Steps:
    {% if messages %}
  one
    {% endif %}
{{ {"e": "é<b>", "n": 1} | tojson }} {{ [1, 2] | tojson(indent=2) }}
"""
TEMPLATES = {
    "smollm2": SMOLLM2,
    "qwen3": QWEN3_LIKE,
    "llama3": LLAMA3_LIKE,
    "gemma": GEMMA_LIKE,
    "mistral": MISTRAL_LIKE,
    "smollm3": SMOLLM3_LIKE,
}
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}
USER = {"role": "user", "content": " Is it <b>fine</b>?\n"}
CONVERSATIONS = {
    "user": [USER],
    "system": [{"role": "system", "content": "Decide."}, USER],
    "turns": [USER, {"role": "assistant", "content": "Yes"}, {"role": "user", "content": "And é?"}],
}


class _FixedClock(datetime):
    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        return TODAY


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_rendering_is_that_of_transformers(
    name: str, conversation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    from jinja2 import TemplateError

    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", _FixedClock)
    library = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), chat_template=TEMPLATES[name], **SPECIALS
    )
    template = ChatTemplate(TEMPLATES[name], SPECIALS)
    messages = CONVERSATIONS[conversation]
    try:
        wanted = library.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
    except TemplateError as error:
        with pytest.raises(PromptError, match=str(error)):
            template.render(messages)
    else:
        assert template.render(messages) == wanted


def test_gemma_refuses_a_system_message_in_its_own_words() -> None:
    with pytest.raises(PromptError, match="System role not supported"):
        ChatTemplate(GEMMA_LIKE, SPECIALS).render(CONVERSATIONS["system"])


def test_thinking_is_off() -> None:
    assert ChatTemplate(QWEN3_LIKE, {}).render([USER]).endswith("<think>\n\n</think>\n\n")


def test_the_date_never_changes() -> None:
    assert ChatTemplate("{{ strftime_now('%Y-%m-%d') }}", {}).render([]) == "2024-07-26"


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{{ messages + 1 }}",
        "{{ 1 // 0 }}",
        "{{ messages[0].content.nothing() }}",
        "{{ 'x' | nofilter }}",
    ],
)
def test_a_broken_template_is_a_prompt_error(source: str) -> None:
    with pytest.raises(PromptError, match="can't render"):
        ChatTemplate(source, {}).render([USER])


@pytest.mark.parametrize(
    "source", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ messages.__class__() }}"]
)
def test_a_template_stays_in_its_sandbox(source: str) -> None:
    with pytest.raises(PromptError):
        ChatTemplate(source, {}).render([USER])


def test_the_jinja_file_comes_before_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("file", encoding="utf-8")
    found = load_chat_template(tmp_path, {"chat_template": "configuration"})
    assert found is not None and found.source == "file"


def test_of_named_templates_the_default_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    found = load_chat_template(tmp_path, {"chat_template": named})
    assert found is not None and found.source == "plain"
    assert load_chat_template(tmp_path, {"chat_template": named[:1]}) is None
    assert load_chat_template(tmp_path, {}) is None


def test_special_tokens_of_the_configuration_come_before_the_older_file(tmp_path: Path) -> None:
    older = {"bos_token": {"content": "<old>"}, "eos_token": "</old>", "pad_token": "<pad>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(older), encoding="utf-8")
    found = special_token_variables(tmp_path, {"eos_token": {"content": "</new>"}, "pad_token": None})
    assert found == {"bos_token": "<old>", "eos_token": "</new>"}
