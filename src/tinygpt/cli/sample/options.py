"""The options of `tinygpt sample`. The cache's come from its own table: no flag is said twice."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

import click
from click.core import ParameterSource

from tinygpt.cache.spec import FLAGS, Flag
from tinygpt.cli.options import DEMO_MODEL, WEIGHTS_DTYPES
from tinygpt.cli.sample.prompt import PromptSource
from tinygpt.errors import ConfigError
from tinygpt.sampling_options import MAX_SEED, SamplingOptions
from tinygpt.text_stream import check_stop

F = TypeVar("F", bound=Callable[..., object])

DEMO_PROMPT = "The morning was fine, and Miss Elton had"
UNLIMITED = "unlimited"
DEFAULT_TOKENS = 200
SAMPLING = SamplingOptions()


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """One `tinygpt sample` command line, checked as far as it can be without the model.

    `tokens` None is unlimited. `cache` holds the cache flags that were really given.
    """

    model: Path
    source: PromptSource
    sampling: SamplingOptions
    cache: dict[str, object]
    tokens: int | None
    stop: tuple[str, ...]
    ignore_eos: bool
    tokenizer: Path | None
    echo: bool
    use_cache: bool
    quiet: bool
    stats_json: Path | None
    device: str | None
    weights_dtype: str | None


def parse_tokens(text: str) -> int:
    """A number of tokens, or −1 for `unlimited`; a usage error for anything else."""
    if text == UNLIMITED:
        return -1
    if not re.fullmatch("[0-9]{1,18}", text):
        raise click.BadParameter(f"{text!r} is neither a number from 0 on nor '{UNLIMITED}'")
    return int(text)


def _prompt_options() -> list[Callable[[F], F]]:
    existing = click.Path(exists=True, file_okay=False, path_type=Path)
    return [
        click.option("--prompt", metavar="TEXT", help="Text to go on from."),
        click.option("--prompt-file", metavar="FILE", help="The same from a file; - is stdin."),
        click.option(
            "--prompt-ids", metavar="FILE", help="Token ids, a JSON list or numbers; - is stdin."
        ),
        click.option("--chat", is_flag=True, help="Put the prompt into the model's chat template."),
        click.option("--system", metavar="TEXT", help="The system message; needs --chat."),
        click.option(
            "--tokenizer", type=existing, metavar="DIR", help="Use tokenizer.json from there."
        ),
    ]


def _sampling_options() -> list[Callable[[F], F]]:
    def number(flag: str, default: float, text: str, *more: str) -> Callable[[F], F]:
        kind = int if isinstance(default, int) else float
        return click.option(flag, *more, type=kind, default=default, show_default=True, help=text)

    return [
        number("--temperature", SAMPLING.temperature, "Last of the filters; 0 = greedy.", "--temp"),
        number("--top-k", SAMPLING.top_k, "Keep the K most likely tokens; 0 = all."),
        number("--top-p", SAMPLING.top_p, "Keep the likeliest that reach probability P; 1 = all."),
        number("--min-p", SAMPLING.min_p, "Keep tokens at least P times as likely as the first."),
        number(
            "--repetition-penalty",
            SAMPLING.repetition_penalty,
            "Divide the logits of recent tokens (multiply negative ones); 1 = off.",
        ),
        number(
            "--repetition-window",
            SAMPLING.repetition_window,
            "How many tokens are recent, the prompt's included; 0 = off.",
        ),
        click.option(
            "--seed",
            type=click.IntRange(0, MAX_SEED),
            metavar="N",
            help="Repeat a run; without it each run differs and prints its seed.",
        ),
    ]


def _run_options() -> list[Callable[[F], F]]:
    file = click.Path(path_type=Path)
    return [
        click.option(
            "--tokens",
            type=parse_tokens,
            default=str(DEFAULT_TOKENS),
            show_default=True,
            metavar=f"N|{UNLIMITED}",
            help="New tokens at most.",
        ),
        click.option("--stop", multiple=True, metavar="TEXT", help="End before it; repeatable."),
        click.option("--ignore-eos", is_flag=True, help="Go on after the model's end token."),
        click.option("--no-echo", is_flag=True, help="Do not print the prompt first."),
        click.option("--no-cache", is_flag=True, help="Compute all tokens anew for each (slow)."),
        click.option("--quiet", is_flag=True, help="Print no report, no seed and no notes."),
        click.option("--stats-json", type=file, metavar="FILE", help="Write the figures there."),
        click.option("--device", type=click.Choice(["cpu", "gpu"]), help="Default: MLX's own."),
        click.option(
            "--weights-dtype",
            type=click.Choice(WEIGHTS_DTYPES),
            help="Default: what decodes fastest on the device.",
        ),
    ]


def _cache_options() -> list[Callable[[F], F]]:
    return [
        click.option(
            flag.flag,
            _parameter(flag),
            type=flag.parse,
            metavar=flag.metavar,
            help=flag.help + (f"  [default: {flag.default}]" if flag.default is not None else ""),
        )
        for flag in FLAGS
    ]


def _parameter(flag: Flag) -> str:
    return f"cache_{flag.key}"


def sample_options(command: F) -> F:
    """Decorate a click command with every option of `tinygpt sample`, in the order of --help."""
    groups = (_prompt_options(), _sampling_options(), _cache_options(), _run_options())
    for option in reversed([option for group in groups for option in group]):
        command = option(command)
    return command


def build_options(context: click.Context) -> SampleOptions:
    """The checked options of a parsed command line.

    Raises:
        ConfigError: a value out of range, or options that cannot go together.
    """
    values = context.params
    check_stop(values["stop"])
    cache = {flag.key: values[_parameter(flag)] for flag in FLAGS if _given(context, flag)}
    if values["no_cache"] and cache:
        flag = next(flag.flag for flag in FLAGS if flag.key in cache)
        raise ConfigError(f"--no-cache leaves {flag} nothing to act on; leave out one of them")
    return SampleOptions(
        model=values["model"] or DEMO_MODEL,
        source=_pick(PromptSource, values),
        sampling=_pick(SamplingOptions, values),
        cache=cache,
        tokens=None if values["tokens"] < 0 else values["tokens"],
        stop=values["stop"],
        ignore_eos=values["ignore_eos"],
        tokenizer=values["tokenizer"],
        echo=not (values["no_echo"] or values["chat"]),
        use_cache=not values["no_cache"],
        quiet=values["quiet"],
        stats_json=values["stats_json"],
        device=values["device"],
        weights_dtype=values["weights_dtype"],
    )


Options = TypeVar("Options", PromptSource, SamplingOptions)


def _pick(kind: type[Options], values: Mapping[str, object]) -> Options:
    """The dataclass whose fields are named like the command line's parameters."""
    return kind(**{field.name: values[field.name] for field in fields(kind)})  # type: ignore[arg-type]


def _given(context: click.Context, flag: Flag) -> bool:
    return context.get_parameter_source(_parameter(flag)) is ParameterSource.COMMANDLINE
