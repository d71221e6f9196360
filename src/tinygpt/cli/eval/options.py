"""The options of `tinygpt eval`, checked as far as they can be without the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

import click

from tinygpt.cli.options import WEIGHTS_DTYPES, check_model, parse_numbers
from tinygpt.cli.reading import STDIN
from tinygpt.errors import ConfigError

F = TypeVar("F", bound=Callable[..., object])

DEPTHS = "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9"
CHUNK = 256
# What has a meaning with another option alone.
NEEDS = {
    "text": ("csv", "tokens", "versus", "prefill_chunk", "batch"),
    "greedy": ("prompts",),
    "passkey": ("lengths", "depths", "trials", "seed"),
}


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """One `tinygpt eval` command line. Lengths are tokens, depths shares of a text."""

    model: Path
    text: tuple[str, ...]
    cache: tuple[str, ...]
    grid: bool
    tokens: int | None
    greedy: int | None
    prompts: Path | None
    passkey: bool
    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    trials: int
    seed: int
    prefill_chunk: int
    batch: int
    versus: str | None
    csv: Path | None
    json: Path | None
    resume: bool
    tokenizer: Path | None
    device: str | None
    weights_dtype: str | None

    def __post_init__(self) -> None:
        if not (self.text or self.greedy or self.passkey):
            raise ConfigError(
                "there is nothing to measure; give --text FILE (perplexity and KL), --greedy N, "
                "or --passkey"
            )
        if self.resume and self.json is None:
            raise ConfigError("--resume goes on from a JSON file; name it with --json FILE")
        given = [*self.text, *([] if self.prompts is None else [str(self.prompts)])]
        if given.count(STDIN) > 1:
            raise ConfigError(f"stdin ({STDIN}) is given {given.count(STDIN)} times; give it once")

    @property
    def inputs(self) -> list[Path]:
        """Every file that is read."""
        files = [self.model, *map(Path, self.text)]
        return files if self.prompts is None else [*files, self.prompts]


def eval_options(command: F) -> F:
    """Decorate a click command with every option of `tinygpt eval`, in the order of --help."""
    for option in reversed([*_what(), *_how(), *_where()]):
        command = option(command)
    return command


def _what() -> list[Callable[[F], F]]:
    return [
        click.option("--text", multiple=True, metavar="FILE...", help="Score it; - is stdin."),
        click.option(
            "--cache",
            multiple=True,
            metavar="SPEC...",
            help="A cache: int8  int4,group=64  int8,sink=4,window=256.  [default: full]",
        ),
        click.option("--grid", is_flag=True, help="Add a set of caches that answers most."),
        click.option(
            "--tokens", type=click.IntRange(1), metavar="N", help="Only N tokens of each text."
        ),
        click.option(
            "--greedy",
            type=click.IntRange(1),
            metavar="N",
            help="How many of N greedy tokens are the full cache's.",
        ),
        click.option(
            "--prompts",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Prompts for --greedy, one a line.  [default: four built-in ones]",
        ),
        click.option("--passkey", is_flag=True, help="Find a key that is buried in a long text."),
        click.option(
            "--lengths",
            type=parse_numbers(int, "--lengths"),
            default="512,1024",
            show_default=True,
            metavar="N,...",
            help="Tokens of the texts of --passkey.",
        ),
        click.option(
            "--depths",
            type=parse_numbers(float, "--depths"),
            default=DEPTHS,
            show_default=True,
            metavar="D,...",
            help="Where in the text the key lies, from 0 to 1.",
        ),
        click.option(
            "--trials",
            type=click.IntRange(1),
            default=1,
            show_default=True,
            help="Keys for each depth and length.",
        ),
        click.option("--seed", type=int, default=0, show_default=True, help="Of keys and filler."),
    ]


def _how() -> list[Callable[[F], F]]:
    return [
        click.option(
            "--prefill-chunk",
            type=click.IntRange(1),
            default=CHUNK,
            show_default=True,
            metavar="N",
            help="Tokens computed at a time; it changes memory and speed, not the figures.",
        ),
        click.option(
            "--batch",
            type=click.IntRange(1),
            default=1,
            show_default=True,
            metavar="N",
            help="Texts computed in step.",
        ),
        click.option(
            "--versus",
            type=click.Choice(["mlx-lm"]),
            help="Score mlx-lm's own caches of the same bits or window too, on the same weights.",
        ),
        click.option("--device", type=click.Choice(["cpu", "gpu"]), help="Default: MLX's own."),
        click.option(
            "--weights-dtype",
            type=click.Choice(WEIGHTS_DTYPES),
            help="Default: what decodes fastest on the device.",
        ),
        click.option(
            "--tokenizer",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            metavar="DIR",
            help="Use tokenizer.json from there.",
        ),
    ]


def _where() -> list[Callable[[F], F]]:
    file = click.Path(path_type=Path)
    return [
        click.option("--csv", type=file, metavar="FILE", help="Write the table there too."),
        click.option("--json", type=file, metavar="FILE", help="Write everything there."),
        click.option(
            "--resume", is_flag=True, help="Go on from --json: measure only what is not in it."
        ),
    ]


def build_options(context: click.Context) -> EvalOptions:
    """The checked options of a parsed command line.

    Raises:
        ConfigError: no model, nothing to measure, or options that cannot go together.
    """
    values = context.params
    check_model(values["model"], "tinygpt eval model.tinygpt --text FILE")
    options = EvalOptions(**{field.name: values[field.name] for field in fields(EvalOptions)})
    for needed, names in NEEDS.items():
        if not values[needed]:
            _refuse_idle(context, names, needed)
    return options


def _refuse_idle(context: click.Context, names: tuple[str, ...], needed: str) -> None:
    """Raise ConfigError if one of the options `names`, which would do nothing, was given."""
    for name in names:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(
                f"{flag} has no meaning without --{needed}; add --{needed}, or leave {flag} out"
            )
