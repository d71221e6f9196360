"""A chat template renders as Hugging Face's does, or fails in one line."""

from __future__ import annotations

import re

import pytest
import tokenizers
from tokenizers import decoders, models

from tinygpt.chat import render_chat
from tinygpt.errors import ConfigError
from tinygpt.tokenizer import ByteTokenizer, HFTokenizer, TokenizerOptions

CHATML = """{% for message in messages %}
<|im_start|>{{ message['role'] }}
{{ message.content }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""


def model(template: str | None, **tokens: str) -> ByteTokenizer:
    return ByteTokenizer(chat_template=template, **tokens)


def test_blocks_take_their_own_line_with_them() -> None:
    assert render_chat(model(CHATML), None, "Hi") == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_system_message_comes_first() -> None:
    assert render_chat(model(CHATML), "Be brief.", "Hi").startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n"
    )


def test_an_empty_system_message_is_still_one() -> None:
    assert render_chat(model("{{ messages | length }}"), "", "Hi") == "2"


def test_text_is_not_escaped() -> None:
    assert render_chat(model("{{ messages[0].content }}"), None, "<a & 'b'>") == "<a & 'b'>"
    assert render_chat(model("{{ messages[0] | tojson }}"), None, "<ß>") == (
        '{"role": "user", "content": "<ß>"}'
    )


def test_the_special_tokens_are_texts_or_empty() -> None:
    template = "[{{ bos_token }}|{{ eos_token }}]"
    assert render_chat(model(template, bos_token="<s>", eos_token="</s>"), None, "") == "[<s>|</s>]"
    assert render_chat(model(template), None, "") == "[|]"


def test_loop_controls_and_the_date_are_there() -> None:
    template = "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert render_chat(model(template), None, "") == "01"
    assert re.fullmatch(r"\d{4}", render_chat(model("{{ strftime_now('%Y') }}"), None, ""))


FAILURES = {
    "syntax": ("{% for %}", "TemplateSyntaxError"),
    "raised": ("{{ raise_exception('roles must\nalternate') }}", "roles must alternate"),
    "type": ("{{ 1 + 'a' }}", "TypeError"),
    "division": ("{{ 1 / 0 }}", "ZeroDivisionError"),
    "undefined attribute": ("{{ nothing.here }}", "UndefinedError"),
    "escape": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
    "changing its input": ("{{ messages.append(1) }}", "SecurityError"),
    "an endless range": ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
    "recursion": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
    "unknown filter": ("{{ 1 | nope }}", "nope"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_template_that_fails_says_why_in_one_line(case: str) -> None:
    template, named = FAILURES[case]
    with pytest.raises(ConfigError) as caught:
        render_chat(model(template), None, "Hi")
    message = str(caught.value)
    assert named in message
    assert "--chat" in message
    assert "\n" not in message


@pytest.mark.parametrize("start", ["{{ bos_token }}", "<s>", ""])
def test_a_rendered_chat_begins_with_exactly_one_bos(start: str) -> None:
    inner = tokenizers.Tokenizer(models.BPE({"<s>": 0, "a": 1, "b": 2}, []))
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<s>"])
    template = start + "{{ messages[0].content }}"
    for add_bos in (True, False):
        options = TokenizerOptions(bos_id=0, add_bos=add_bos, chat_template=template)
        tokenizer = HFTokenizer(inner, options)
        ids = tokenizer.encode(render_chat(tokenizer, None, "ab"))
        assert ids == ([0, 1, 2] if start or add_bos else [1, 2])


def test_a_model_without_a_template_says_so() -> None:
    with pytest.raises(ConfigError, match=r"no chat template.*--chat"):
        render_chat(model(None), None, "Hi")
