"""The `tokenizer` object of a `.tinygpt` header and our tokenizers, in both directions.

`{kind: "bytes"|"hf", json, chatTemplate, bosTokenId, eosTokenId, eosTokenIds, addBos}`: `json` is
the text of a tokenizer.json, kind "hf" only; `eosTokenId` is the one that templates mean. A
byte-level tokenizer without any of these needs no object at all.
"""

from __future__ import annotations

from tinygpt.errors import CheckpointError, UnsupportedError
from tinygpt.io.checkpoint import shown
from tinygpt.io.json_fields import Fields
from tinygpt.io.tokenizer_dir import inner_from_text
from tinygpt.tokenizer import ByteTokenizer, HFTokenizer, Tokenizer, TokenizerOptions

BYTES, HF = "bytes", "hf"


def tokenizer_to_json(tokenizer: Tokenizer) -> dict[str, object] | None:
    """The header's object, None for plain bytes.

    Raises:
        UnsupportedError: a tokenizer that is neither bytes nor a tokenizer.json.
    """
    values: dict[str, object] = {}
    if tokenizer.bos_id is not None:
        values |= {"bosTokenId": tokenizer.bos_id, "addBos": tokenizer.add_bos}
    if tokenizer.eos_ids:
        values["eosTokenIds"] = sorted(tokenizer.eos_ids)
    if tokenizer.chat_template is not None:
        values["chatTemplate"] = tokenizer.chat_template
    if isinstance(tokenizer, ByteTokenizer):
        return {"kind": BYTES, **values} if values else None
    if isinstance(tokenizer, HFTokenizer):
        eos = tokenizer.eos_token
        if eos is not None:
            values["eosTokenId"] = tokenizer.inner.token_to_id(eos)
        return {"kind": HF, **values, "json": tokenizer.to_json()}
    raise UnsupportedError(
        f"a {type(tokenizer).__name__} cannot be written into a .tinygpt header; bytes and "
        "tokenizer.json can"
    )


def tokenizer_from_json(where: str, value: object, vocab_size: int) -> Tokenizer:
    """The tokenizer that a header describes, for a model of `vocab_size` ids.

    Raises:
        CheckpointError: a field that is wrong, or a tokenizer with more ids than the model.
        UnsupportedError: another kind of tokenizer.
    """
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} tokenizer is {shown(value)}, expected an object")
    fields = Fields(f"{where} tokenizer", value)
    kind = fields.text("kind")
    if kind == BYTES:
        return _byte_tokenizer(fields, vocab_size)
    if kind == HF:
        return _hf_tokenizer(fields, vocab_size)
    raise UnsupportedError(
        f"{fields.where} kind is {shown(kind)}, this version reads 'bytes' and 'hf'; give a "
        "tokenizer by --tokenizer DIR"
    )


def _byte_tokenizer(fields: Fields, vocab_size: int) -> ByteTokenizer:
    bos = _token_id(fields, "bosTokenId", vocab_size)
    return ByteTokenizer(
        vocab_size,
        bos_id=bos,
        add_bos=fields.flag("addBos") and bos is not None,
        eos_ids=_eos_ids(fields, vocab_size),
        chat_template=fields.text("chatTemplate"),
    )


def _hf_tokenizer(fields: Fields, vocab_size: int) -> HFTokenizer:
    text = fields.text("json")
    if text is None:
        fields.refuse("json", None, "the text of a tokenizer.json")
    bos = _token_id(fields, "bosTokenId", vocab_size)
    options = TokenizerOptions(
        vocab_size=vocab_size,
        bos_id=bos,
        add_bos=fields.flag("addBos") and bos is not None,
        eos_ids=_eos_ids(fields, vocab_size),
        chat_template=fields.text("chatTemplate"),
        eos_id=_token_id(fields, "eosTokenId", vocab_size),
    )
    tokenizer = HFTokenizer(inner_from_text(f"{fields.where} json", text), options)
    if tokenizer.vocab_size > vocab_size:
        fields.refuse("json", f"of {tokenizer.vocab_size} ids", f"at most the model's {vocab_size}")
    return tokenizer


def _token_id(fields: Fields, key: str, vocab_size: int) -> int | None:
    value = fields.optional_integer(key)
    if value is not None and value >= vocab_size:
        fields.refuse(key, value, f"an id below {vocab_size}")
    return value


def _eos_ids(fields: Fields, vocab_size: int) -> frozenset[int]:
    values = fields.values.get("eosTokenIds")
    values = [] if values is None else values
    if not isinstance(values, list) or not all(
        type(item) is int and 0 <= item < vocab_size for item in values
    ):
        fields.refuse("eosTokenIds", values, f"a list of ids below {vocab_size}")
    return frozenset(values)
