"""`tinygpt eval`: parse, check, load, measure, print."""

from __future__ import annotations

from pathlib import Path

import click

from tinygpt.cli.eval.options import build_options, eval_options
from tinygpt.cli.options import ListsCommand
from tinygpt.cli.output import TextOutput, check_apart, check_writable
from tinygpt.cli.signals import Signals


@click.command(
    "eval",
    cls=ListsCommand,
    epilog="A SPEC is a precision, then key=value: the keys are those of sample's cache options, "
    "for instance group, residual, first_fp, sink, window, positions, max_bytes. What the model "
    "file's header says about its cache is not used here. KL and agreement compare each cache with "
    "the full cache of the same weights.",
)
@click.argument("model", required=False, metavar="MODEL", type=click.Path(path_type=Path))
@eval_options
@click.pass_context
def eval(context: click.Context, /, **_: object) -> int:
    """Measure what a cache of MODEL costs in quality and saves in bytes.

    The table goes to stdout; everything else goes to stderr. Ctrl-C prints what is done.

    \b
    tinygpt eval model.gguf --text novel.txt --tokens 4096 --grid
    tinygpt eval model.gguf --text novel.txt --cache int8 int8,sink=4,window=256 --json out.json
    tinygpt eval model.gguf --greedy 60 --cache int8 int4
    tinygpt eval model.gguf --passkey --lengths 512,1024 --cache full int4,window=256
    """
    from tinygpt.cli.device import use_device  # these bring in MLX, which --help can do without
    from tinygpt.cli.eval.run import EvalRun

    options = build_options(context)
    signals = context.find_object(Signals) or Signals()
    for flag, path in (("--csv", options.csv), ("--json", options.json)):
        if path is not None:
            check_writable(path, flag)
    check_apart({"--csv": options.csv, "--json": options.json}, options.inputs)
    output = TextOutput()
    use_device(options.device)
    return EvalRun(options, signals).go(output)
