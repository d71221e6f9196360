"""The KV cache: precision, eviction and positions as separate axes that compose.

Names are imported when they are first used, so that the flag table costs no start of MLX.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinygpt.cache.kv_cache import KVCache
    from tinygpt.cache.layer_cache import LayerCache
    from tinygpt.cache.layout import CacheLayout, LayerLayout
    from tinygpt.cache.spec import CacheSpec

_HOMES = {
    "CacheLayout": "layout",
    "CacheSpec": "spec",
    "KVCache": "kv_cache",
    "LayerCache": "layer_cache",
    "LayerLayout": "layout",
}

__all__ = ["CacheLayout", "CacheSpec", "KVCache", "LayerCache", "LayerLayout"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
