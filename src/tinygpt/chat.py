"""One user turn, dressed by the model's own chat template, as Hugging Face renders it.

The template comes out of the model file, so it runs in Jinja's sandbox with immutable inputs.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tinygpt.errors import ConfigError
from tinygpt.tokenizer import Tokenizer


def render_chat(tokenizer: Tokenizer, system: str | None, user: str) -> str:
    """The prompt text for one turn, up to where the assistant begins to speak.

    Encode it with `encode`, which adds a BOS only where the template has not written one.

    Raises:
        ConfigError: the model has no template, or the template fails.
    """
    if tokenizer.chat_template is None:
        raise ConfigError("this model has no chat template; leave out --chat and --system")
    messages = [{"role": "user", "content": user}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    try:
        return (
            _environment()
            .from_string(tokenizer.chat_template)
            .render(
                messages=messages,
                add_generation_prompt=True,
                bos_token=tokenizer.bos_token or "",
                eos_token=tokenizer.eos_token or "",
            )
        )
    except Exception as error:  # a template can raise anything, TypeError and RecursionError too
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"the model's chat template failed ({reason}); leave out --chat to prompt without it"
        ) from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.filters["tojson"] = _to_json
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: object, indent: int | None = None) -> str:
    """JSON without Jinja's HTML escapes, which would reach the model as text."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
