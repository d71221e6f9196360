"""The caches that `--cache` and `--grid` of `tinygpt eval` and `bench` ask for."""

from __future__ import annotations

from tinygpt.cache import CacheSpec
from tinygpt.cache.layout import CacheLayout
from tinygpt.cli.output import Say
from tinygpt.errors import ConfigError
from tinygpt.evaluate.cache_text import FULL, GRID, read_cache
from tinygpt.models.config import ModelConfig


def read_caches(
    named: tuple[str, ...], grid: bool, layout: CacheLayout, config: ModelConfig, say: Say
) -> dict[str, CacheSpec]:
    """The caches by the text that asks for them; those of the grid that cannot be are left out.

    Raises:
        ConfigError: a named cache cannot be read, or cannot be right with this model.
    """
    caches: dict[str, CacheSpec] = {}
    for text in (part.strip() for part in named or ((FULL,) if not grid else ())):
        caches[text], notes = read_cache(text, layout, config.context)
        for note in notes:
            say(f"{text}: {note}")
    for text in GRID if grid else ():
        try:
            caches.setdefault(text, read_cache(text, layout, config.context)[0])
        except ConfigError as error:
            say(f"left out of --grid: {error}")
    return caches
