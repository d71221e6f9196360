"""GGML's tensor types, by their numbers in a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorType:
    """A GGUF tensor type: `block` values take `block_bytes` bytes.

    `bits` is the width of the codes where MLX's packed layout holds the type exactly.
    """

    name: str
    block: int
    block_bytes: int
    bits: int | None = None

    @property
    def quantised(self) -> bool:
        return self.block > 1


F32 = TensorType("F32", 1, 4)
F16 = TensorType("F16", 1, 2)
BF16 = TensorType("BF16", 1, 2)
TENSOR_TYPES = {
    0: F32,
    1: F16,
    2: TensorType("Q4_0", 32, 18, bits=4),
    3: TensorType("Q4_1", 32, 20, bits=4),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34, bits=8),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    30: BF16,
}

_UNREAD = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
}


def type_name(number: int) -> str:
    """GGML's name of a tensor type that is not read here, or its number."""
    return _UNREAD.get(number, str(number))
