"""From a path to a checked checkpoint, and on to a model. The first bytes decide, not the name."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import mlx.core as mx

from tinygpt.errors import CheckpointError, UnsupportedError
from tinygpt.io.checkpoint import FLOAT_DTYPES, PACKED, Checkpoint, float_dtype, read_weights
from tinygpt.io.gguf.file import open_gguf
from tinygpt.io.gguf.header import MAGIC as GGUF_MAGIC
from tinygpt.io.huggingface.directory import open_huggingface
from tinygpt.io.tinygpt.file import open_tinygpt
from tinygpt.io.tinygpt.header import MAGIC as TINYGPT_MAGIC

if TYPE_CHECKING:
    from tinygpt.cache import CacheLayout
    from tinygpt.models.transformer import Transformer
    from tinygpt.tokenizer import Tokenizer

WEIGHTS_DTYPES = (*FLOAT_DTYPES, PACKED)
_READS = ".tinygpt and GGUF files and Hugging Face directories"
_ADAPTER = b"TGLA"
_ZIP = b"PK\x03\x04"
_LFS = b"version https://git-lfs"


def open_checkpoint(path: Path) -> Checkpoint:
    """Check a model file or directory without reading its weights.

    Raises:
        CheckpointError: no such file, not a model file, or one that says things that are not true.
        UnsupportedError: a kind of file or of model that this version does not read.
    """
    if _is_directory(path):
        return open_huggingface(path)
    head = _first_bytes(path)
    if head.startswith(TINYGPT_MAGIC):
        return open_tinygpt(path)
    if head.startswith(GGUF_MAGIC):
        return open_gguf(path)
    raise _refusal(path, head)


def load(path: str | Path, weights_dtype: str | None = None) -> tuple[Transformer, Tokenizer]:
    """The model and the tokenizer of a file.

    Raises:
        TinyGPTError: see `open_checkpoint` and `load_model`.
    """
    checkpoint = open_checkpoint(Path(path))
    tokenizer = checkpoint.read_tokenizer()
    return load_model(checkpoint, weights_dtype), tokenizer


def load_model(checkpoint: Checkpoint, weights_dtype: str | None = None) -> Transformer:
    """Read the weights and build the model; None takes the form that decodes fastest here.

    Raises:
        ConfigError: a dtype that does not exist or that this file cannot give.
    """
    from tinygpt.models.transformer import Transformer

    form = weights_form(checkpoint, weights_dtype)
    weights = read_weights(checkpoint, form.stored)
    if form.stored == PACKED:
        _unify_floats(weights, form.compute)
    return Transformer(checkpoint.config, weights, half=form.half)


@dataclass(frozen=True, slots=True)
class WeightsForm:
    """How weights are held: as stored ("fp32" … "packed"), the compute type, and the half type."""

    stored: str
    compute: mx.Dtype
    half: mx.Dtype


def weights_form(checkpoint: Checkpoint, weights_dtype: str | None = None) -> WeightsForm:
    """The form that `load_model` is going to give; nothing is read."""
    on_gpu = mx.default_device().type == mx.DeviceType.gpu
    stored = weights_dtype or fastest_dtype(checkpoint.stored_dtype, on_gpu)
    half = mx.bfloat16 if _is_bf16(checkpoint) else mx.float16
    packed = half if on_gpu else mx.float32
    compute = packed if stored == PACKED else float_dtype(stored)
    return WeightsForm(stored, compute, mx.bfloat16 if compute == mx.bfloat16 else half)


def _is_bf16(checkpoint: Checkpoint) -> bool:
    """Whether the model was trained in bfloat16: fp16 may overflow in it."""
    kinds = {checkpoint.stored_dtype, *(tensor.dtype for tensor in checkpoint.tensors)}
    return "bf16" in kinds


def layout_of(
    checkpoint: Checkpoint, weights_dtype: str | None = None, tokens: int | None = None
) -> CacheLayout:
    """The cache layout that the model is going to have once it is loaded.

    `tokens` as for `Transformer.cache_layout`.
    """
    from tinygpt.models.transformer import cache_layout

    form = weights_form(checkpoint, weights_dtype)
    return cache_layout(checkpoint.config, form.compute, form.half, tokens)


def fastest_dtype(stored: str, on_gpu: bool) -> str:
    """The form of weights that decodes fastest.

    On a CPU that is fp32: products with half-precision or packed weights run several times slower
    than the BLAS. On a GPU decoding is bound by bytes, so weights stay as small as the file's.
    """
    return stored if on_gpu else "fp32"


def _unify_floats(weights: dict[str, mx.array], dtype: mx.Dtype) -> None:
    """Bring the float tensors beside packed ones to one dtype, in place."""
    for name, array in weights.items():
        if array.dtype != mx.uint32:
            weights[name] = array.astype(dtype)
    mx.eval(weights)


def _is_directory(path: Path) -> bool:
    """Whether it is one; what is neither a directory nor a regular file is refused."""
    with _refusing(path):
        mode = path.stat().st_mode
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise CheckpointError(f"{path}: is not a regular file; give {_READS}")
    return stat.S_ISDIR(mode)


def _first_bytes(path: Path) -> bytes:
    with _refusing(path), path.open("rb") as file:
        head = file.read(32)
    if not head:
        raise CheckpointError(f"{path}: is empty; this version reads {_READS}")
    return head


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """What cannot be opened is refused with the system's reason."""
    try:
        yield
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no such file") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(f"{path}: cannot be opened ({reason})") from error


def _refusal(path: Path, head: bytes) -> CheckpointError | UnsupportedError:
    if head.startswith(_ADAPTER):
        return UnsupportedError(f"{path}: is a LoRA adapter, not a model; give the model it adapts")
    if head.startswith(_LFS):
        return CheckpointError(f"{path}: is a Git LFS pointer, not the model; run git lfs pull")
    if head.startswith(_ZIP) or (
        head[0] == 0x80 and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    ):
        return UnsupportedError(
            f"{path}: is a pickle or ZIP archive (.pt, .bin, .npz), which can run code when it is "
            f"loaded; this version reads {_READS}"
        )
    if len(head) > 8 and head[8:9] == b"{" and head[6:8] == b"\0\0":
        return UnsupportedError(
            f"{path}: looks like safetensors, which holds no configuration; give the directory "
            "that also has its config.json"
        )
    return CheckpointError(
        f"{path}: starts with {head[:4]!r}, which is no model file; give {_READS}"
    )
