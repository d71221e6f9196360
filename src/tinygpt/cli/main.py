"""The `tinygpt` command: finds the subcommand, turns every failure into one line and a status.

Status 0: done, also when the reader of stdout has gone; 1: it failed while running; 2: the request
or the model was refused; 130 and 143: interrupted. Subcommands are imported when they are used.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import click

from tinygpt import __version__
from tinygpt.blas import preload
from tinygpt.cli.output import OutputError, note, silence_stdout
from tinygpt.cli.signals import Interrupted, Signals
from tinygpt.errors import GenerationError, TinyGPTError

FAILED, REFUSED = 1, 2
BOUNDED = "--kv-quantize int8 --streaming-llm-window 1024"

COMMANDS = {  # name: the module below cli that has a command of that name, its line in --help
    "attention": ("attention", "Draw where a model looks, and what a cache keeps."),
    "bench": ("bench.command", "Measure speed and memory by cache and length of the prompt."),
    "convert": ("convert", "Write any model as one .tinygpt file, or for others."),
    "eval": ("eval.command", "Measure what a cache costs in quality and saves in bytes."),
    "inspect": ("inspect", "Show what is in a model file and what its cache costs."),
    "plot": ("plot", "Draw what eval and bench have measured."),
    "sample": ("sample.command", "Generate text, for as long as asked, in bounded memory."),
}


class LazyGroup(click.Group):
    """A group that imports a subcommand's module only when that subcommand is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        preload()  # before the module brings in MLX
        module = importlib.import_module(f"tinygpt.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}; use one of {', '.join(COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tinygpt")
def cli() -> None:
    """Long generations with a KV cache that is quantised and bounded at once.

    \b
    tinygpt sample model.tinygpt --prompt "Once upon a time" --tokens 500
    tinygpt sample model.gguf --kv-quantize int8 --streaming-llm-window 256 --tokens unlimited
    tinygpt inspect model.gguf
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status; `arguments` default to the process's."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    with Signals() as signals:
        status = run(given or ["--help"], signals)
    sys.exit(status)


def run(arguments: Sequence[str], signals: Signals) -> int:
    """The status of one command line. Whatever a user can cause is one line on stderr."""
    try:
        return _invoke(arguments, signals)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "tinygpt"
        return _fail(f"{error.format_message()} (see '{path} --help')", REFUSED)
    except (GenerationError, OutputError) as error:
        return _fail(str(error), FAILED)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        return _fail(f"out of memory; a bounded cache takes less: {BOUNDED}", FAILED)
    except TinyGPTError as error:
        return _fail(str(error), REFUSED)
    except Interrupted as error:
        return error.status
    except BrokenPipeError:
        silence_stdout()
        return 0
    except OSError as error:  # a full disk under --help, for instance
        silence_stdout()
        return _fail(error.strerror or str(error), FAILED)


def _invoke(arguments: Sequence[str], signals: Signals) -> int:
    """Run the command without click's own error handling, which exits 1 for `| head`."""
    try:
        with cli.make_context("tinygpt", list(arguments), obj=signals) as context:
            result = cli.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    return result if isinstance(result, int) else 0


def _is_out_of_memory(error: Exception) -> bool:
    """MLX has no exception of its own for this, only a message."""
    return isinstance(error, MemoryError) or "allocate" in str(error)


def _fail(message: str, status: int) -> int:
    note("tinygpt: error: " + " ".join(message.split()))
    return status
