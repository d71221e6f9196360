"""`tinygpt bench`: parse, check, load, measure, print."""

from __future__ import annotations

from pathlib import Path

import click

from tinygpt.cli.options import WEIGHTS_DTYPES, ListsCommand, parse_numbers
from tinygpt.cli.output import TextOutput, check_apart, check_writable
from tinygpt.cli.signals import Signals


@click.command(
    "bench",
    cls=ListsCommand,
    epilog="Caches are run alternately and medians are printed; latencies are those of single "
    "tokens, over all repetitions. Prefill is measured up to the first token.",
)
@click.argument("model", required=False, metavar="MODEL", type=click.Path(path_type=Path))
@click.option(
    "--cache",
    multiple=True,
    metavar="SPEC...",
    help="A cache, as in tinygpt eval: int8  int4,window=256.  [default: full int8 int4]",
)
@click.option(
    "--lengths",
    type=parse_numbers(int, "--lengths"),
    default="128,512",
    show_default=True,
    metavar="N,...",
    help="Tokens of the prompt.",
)
@click.option(
    "--tokens",
    type=click.IntRange(2),
    default=64,
    show_default=True,
    metavar="N",
    help="Tokens to decode after it.",
)
@click.option(
    "--repeat", type=click.IntRange(1), default=3, show_default=True, help="Runs of each cache."
)
@click.option(
    "--versus", type=click.Choice(["mlx-lm"]), help="Measure mlx-lm on the same weights too."
)
@click.option("--roofline", is_flag=True, help="Measure the bandwidth, and print what it allows.")
@click.option("--json", type=click.Path(path_type=Path), metavar="FILE", help="Write it there.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the prompt's tokens."
)
@click.option("--device", type=click.Choice(["cpu", "gpu"]), help="Default: MLX's own.")
@click.option(
    "--weights-dtype",
    type=click.Choice(WEIGHTS_DTYPES),
    help="Default: what decodes fastest on the device.",
)
@click.pass_context
def bench(context: click.Context, /, **_: object) -> int:
    """Measure the speed and memory of MODEL by cache and length of the prompt.

    \b
    tinygpt bench model.gguf --cache full int8 int8,window=256 --lengths 128,1024
    tinygpt bench model.gguf --versus mlx-lm --roofline --json bench.json
    """
    from tinygpt.cli.bench.run import BenchRun, build_options  # these bring in MLX
    from tinygpt.cli.device import use_device

    options = build_options(context.params)
    signals = context.find_object(Signals) or Signals()
    if options.json is not None:
        check_writable(options.json, "--json")
        check_apart({"--json": options.json}, [options.model])
    output = TextOutput()
    use_device(options.device)
    return BenchRun(options, signals).go(output)
