"""A Hugging Face tokenizer directory: tokenizer.json and the settings that stand beside it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import tokenizers

from tinygpt.errors import CheckpointError
from tinygpt.tokenizer import HFTokenizer, TokenizerOptions, end_ids

LARGEST_ID = 2**24 - 1
_PROBE = "a b"  # a text for learning what a tokenizer adds to one


def load_tokenizer_dir(directory: Path, vocab_size: int | None = None) -> HFTokenizer:
    """The tokenizer of a Hugging Face directory: tokenizer.json and what stands beside it.

    `vocab_size` is the model's, at least as large as the tokenizer's.

    Raises:
        CheckpointError: no such directory, no tokenizer.json, or a damaged file.
        UnsupportedError: pieces of a kind that we cannot turn into bytes.
    """
    path = directory / "tokenizer.json"
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: no such tokenizer directory")
    if not path.is_file():
        raise CheckpointError(f"{directory}: holds no tokenizer.json")
    inner = _inner_from_json(path)
    beside = _read_object(directory / "tokenizer_config.json")
    generation = _read_object(directory / "generation_config.json")
    tokenizer = HFTokenizer(inner, _options(directory, inner, beside, generation, vocab_size))
    if vocab_size is not None and tokenizer.vocab_size > vocab_size:
        raise CheckpointError(
            f"{path}: has {tokenizer.vocab_size} ids, the model only {vocab_size}; "
            "it is not the tokenizer this model was trained with"
        )
    return tokenizer


def _options(
    directory: Path,
    inner: tokenizers.Tokenizer,
    beside: dict[str, object],
    generation: dict[str, object],
    vocab_size: int | None,
) -> TokenizerOptions:
    first = _first_special(inner)
    bos = _token_id(inner, beside.get("bos_token"))
    eos = _token_id(inner, beside.get("eos_token"))
    says = beside.get("add_bos_token")
    listed = generation.get("eos_token_id")
    stops = [i for i in (listed if isinstance(listed, list) else [listed]) if _is_id(i)]
    bos = first if bos is None else bos
    return TokenizerOptions(
        vocab_size=vocab_size,
        bos_id=bos,
        add_bos=bos is not None and (says if isinstance(says, bool) else first == bos),
        eos_ids=end_ids(inner) | {i for i in [eos, *stops] if isinstance(i, int)},
        chat_template=_chat_template(directory, beside),
        eos_id=eos,
    )


def _inner_from_json(path: Path) -> tokenizers.Tokenizer:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path}: not a readable tokenizer ({reason})") from error
    return inner_from_text(str(path), text)


def inner_from_text(where: str, text: str) -> tokenizers.Tokenizer:
    """The tokenizer of a tokenizer.json, after it has encoded one text: some damage shows only
    then.

    Raises:
        CheckpointError: it is damaged; `where` says which one.
    """
    try:
        with _silent_stderr():
            inner = tokenizers.Tokenizer.from_str(text)
            inner.encode(_PROBE)
    except BaseException as error:  # the library raises bare Exception, and BaseException on panics
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{where}: not a readable tokenizer ({reason})") from error
    highest = max(inner.get_vocab(with_added_tokens=True).values(), default=0)
    if highest > LARGEST_ID:  # the library counts up to it, for minutes
        raise CheckpointError(f"{where}: has the id {highest}, expected at most {LARGEST_ID}")
    return inner


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """Send file descriptor 2 nowhere: the library reports its panics there, in many lines."""
    try:
        before = os.dup(2)
    except OSError:  # stderr is closed
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)


def _read_object(path: Path) -> dict[str, object]:
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path}: not a readable JSON file ({reason})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a {type(value).__name__}, expected a JSON object")
    return value


def _chat_template(directory: Path, beside: dict[str, object]) -> str | None:
    separate = directory / "chat_template.jinja"
    if separate.is_file():
        try:
            return separate.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{separate}: not readable as UTF-8 ({error})") from error
    value = beside.get("chat_template")
    for named in value if isinstance(value, list) else []:
        if isinstance(named, dict) and named.get("name") == "default":
            value = named.get("template")
    return value if isinstance(value, str) else None


def _token_id(inner: tokenizers.Tokenizer, token: object) -> int | None:
    text = token.get("content") if isinstance(token, dict) else token
    return inner.token_to_id(text) if isinstance(text, str) else None


def _first_special(inner: tokenizers.Tokenizer) -> int | None:
    """The id that the tokenizer's own post-processor puts before a text, if any."""
    bare: Sequence[int] = inner.encode(_PROBE, add_special_tokens=False).ids
    full: Sequence[int] = inner.encode(_PROBE).ids
    return (
        full[0] if len(full) > len(bare) and list(full[1 : 1 + len(bare)]) == list(bare) else None
    )


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
