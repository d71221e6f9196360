"""SentencePiece vocabularies in GGUF files (model "llama"): pieces with scores, no merges.

Of all neighbours whose union is a piece, those of the highest score are joined first, from the
left. Where every such piece has a score of its own, that is byte-pair encoding by the merges that
make the pieces, ordered by score. (Unigram segmentation of the same pieces is another one.)
"""

from __future__ import annotations

from itertools import pairwise
from typing import NoReturn

from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, normalizers

from tinygpt.errors import UnsupportedError
from tinygpt.io.checkpoint import shown
from tinygpt.io.gguf.vocabulary import BYTE, NORMAL, UNKNOWN, Vocabulary

SPACE = "\u2581"  # how a piece spells a space


def sentencepiece(vocabulary: Vocabulary) -> Inner:
    """The tokenizer, without its added tokens.

    Raises:
        CheckpointError: scores that are missing or no numbers.
        UnsupportedError: a vocabulary whose segmentation merges cannot express.
    """
    keys = vocabulary.keys
    if keys.flag("remove_extra_whitespaces"):
        _refuse(vocabulary, "remove_extra_whitespaces is true")
    model = models.BPE(
        vocab={token: i for i, token in enumerate(vocabulary.tokens)},
        merges=_merges(vocabulary),
        unk_token=_unknown(vocabulary),
        fuse_unk=True,
        byte_fallback=True,
    )
    inner = Inner(model)
    prefixed = keys.flag("add_space_prefix", default=True)
    spell = normalizers.Replace(" ", SPACE)
    inner.normalizer = (
        normalizers.Sequence([normalizers.Prepend(SPACE), spell]) if prefixed else spell
    )
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    inner.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if prefixed else [])])
    return inner


def _merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Every way to make a normal piece of two others, the highest score first."""
    scores = vocabulary.keys.scores(len(vocabulary.tokens))
    kinds = zip(vocabulary.tokens, vocabulary.types, scores, strict=True)
    normal = {token: score for token, kind, score in kinds if kind == NORMAL}
    made = [(score, token, _splits(token, normal)) for token, score in normal.items()]
    made = [item for item in made if item[2]]
    made.sort(key=lambda item: -item[0])
    for (score, first, _), (other, second, _) in pairwise(made):
        if score == other:
            _refuse(
                vocabulary, f"pieces {shown(first)} and {shown(second)} have one score, {score}"
            )
    return [split for _, _, splits in made for split in splits]


def _splits(token: str, normal: dict[str, float]) -> list[tuple[str, str]]:
    """The pairs of pieces that make `token`, that with the longest first piece first."""
    return [
        (token[:i], token[i:])
        for i in range(len(token) - 1, 0, -1)
        if token[:i] in normal and token[i:] in normal
    ]


def _unknown(vocabulary: Vocabulary) -> str | None:
    """The token for what no piece spells; None where the 256 bytes are tokens."""
    if vocabulary.types.count(BYTE) == 256:
        return None
    if UNKNOWN not in vocabulary.types:
        _refuse(vocabulary, "it has neither 256 byte tokens nor an unknown token")
    return vocabulary.tokens[vocabulary.types.index(UNKNOWN)]


def _refuse(vocabulary: Vocabulary, what: str) -> NoReturn:
    raise UnsupportedError(
        f"{vocabulary.keys.path}: the SentencePiece vocabulary is not supported: {what}; give a "
        "tokenizer by --tokenizer DIR"
    )
