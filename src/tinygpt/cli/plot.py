"""`tinygpt plot`: pictures of what `eval` and `bench` have written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

from tinygpt.cli.output import TextOutput
from tinygpt.cli.pictures import out_directory, save_picture
from tinygpt.errors import ConfigError
from tinygpt.plot.canvas import FORMATS, check_matplotlib
from tinygpt.plot.results import PICTURES


@click.command("plot")
@click.argument("results", nargs=-1, metavar="RESULT.json...", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Write the pictures there.  [default: here]",
)
@click.option("--format", "ending", type=click.Choice(FORMATS), default="png", show_default=True)
def plot(results: tuple[Path, ...], out: Path, ending: str) -> int:
    """Draw what the JSON files of `tinygpt eval` and `tinygpt bench` hold.

    Perplexity against bytes per token, perplexity by position, latency by context length, and
    passkeys over depth and length, each where a file has figures for it. Needs matplotlib.

    \b
    tinygpt plot out.json bench.json -o pictures
    """
    if not results:
        raise ConfigError("no RESULT.json given; name what tinygpt eval --json FILE has written")
    contents = {path: read_result(path) for path in results}
    stems = [path.stem for path in contents]
    twice = next((stem for stem in stems if stems.count(stem) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"two files are called {twice}, and so would their pictures be; plot "
            "them one at a time, with another --out"
        )
    check_matplotlib()
    out_directory(out)
    output = TextOutput()
    for path, content in contents.items():
        drawn = _drawn(path, content)
        if not any(drawn.values()):
            raise ConfigError(f"{path} has nothing to draw; it needs results, bench or passkey")
        for name, figure in drawn.items():
            if figure is not None:
                target = out / f"{path.stem}_{name}.{ending}"
                save_picture(figure, target)
                output.write(f"{target}\n")
    return 0


def _drawn(path: Path, content: Mapping[str, object]) -> dict[str, object]:
    try:
        return {name: draw(content) for name, draw in PICTURES.items()}
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise ConfigError(
            f"{path}: is no result of tinygpt eval or bench ({type(error).__name__}: {error})"
        ) from error


def read_result(path: Path) -> Mapping[str, object]:
    """The object in a JSON file; ConfigError if it is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not JSON"
        raise ConfigError(
            f"{path}: {reason}; name what tinygpt eval or bench --json has written"
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path}: is no JSON object; name what tinygpt eval or bench --json has written"
        )
    return content
