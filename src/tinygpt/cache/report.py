"""One line that says what a cache is and what it holds."""

from __future__ import annotations

from tinygpt.cache.kv_cache import KVCache
from tinygpt.cache.spec import CacheSpec
from tinygpt.units import size


def describe_cache(cache: KVCache, seen: int | None = None) -> str:
    """The line at the end of a run; `seen` counts tokens also from before a restart."""
    seen = cache.seen if seen is None else seen
    parts = [f"KV cache: {seen} tokens", size(cache.nbytes)]
    if cache.spec.held is not None and cache.held < seen:
        cap = " (StreamingLLM cap)" if cache.held == cache.spec.held else ""
        parts.append(f"stored {cache.held}{cap}")
    rotary = any(layer.rope is not None for layer in cache.layout.layers)
    return " · ".join([*parts, describe_spec(cache.spec, dtype_name(cache), rotary=rotary)])


def describe_spec(spec: CacheSpec, dtype: str, *, rotary: bool) -> str:
    """The choice in words, for instance `int8 KIVI, groups of 32, … · StreamingLLM 4 + 256`.

    `dtype` names the model's compute type; `rotary` says that its positions are not learned.
    """
    if spec.bits is None:
        precision = dtype if spec.precision == "full" else spec.precision
    else:
        precision = (
            f"{spec.precision} KIVI, groups of {spec.group}, first {max(spec.sinks, spec.first_fp)}"
            f" and last {spec.residual_for(spec.window)} tokens unpacked"
        )
    if spec.window is None:
        return precision
    positions = f", {spec.positions} positions" if rotary else ""
    return f"{precision} · StreamingLLM {spec.sinks} + {spec.window}{positions}"


def dtype_name(cache: KVCache) -> str:
    """The model's compute type as `--kv-quantize` names it."""
    names = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
    return names[str(cache.layout.dtype).removeprefix("mlx.core.")]
