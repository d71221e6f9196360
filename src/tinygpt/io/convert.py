"""Any checkpoint into one self-contained `.tinygpt` file; what can be refused is, beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import mlx.core as mx

from tinygpt import __version__
from tinygpt.errors import ConfigError
from tinygpt.io.checkpoint import FLOAT_DTYPES, PACKED, Checkpoint, shown
from tinygpt.io.tinygpt.tokenizer import tokenizer_to_json
from tinygpt.io.tinygpt.write import Description, write_tinygpt
from tinygpt.tokenizer import ByteTokenizer, Tokenizer

DTYPES = (*FLOAT_DTYPES, PACKED)
# Header keys of the source that describe its body, or that the writer sets itself.
_OWN_KEYS = {
    "config",
    "weightDtype",
    "includesOptimizerState",
    "tokenizerSource",
    "step",
    "int4BlockSize",
    "int4ScalesBytes",
    "int4PackedBytes",
}
_GGUF_KEYS = ("general.name", "general.license", "general.url", "general.author")

Report = Callable[[int], None]  # takes the number of tensors that are done


def convert_to_tinygpt(
    source: Checkpoint,
    target: Path,
    tokenizer: Tokenizer,
    *,
    dtype: str | None = None,
    report: Report | None = None,
) -> None:
    """Write `source` with its `tokenizer` to `target`, whole or not at all.

    `dtype` is "fp32", "fp16", "bf16" or "packed"; None is the source's own. The peak in memory is
    one tensor. `report` is called after each.

    Raises:
        CheckpointError: a tensor that is not finite, by its name.
        ConfigError: a dtype that the source cannot give.
        OSError: `target` cannot be written.
    """
    chosen = check_dtype(source, dtype)
    described = Description(
        source.config,
        chosen,
        tokenizer_to_json(tokenizer),
        extra=_further_keys(source),
        extra_config=_further_config(source, tokenizer),
    )
    write_tinygpt(target, described, _counted(source.iter_weights(chosen), report))


def check_dtype(source: Checkpoint, dtype: str | None) -> str:
    """The dtype to write, the source's own for None.

    Raises:
        ConfigError: it does not exist, or the source has no packed tensors.
    """
    chosen = dtype or source.stored_dtype
    if chosen not in DTYPES:
        raise ConfigError(f"dtype {shown(chosen)} does not exist; use one of {', '.join(DTYPES)}")
    if chosen == PACKED and source.stored_dtype != PACKED:
        raise ConfigError(
            f"dtype 'packed' needs a source with packed tensors, {source.path} has "
            f"{source.stored_dtype}; use fp32, fp16 or bf16"
        )
    return chosen


def _counted(
    parts: Iterator[dict[str, mx.array]], report: Report | None
) -> Iterator[dict[str, mx.array]]:
    for done, part in enumerate(parts, 1):
        yield part
        if report is not None:
            report(done)


def _further_keys(source: Checkpoint) -> dict[str, object]:
    """What the source says that is neither configuration nor layout, and who wrote this."""
    said = source.metadata
    if source.kind == "tinygpt":
        kept = {key: value for key, value in said.items() if key not in _OWN_KEYS}
    else:
        kept = {key: said[key] for key in _GGUF_KEYS if isinstance(said.get(key), str)}
    return {**kept, "convertedBy": f"tinygpt {__version__}"}


def _further_config(source: Checkpoint, tokenizer: Tokenizer) -> dict[str, object]:
    """Recommended cache settings, and for old readers where the tokenizer was."""
    further: dict[str, object] = dict(source.cache_hints)
    directory = source.metadata.get("tokenizerSource")
    if isinstance(directory, str) and not isinstance(tokenizer, ByteTokenizer):
        further["tokenizerSource"] = directory
    return further
