"""`tinygpt convert`: any model that we read into one file, or into a Hugging Face directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from tinygpt.cli.output import check_writable, files_of, note, writing
from tinygpt.cli.progress import stderr_is_terminal
from tinygpt.errors import ConfigError
from tinygpt.io.convert import DTYPES, check_dtype, convert_to_tinygpt
from tinygpt.io.huggingface.export import export_dtype, export_hf
from tinygpt.io.load import open_checkpoint
from tinygpt.units import size

TINYGPT, HF = "tinygpt", "hf"
_OTHERS = (".gguf", ".safetensors", ".bin", ".pt")  # what would be misleading as a name


@click.command("convert")
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.argument("target", metavar="DST", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "form",
    type=click.Choice([TINYGPT, HF]),
    default=TINYGPT,
    show_default=True,
    help="One .tinygpt file, or a directory of safetensors and JSON for other programs.",
)
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    help="Of the weights; default: the source's (with --to hf fp16 for packed ones).",
)
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Use tokenizer.json from there.",
)
@click.option("--force", is_flag=True, help="Replace DST if it is there already.")
def convert(
    source: Path, target: Path, form: str, dtype: str | None, tokenizer: Path | None, force: bool
) -> None:
    """Write the model SRC, its tokenizer included, to DST.

    DST appears whole or not at all, and weights that are not finite are refused.

    \b
    tinygpt convert model.gguf model.tinygpt
    tinygpt convert huggingface-directory model.tinygpt --dtype fp16
    tinygpt convert model.tinygpt directory --to hf
    """
    check_target(source, target, form, force)
    checkpoint = open_checkpoint(source)
    chosen = (export_dtype if form == HF else check_dtype)(checkpoint, dtype)
    words = checkpoint.read_tokenizer(tokenizer)
    with _progress(len(checkpoint.tensors)) as report, writing(target):
        if form == HF:
            export_hf(checkpoint, target, words, dtype=chosen, report=report)
        else:
            convert_to_tinygpt(checkpoint, target, words, dtype=chosen, report=report)
    note(f"wrote {target}: {chosen}, {size(_bytes_of(target))}")


def check_target(source: Path, target: Path, form: str, force: bool) -> None:
    """Refuse a DST that must not or cannot be written.

    Raises:
        ConfigError: it is SRC, exists without --force, or is of the wrong kind.
    """
    if target.exists() and source.exists() and os.path.samefile(source, target):
        raise ConfigError(f"DST {target} is SRC itself; give another name")
    if form == HF:
        if target.exists() and not (target.is_dir() and not any(target.iterdir())):
            raise ConfigError(f"DST {target} is there already; --to hf makes a new directory")
        check_writable(target.resolve().parent / "new", "DST")
        return
    if target.suffix.lower() in _OTHERS:
        raise ConfigError(f"DST {target}: convert writes .tinygpt files; use that ending")
    check_writable(target, "DST")
    if target.exists() and not target.is_file():
        raise ConfigError(f"DST {target} is not a regular file; give the name of a file")
    if target.exists() and not force:
        raise ConfigError(f"DST {target} is there already; --force replaces it")


@contextmanager
def _progress(tensors: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, and what moves it to a number of tensors."""
    if not stderr_is_terminal():
        yield lambda done: None
        return
    from tqdm import tqdm

    with tqdm(total=tensors, desc="convert", unit=" tensors", leave=False) as bar:
        yield lambda done: bar.update(done - bar.n)


def _bytes_of(path: Path) -> int:
    return sum(file.stat().st_size for file in files_of(path))
