"""The tokenizer inside a GGUF file: its metadata becomes a `tokenizers.Tokenizer`.

Byte-level BPE (model "gpt2"), cut by llama.cpp's pre-tokenizers, and SentencePiece ("llama").
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Inner

from tinygpt.errors import CheckpointError, UnsupportedError
from tinygpt.io.checkpoint import shown
from tinygpt.io.gguf.pre import PRE_TOKENIZERS, PreTokenizer
from tinygpt.io.gguf.sentencepiece import sentencepiece
from tinygpt.io.gguf.vocabulary import (
    CONTROL,
    PREFIX,
    UNKNOWN,
    USER_DEFINED,
    TokenizerKeys,
    Vocabulary,
)
from tinygpt.tokenizer import HFTokenizer, TokenizerOptions, end_ids

_MODELS = ("gpt2", "llama")
_STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Ends of a turn in files that name none, beside those of `tinygpt.tokenizer`.
_MORE_ENDS = ("<|return|>", "<|call|>", "<EOT>", "_<EOT>", "<｜end▁of▁sentence｜>")


def read_gguf_tokenizer(path: Path, metadata: dict[str, object], vocab_size: int) -> HFTokenizer:
    """The tokenizer that a GGUF file's metadata describes.

    Raises:
        CheckpointError: a key is missing, of the wrong type, or contradicts another.
        UnsupportedError: a vocabulary or pre-tokenizer that this version does not read.
    """
    keys = TokenizerKeys(path, metadata)
    model = _model(keys)
    if keys.flag("add_eos_token"):
        raise UnsupportedError(
            f"{path}: {PREFIX}add_eos_token is true: every text would end before it is continued; "
            "give a tokenizer by --tokenizer DIR"
        )
    vocabulary = Vocabulary.of(keys)
    if model == "llama":
        inner, adds_bos = sentencepiece(vocabulary), True
    else:
        pre = _pre_tokenizer(keys)
        inner, adds_bos = _byte_level_bpe(vocabulary, pre), pre.adds_bos
    inner.add_tokens(_added(vocabulary))
    return HFTokenizer(inner, _options(keys, inner, vocab_size, adds_bos))


def _model(keys: TokenizerKeys) -> str:
    model = keys.text("model")
    if model is None:
        raise CheckpointError(
            f"{keys.path}: {PREFIX}model is missing; give a tokenizer by --tokenizer DIR"
        )
    if model not in _MODELS:
        raise UnsupportedError(
            f"{keys.path}: {PREFIX}model {shown(model)} is not supported, this version reads "
            f"{' and '.join(map(repr, _MODELS))}; give a tokenizer by --tokenizer DIR"
        )
    return model


def _options(
    keys: TokenizerKeys, inner: Inner, vocab_size: int, adds_bos: bool
) -> TokenizerOptions:
    bos, eos = (keys.token_id(f"{name}_token_id", vocab_size) for name in ("bos", "eos"))
    stops = {keys.token_id(key, vocab_size) for key in _STOP_KEYS}
    if keys.flag("add_bos_token") and bos is None:
        keys.refuse("bos_token_id", None, "an id, because add_bos_token is true")
    return TokenizerOptions(
        vocab_size=vocab_size,
        bos_id=bos,
        add_bos=keys.flag("add_bos_token", adds_bos) and bos is not None,
        eos_ids=end_ids(inner) | _more_ends(inner) | {i for i in stops if i is not None},
        chat_template=_chat_template(keys),
        eos_id=eos,
    )


def _byte_level_bpe(vocabulary: Vocabulary, pre: PreTokenizer) -> Inner:
    keys = vocabulary.keys
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    merges = [_pair(keys, merge) for merge in keys.texts("merges")]
    try:
        model = models.BPE(
            vocab=ids, merges=merges, fuse_unk=False, ignore_merges=pre.ignore_merges
        )
    except Exception as error:  # the library raises bare Exception, e.g. for an unknown token
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{keys.path}: {PREFIX}merges do not fit ({reason})") from error
    inner = Inner(model)
    inner.pre_tokenizer = pre.build()
    inner.decoder = decoders.ByteLevel()
    return inner


def _pair(keys: TokenizerKeys, merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right) or " " in right:
        raise CheckpointError(
            f"{keys.path}: {PREFIX}merges holds {shown(merge)}, expected two pieces and one space"
        )
    return left, right


def _pre_tokenizer(keys: TokenizerKeys) -> PreTokenizer:
    name = keys.text("pre") or "default"
    if name not in PRE_TOKENIZERS:
        raise UnsupportedError(
            f"{keys.path}: {PREFIX}pre {shown(name)} is not a pre-tokenizer that this version "
            "knows; give a tokenizer by --tokenizer DIR"
        )
    return PRE_TOKENIZERS[name]


def _added(vocabulary: Vocabulary) -> list[AddedToken]:
    """What is found in a text before anything else: control tokens, without bytes, and others."""
    return [
        AddedToken(token, special=kind != USER_DEFINED, normalized=False)
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
        if kind in (CONTROL, UNKNOWN, USER_DEFINED)
    ]


def _more_ends(inner: Inner) -> frozenset[int]:
    added = inner.get_added_tokens_decoder()
    return frozenset(
        i for i, token in added.items() if token.special and token.content in _MORE_ENDS
    )


def _chat_template(keys: TokenizerKeys) -> str | None:
    template = keys.metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise CheckpointError(
            f"{keys.path}: tokenizer.chat_template is {shown(template)}, expected a string"
        )
    return template
