"""`tinygpt attention`: pictures of where a model looks, and what a bounded cache keeps of it."""

from __future__ import annotations

from pathlib import Path

import click

from tinygpt.cli.output import TextOutput, check_apart, check_writable, note, write_json
from tinygpt.cli.pictures import out_directory, save_picture
from tinygpt.errors import ConfigError


@click.command("attention")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--text", required=True, metavar="FILE", help="What the model reads; - is stdin.")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Write the pictures there.  [default: here]",
)
@click.option(
    "--tokens",
    type=click.IntRange(2, 2048),
    default=256,
    show_default=True,
    metavar="N",
    help="Read the first N tokens.",
)
@click.option("--layer", type=click.IntRange(0), default=0, show_default=True, help="To draw.")
@click.option(
    "--sink", "sinks", type=click.IntRange(0), default=4, show_default=True, help="First tokens."
)
@click.option(
    "--window", type=click.IntRange(1), default=64, show_default=True, help="Last tokens."
)
@click.option("--format", "ending", type=click.Choice(["png", "svg", "pdf"]), default="png")
@click.option("--json", type=click.Path(path_type=Path), metavar="FILE", help="Write the shares.")
def attention(
    model: Path,
    text: str,
    out: Path,
    tokens: int,
    layer: int,
    sinks: int,
    window: int,
    ending: str,
    json: Path | None,
) -> int:
    """Draw where MODEL looks while it reads a text. Needs matplotlib.

    One picture shows the share of attention on the sinks by layer and head; the other the map of
    one layer, and what a cache of --sink and --window drops of it.

    \b
    tinygpt attention model.gguf --text chapter.txt --layer 12 --window 64 -o pictures
    """
    from tinygpt.cli.reading import decode_utf8, read_file
    from tinygpt.evaluate.attention import kept, watch  # these bring in MLX
    from tinygpt.io.load import load_model, open_checkpoint
    from tinygpt.plot.attention import kept_map, sink_mass
    from tinygpt.plot.canvas import check_matplotlib

    check_matplotlib()
    if json is not None:
        check_writable(json, "--json")
        check_apart({"--json": json}, [model, Path(text)])
    checkpoint = open_checkpoint(model)
    config = checkpoint.config
    if layer >= config.layers:
        raise ConfigError(f"--layer {layer}: this model has layers 0 to {config.layers - 1}")
    words = decode_utf8(read_file(text, "--text"), text)
    ids = checkpoint.read_tokenizer(None).encode(words)[: min(tokens, config.context)]
    if config.context < tokens and len(ids) == config.context:
        note(f"{text}: read up to the model's context of {config.context} tokens")
    if len(ids) < 2:
        raise ConfigError(f"--text {text} has {len(ids)} token(s); attention needs two at least")
    out_directory(out)
    maps = watch(load_model(checkpoint, "fp32"), ids, sinks, layer)
    share = float((maps.weights * kept(len(ids), sinks, window)).sum() / len(ids))
    output = TextOutput()
    for name, figure in (
        ("sinks", sink_mass(maps.sink_mass, sinks)),
        (f"layer{layer}", kept_map(maps.weights, layer, sinks, window, share)),
    ):
        target = out / f"{model.stem}_{name}.{ending}"
        save_picture(figure, target)
        output.write(f"{target}\n")
    by_layer = " ".join(f"{mass:.1%}" for mass in maps.sink_mass.mean(axis=1))
    output.write(f"attention on {sinks} sinks: {maps.sink_mass.mean():.1%}, by layer {by_layer}\n")
    output.write(f"layer {layer}: {sinks} + {window} keeps {share:.1%} of the attention\n")
    if json is not None:
        shares = {"sink_mass": maps.sink_mass.tolist(), "layer": layer, "kept": share}
        asked = {"model": model.name, "text": Path(text).name, "tokens": len(ids)}
        write_json(json, asked | {"sinks": sinks, "window": window} | shares)
    return 0
