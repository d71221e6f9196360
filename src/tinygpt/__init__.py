"""Long generations with a KV cache that is quantised and bounded at once.

Importing this package loads a fast BLAS on Linux (`tinygpt.blas`, 3 ms): it must come before MLX,
and this is the one place that is sure to. The names below are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tinygpt.blas import preload

if TYPE_CHECKING:
    from tinygpt.cache import CacheSpec, KVCache
    from tinygpt.engine import Engine
    from tinygpt.errors import TinyGPTError
    from tinygpt.generate import Generation
    from tinygpt.io.load import load
    from tinygpt.sampling import Sampler, SamplingOptions

__version__ = "0.1.0"

_HOMES = {
    "CacheSpec": "cache",
    "Engine": "engine",
    "Generation": "generate",
    "KVCache": "cache",
    "Sampler": "sampling",
    "SamplingOptions": "sampling",
    "TinyGPTError": "errors",
    "load": "io.load",
}

__all__ = [
    "CacheSpec",
    "Engine",
    "Generation",
    "KVCache",
    "Sampler",
    "SamplingOptions",
    "TinyGPTError",
    "load",
]

preload()


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
