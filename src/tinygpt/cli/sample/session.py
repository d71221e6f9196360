"""From a checked command line to a model, a cache and token ids. What can be refused is, early."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from tinygpt.blas import advice
from tinygpt.cache.budget import cache_bytes, fitting_flags
from tinygpt.cache.kv_cache import KVCache
from tinygpt.cache.layout import CacheLayout
from tinygpt.cache.resolve import Resolved, resolve_spec
from tinygpt.cache.spec import CacheSpec
from tinygpt.cli.device import LONG_PREFILL, on_gpu
from tinygpt.cli.output import Say
from tinygpt.cli.sample.options import SampleOptions
from tinygpt.cli.sample.prompt import Prompt, encode_prompt
from tinygpt.cli.sample.report import banner
from tinygpt.generate import check_prompt
from tinygpt.io.checkpoint import parameter_count
from tinygpt.io.load import layout_of, load_model, open_checkpoint
from tinygpt.memory import free_memory
from tinygpt.models.config import ModelConfig
from tinygpt.models.transformer import Transformer
from tinygpt.tokenizer import Tokenizer
from tinygpt.uncached import check_uncached_prompt
from tinygpt.units import count, size

LONG_TEXT = 1 << 17  # tokens; windows are full by then


@dataclass(frozen=True, slots=True)
class Session:
    """Everything a generation needs, loaded. `cache` is None with --no-cache."""

    model: Transformer
    tokenizer: Tokenizer
    ids: list[int]
    cache: KVCache | None
    prefill_chunk: int | None


def open_session(options: SampleOptions, prompt: Prompt, say: Say) -> Session:
    """Check the request against the file's header, then load the weights.

    Raises:
        TinyGPTError: the file, the prompt or the cache flags are refused.
    """
    checkpoint = open_checkpoint(options.model)
    tokenizer = checkpoint.read_tokenizer(options.tokenizer)
    config = checkpoint.config
    ids = encode_prompt(prompt, options.source, tokenizer, config.vocab_size)
    layout = layout_of(checkpoint, options.weights_dtype)
    hints = checkpoint.cache_hints if options.use_cache else {}
    resolved = resolve_spec(options.cache, hints, layout, context=config.context)
    if config.rope is None and resolved.spec.held is None:
        check = check_prompt if options.use_cache else check_uncached_prompt
        check(len(ids), config.context)
    started = time.perf_counter()
    model = load_model(checkpoint, options.weights_dtype)
    seconds = time.perf_counter() - started
    parameters = count(parameter_count(checkpoint))
    say(f"loaded {options.model.name} in {seconds:.2f} s · {parameters} parameters")
    for line in notes_before(options, config, layout, resolved, len(ids)):
        say(line)
    length = text_length(resolved.spec, len(ids), options.tokens)
    cache = KVCache(resolved.spec, model.cache_layout(length)) if options.use_cache else None
    return Session(model, tokenizer, ids, cache, resolved.prefill_chunk)


def text_length(spec: CacheSpec, prompt_tokens: int, tokens: int | None) -> int | None:
    """The longest distance that a query is going to see, in tokens; None: as the context says."""
    total = None if tokens is None else prompt_tokens + tokens
    if spec.held is not None and spec.positions == "rolling":
        return spec.held if total is None else min(total, spec.held)
    return total


def notes_before(
    options: SampleOptions,
    config: ModelConfig,
    layout: CacheLayout,
    resolved: Resolved,
    prompt_tokens: int,
) -> list[str]:
    """What the user should know before the first token: choices, limits, advice."""
    lines = list(resolved.notes)
    spec = resolved.spec
    if options.use_cache:
        lines += banner(spec, _times_smaller(spec, layout))
        lines += memory_warning(spec, layout, prompt_tokens, free_memory())
    total = math.inf if options.tokens is None else prompt_tokens + options.tokens
    if config.rope is not None and spec.held is None and total > config.context:
        hint = "; --streaming-llm-window M keeps it within" if options.use_cache else ""
        lines.append(
            f"warning: this model was trained on texts of {config.context} tokens and may lose the "
            f"thread beyond{hint}"
        )
    if prompt_tokens > LONG_PREFILL and not on_gpu():
        lines += [line for line in [advice()] if line]
    return lines


def memory_warning(
    spec: CacheSpec, layout: CacheLayout, prompt_tokens: int, free: int | None
) -> list[str]:
    """A warning if the prompt's cache alone would not fit in `free` bytes (None: unknown)."""
    needed = cache_bytes(spec, layout, prompt_tokens)
    if free is None or needed <= free:
        return []
    flags = fitting_flags(layout, prompt_tokens, free)
    hint = f"{flags} would fit" if flags else "nothing fits: free some memory first"
    return [
        f"warning: the cache of {prompt_tokens} prompt tokens takes {size(needed)} and "
        f"{size(free)} of memory are free; {hint}"
    ]


def _times_smaller(spec: CacheSpec, layout: CacheLayout) -> float:
    """How many times more the same cache takes for a long text if nothing is packed."""
    unpacked = CacheSpec(sink=spec.sink, window=spec.window)
    return cache_bytes(unpacked, layout, LONG_TEXT) / cache_bytes(spec, layout, LONG_TEXT)
