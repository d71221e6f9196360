"""The weight files of a Hugging Face directory: one, or several that an index lists."""

from __future__ import annotations

from pathlib import Path

from tinygpt.errors import CheckpointError, UnsupportedError
from tinygpt.io.checkpoint import shown
from tinygpt.io.huggingface.safetensors_file import StoredTensor, read_safetensors
from tinygpt.io.json_fields import parse_object

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_LARGEST_JSON = 64 * 2**20  # bytes; the index of a model of a trillion parameters has some 10 MB


def read_shards(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor of the directory, by its name in the files; nothing of them is read.

    Raises:
        CheckpointError: no weights, or a file or tensor that is missing, twice there, or a lie.
        UnsupportedError: weights that are pickled.
    """
    if (directory / SINGLE).exists():
        return read_safetensors(directory / SINGLE)
    if (directory / INDEX).exists():
        return _indexed(directory)
    files = sorted(directory.glob("model*.safetensors"))
    if not files:
        raise _no_weights(directory)
    return _joined(files)


def read_json(path: Path) -> dict[str, object]:
    """A JSON object from a file of the directory.

    Raises:
        CheckpointError: it is no regular file, absurdly large, or not a JSON object.
    """
    try:
        if not path.is_file():
            raise CheckpointError(f"{path}: no such file, or not a regular one")
        size = path.stat().st_size
        if size > _LARGEST_JSON:
            raise CheckpointError(f"{path}: {size} bytes long, expected at most {_LARGEST_JSON}")
        text = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be opened ({error.strerror})") from error
    return parse_object(f"{path}:", text)


def _indexed(directory: Path) -> dict[str, StoredTensor]:
    index = directory / INDEX
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map is {shown(weight_map)}, expected an object")
    first_of: dict[str, str] = {}  # a tensor of each file, for messages
    for name, file in weight_map.items():
        first_of.setdefault(_file_name(index, name, file), name)
    for file, name in first_of.items():
        if not (directory / file).exists():
            raise CheckpointError(
                f"{directory / file}: no such file, although {INDEX} puts tensor {shown(name)} "
                "into it; fetch it again"
            )
    tensors = _joined([directory / file for file in first_of])
    for name, file in weight_map.items():
        if name not in tensors or tensors[name].file.name != file:
            raise CheckpointError(
                f"{directory / file}: holds no tensor {shown(name)}, although {INDEX} puts it there"
            )
    return tensors


def _file_name(index: Path, tensor: str, file: object) -> str:
    plain = isinstance(file, str) and file.endswith(".safetensors") and "\0" not in file
    if not isinstance(file, str) or not plain or "/" in file or "\\" in file:
        raise CheckpointError(
            f"{index}: puts tensor {shown(tensor)} into {shown(file)}, expected the name of a "
            ".safetensors file in this directory"
        )
    return file


def _joined(files: list[Path]) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for name, tensor in read_safetensors(file).items():
            if name in tensors:
                raise CheckpointError(
                    f"{file}: tensor {shown(name)} is also in {tensors[name].file.name}"
                )
            tensors[name] = tensor
    return tensors


def _no_weights(directory: Path) -> CheckpointError | UnsupportedError:
    pickled = sorted(path.name for kind in _PICKLED for path in directory.glob(kind))
    if pickled:
        return UnsupportedError(
            f"{directory / pickled[0]}: pickled weights can run code when they are loaded and are "
            "not read; give a directory with safetensors"
        )
    ggufs = sorted(directory.glob("*.gguf"))
    if ggufs:
        return CheckpointError(f"{directory}: holds no safetensors; give the file {ggufs[0]}")
    return CheckpointError(f"{directory}: holds no {SINGLE} and no {INDEX}")
