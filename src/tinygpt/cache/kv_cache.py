"""The cache of a whole model: one `LayerCache` for each layer that owns keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from tinygpt.cache.eviction.base import Eviction
from tinygpt.cache.eviction.keep_all import KeepAll
from tinygpt.cache.eviction.streaming import StreamingLLM
from tinygpt.cache.layer_cache import LayerCache, LayerState
from tinygpt.cache.layout import CacheLayout, LayerLayout
from tinygpt.cache.spec import CacheSpec
from tinygpt.cache.step import Timeline
from tinygpt.cache.storage.base import Storage
from tinygpt.cache.storage.dense import Dense
from tinygpt.cache.storage.kivi import KIVI, KIVISizes
from tinygpt.cache.text import Text
from tinygpt.errors import CacheError, ConfigError

DTYPES = {"fp32": mx.float32, "fp16": mx.float16, "bf16": mx.bfloat16}


@dataclass(frozen=True, slots=True)
class CacheState:
    """What a cache holds: the first token's position, how many were seen, and each layer's arrays.

    `text` is what is known of the text behind it.
    `most_seen` counts undone tokens too, `least_seen` is how far an undo could go back.
    """

    start: int
    seen: int
    most_seen: int
    least_seen: int
    layers: tuple[LayerState, ...]
    text: Text


class KVCache:
    """Keys and values of one sequence (or of B in step) under `spec`, for a model's `layout`.

    `start` is the position of the first token. A model with learned positions reads its table from
    there; to rotary positions only distances matter, so it changes nothing, at any size.

    Raises:
        ConfigError: spec and layout cannot go together, or `start` is negative.
    """

    def __init__(self, spec: CacheSpec, layout: CacheLayout, *, start: int = 0) -> None:
        if not layout.layers:
            raise ConfigError("a cache needs at least one layer")
        self.spec, self.layout = spec, layout
        self._reserved: int | None = None
        self.reset(start)

    def reset(self, start: int = 0) -> None:
        """Forget everything; the next token has position `start`, and buffers of its own."""
        if start < 0:
            raise ConfigError(f"the start is {start}; it must be at least 0")
        self._empty(start)
        self.text = Text()

    def restart(self, again: int) -> None:
        """Forget keys and values but not the text, of which `again` tokens are to be fed again.

        The next token has position 0.
        """
        self.text.before += self.seen - again
        self._empty(0)

    def settle(self) -> None:
        """What the cache holds now cannot be undone: what was there before is gone."""
        self._least_seen = self.seen

    def _empty(self, start: int) -> None:
        self.start = start
        timelines: dict[object, Timeline] = {}
        self.layers: list[LayerCache] = []
        for layer in self.layout.layers:
            eviction = eviction_of(self.spec, layer)
            kind = (layer.rope, eviction)
            timeline = timelines.setdefault(kind, Timeline(layer.rope, eviction))
            storage = storage_of(self.spec, layer, eviction, self.layout)
            self.layers.append(LayerCache(timeline, storage, layer, self.layout.dtype))
        self._most_seen = self._least_seen = 0
        if self._reserved is not None:
            self.reserve(self._reserved)

    @property
    def seen(self) -> int:
        """Tokens appended and not undone."""
        return self.layers[0].seen

    @property
    def total(self) -> int:
        """Tokens of the text that were fed, also those from before a restart."""
        return self.text.before + self.seen

    @property
    def position(self) -> int:
        """The position of the next token."""
        return self.start + self.seen

    def spans(self, count: int) -> list[tuple[int, int]]:
        """The positions, from and to, of the next `count` tokens."""
        return [(self.position, self.position + count)]

    @property
    def held(self) -> int:
        """Tokens that the last query saw, itself included."""
        most = self.spec.held
        return self.seen if most is None else min(self.seen, most)

    @property
    def nbytes(self) -> int:
        """Bytes of all allocated buffers, whether or not a token lies in them yet."""
        self.commit()
        return sum(array.nbytes for layer in self.layers for array in layer.arrays().values())

    def commit(self) -> None:
        """Store what is pending. The model calls this at the end of a forward."""
        for layer in self.layers:
            layer.commit()
        self._most_seen = max(self._most_seen, self.seen)

    def reserve(self, tokens: int | None) -> None:
        """Expect at most `tokens` in all: buffers grow no further than these need. None: no limit.

        It is a forecast: more tokens are taken as well.
        """
        self._reserved = None if tokens is None else max(1, tokens)
        for layer in self.layers:
            layer.reserve(self._reserved)

    def undo(self, tokens: int) -> None:
        """Forget the last `tokens`, as if they had never been appended.

        Raises:
            CacheError: `tokens` goes back further than the spec's slack.
        """
        self.check_undo(tokens)
        for layer in self.layers:
            layer.undo(tokens)
        self.text.undo(tokens)

    def check_undo(self, tokens: int) -> None:
        """Raise CacheError unless the last `tokens` can be undone."""
        self.commit()
        left = self.spec.slack - (self._most_seen - self.seen)
        left = min(left, self.seen - self._least_seen)
        if not 0 <= tokens <= left:
            raise CacheError(
                f"cannot undo {tokens} tokens: {self.seen} were seen and the cache keeps what "
                f"{self.spec.slack} undone tokens need (slack), of which {left} are left"
            )

    def hold(self, held: bool) -> None:
        """While `held`, no storage packs: tokens wait in half precision until it ends."""
        for layer in self.layers:
            layer.hold(held)

    def keep(self, chosen: Sequence[mx.array]) -> None:
        """Keep in each layer only the `chosen` tokens [B, H_kv, m]; see `LayerCache.keep`.

        Raises:
            CacheError: there is not one array for each layer, or a layer refuses its own.
        """
        self.commit()
        if len(chosen) != len(self.layers):
            raise CacheError(f"{len(chosen)} choices for {len(self.layers)} layers; give one each")
        for layer, of_layer in zip(self.layers, chosen, strict=True):
            layer.keep(of_layer)
        self.settle()

    def state(self) -> CacheState:
        """All that is stored, exactly. The arrays are the cache's own: do not write to them."""
        return CacheState(
            self.start,
            self.seen,
            self._most_seen,
            self._least_seen,
            tuple(layer.state() for layer in self.layers),
            self.text.copy(),
        )

    def load(self, state: CacheState) -> None:
        """Go on exactly where the cache of `state`, of the same spec and layout, stood.

        Raises:
            CacheError: the state is of a cache with another number of layers.
        """
        if len(state.layers) != len(self.layers):
            raise CacheError(
                f"the state is of {len(state.layers)} layers, this cache has {len(self.layers)}"
            )
        self._empty(state.start)
        self.text = state.text.copy()
        for layer, of_layer in zip(self.layers, state.layers, strict=True):
            layer.load(of_layer, state.seen, state.most_seen)
        self._most_seen, self._least_seen = state.most_seen, state.least_seen

    def fork(self) -> KVCache:
        """A cache that goes on from here by itself; it shares a buffer until one writes to it."""
        other = KVCache(self.spec, self.layout, start=self.start)
        other.load(self.state())
        other.reserve(self._reserved)
        return other

    def evaluated(self) -> list[mx.array]:
        """The arrays to evaluate so that no graph is left hanging on the cache."""
        return [array for layer in self.layers for array in layer.arrays().values()]


