"""From a checked `tinygpt eval` command line to a model, caches and texts; refusals come early."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from tinygpt.cache import CacheSpec
from tinygpt.cli.caches import read_caches
from tinygpt.cli.eval.options import EvalOptions
from tinygpt.cli.output import Say, files_of
from tinygpt.cli.reading import decode_utf8, read_file
from tinygpt.errors import ConfigError
from tinygpt.evaluate.greedy import PROMPTS
from tinygpt.evaluate.quality import Text
from tinygpt.io.load import layout_of, load_model, open_checkpoint
from tinygpt.models.transformer import Transformer, check_ids
from tinygpt.tokenizer import Tokenizer

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class NamedText:
    """A text as it was given, limited to `--tokens`."""

    name: str
    digest: str
    text: Text


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything an evaluation needs, loaded."""

    model: Transformer
    tokenizer: Tokenizer
    caches: dict[str, CacheSpec]
    texts: tuple[NamedText, ...]
    prompts: tuple[str, ...]


def open_inputs(options: EvalOptions, say: Say) -> Inputs:
    """Check the request against the file's header, then load the weights.

    Raises:
        TinyGPTError: the file, a text, a prompt or a cache is refused.
    """
    checkpoint = open_checkpoint(options.model)
    tokenizer = checkpoint.read_tokenizer(options.tokenizer)
    layout = layout_of(checkpoint, options.weights_dtype)
    caches = read_caches(options.cache, options.grid, layout, checkpoint.config, say)
    texts = tuple(_read_text(name, tokenizer, options.tokens) for name in options.text)
    for named in texts:
        check_ids(named.text.ids, checkpoint.config.vocab_size)
    prompts = _read_prompts(options.prompts)
    return Inputs(load_model(checkpoint, options.weights_dtype), tokenizer, caches, texts, prompts)


def _read_text(name: str, tokenizer: Tokenizer, tokens: int | None) -> NamedText:
    data = read_file(name, "--text")
    ids = tuple(tokenizer.encode(decode_utf8(data, name))[:tokens])
    widths = {token: len(tokenizer.token_bytes(token)) for token in set(ids)}
    text = Text(ids, tuple(widths[token] for token in ids))
    return NamedText(name, hashlib.sha256(data).hexdigest(), text)


def _read_prompts(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return PROMPTS
    lines = decode_utf8(read_file(str(path), "--prompts"), str(path)).splitlines()
    prompts = tuple(line for line in lines if line.strip())
    if not prompts:
        raise ConfigError(f"--prompts {path} has no prompts; write one a line")
    return prompts


def digest(model: Path) -> str:
    """What tells models of one name apart: sizes, first and last MiB of the files."""
    found = hashlib.sha256()
    for path in files_of(model):
        if not path.is_file():
            continue
        size = path.stat().st_size
        found.update(f"{path.suffix} {size}\n".encode())
        with path.open("rb") as file:
            found.update(file.read(MIB))
            file.seek(max(0, size - MIB))
            found.update(file.read(MIB))
    return found.hexdigest()