def eviction_of(spec: CacheSpec, layer: LayerLayout) -> Eviction:
    """The policy of one layer.

    A layer with a sliding window of its own was trained without anything outside it: it keeps that
    window, unless what the user asked for is smaller still, sinks included.
    """
    own, held = layer.window, spec.held
    if held is not None and spec.window is not None and (own is None or held <= own):
        return StreamingLLM(spec.sinks, spec.window, spec.positions == "rolling")
    if own is not None:
        return StreamingLLM(0, own)
    return KeepAll()


def storage_of(
    spec: CacheSpec, layer: LayerLayout, eviction: Eviction, layout: CacheLayout
) -> Storage:
    """The storage of one layer.

    Raises:
        ConfigError: the precision cannot store this layer.
    """
    if spec.bits is None:
        dtype = DTYPES.get(spec.precision, layout.dtype)
        fused = dtype == layout.dtype and layer.softcap is None
        return Dense(eviction, layer, dtype, slack=spec.slack, fused=fused)
    if eviction.window is not None:
        spec.check_window(eviction.window, "the window of a layer,")
    options = KIVISizes(
        bits=spec.bits,
        group=spec.group,
        value_group=spec.value_group(layer.value_width),
        residual=spec.residual_for(eviction.window),
        first=max(eviction.sink, spec.first_fp),
        half=layout.half,
        slack=spec.slack,
    )
    return KIVI(eviction, layer, options)
