"""From flags and a file's hints to one cache, before any weight is read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tinygpt.cache.budget import MOST_WINDOW, full_bytes, largest_window
from tinygpt.cache.kv_cache import eviction_of, storage_of
from tinygpt.cache.layout import CacheLayout
from tinygpt.cache.spec import FLAGS, CacheSpec
from tinygpt.errors import ConfigError

PACKED_ONLY = ("group", "residual", "first_fp")


@dataclass(frozen=True, slots=True)
class Resolved:
    """The cache to make, the prompt tokens to compute at a time, and what the user must know."""

    spec: CacheSpec
    prefill_chunk: int | None
    notes: tuple[str, ...]


def resolve_spec(
    given: dict[str, object],
    hints: dict[str, int],
    layout: CacheLayout,
    *,
    context: int,
) -> Resolved:
    """The cache that `given` flags (by key) and a header's `hints` ask for; flags win.

    `context` is how many positions the model was made for, in tokens.

    Raises:
        ConfigError: flags that cannot be right together, or not with this model.
    """
    hinted = {key: value for key, value in _from_hints(hints).items() if key not in given}
    if "max_bytes" in given:
        hinted.pop("window", None)  # a flag wins: the window is the largest that fits
    try:
        return _resolved(given, hinted, layout, context)
    except ConfigError as error:
        if not hinted:
            raise
        asked = ", ".join(
            f"{flag.header} {hints[flag.header]}"
            for flag in FLAGS
            if flag.header is not None and flag.key in hinted
        )
        raise ConfigError(
            f"{error} (the file's header asks for {asked}; --kv-quantize full and "
            "--streaming-llm-window none override it)"
        ) from None


def _resolved(
    given: dict[str, object], hinted: dict[str, object], layout: CacheLayout, context: int
) -> Resolved:
    options = _with_defaults({**hinted, **given})
    max_bytes = options.pop("max_bytes")
    chunk = options.pop("prefill_chunk")
    options["group"] = int(str(options["group"]))
    options["window"] = None if options["window"] == "none" else options["window"]
    if "sink" not in given and options["window"] is None and max_bytes is None:
        options["sink"] = None  # a header's sink means nothing without a window
    assert chunk is None or isinstance(chunk, int)
    learned = all(layer.rope is None for layer in layout.layers)
    spec, notes = _sized(options, max_bytes, layout, context if learned else None)
    _refuse_idle(given, spec, learned)
    for layer in dict.fromkeys(layout.layers):
        storage_of(spec, layer, eviction_of(spec, layer), layout)  # refuses what it cannot store
    return Resolved(spec, chunk, notes)


def _from_hints(hints: dict[str, int]) -> dict[str, object]:
    found: dict[str, object] = {
        flag.key: hints[flag.header] for flag in FLAGS if flag.header in hints
    }
    if "precision" in found:
        found["precision"] = f"int{found['precision']}"
    if found.get("window") == 0:  # how writers say that there is none
        found["window"] = "none"
    return found


def _with_defaults(found: dict[str, object]) -> dict[str, object]:
    return {flag.key: found.get(flag.key, flag.default) for flag in FLAGS}


def _sized(
    options: dict[str, object], max_bytes: object, layout: CacheLayout, positions: int | None
) -> tuple[CacheSpec, tuple[str, ...]]:
    """The spec with its window chosen or cut, and the notes about that."""
    sink, window = options.pop("sink"), options.pop("window")
    if isinstance(max_bytes, int) and window is None:
        return _largest(CacheSpec(**options), sink, layout, max_bytes, positions)  # type: ignore[arg-type]
    spec = CacheSpec(**options, sink=sink, window=window)  # type: ignore[arg-type]
    notes: tuple[str, ...] = ()
    if positions is not None and spec.held is not None and spec.held > positions:
        spec, notes = _cut(spec, positions)
    if isinstance(max_bytes, int) and full_bytes(spec, layout) > max_bytes:
        raise ConfigError(
            f"--streaming-llm-window {spec.window} takes {full_bytes(spec, layout)} bytes, more "
            f"than --kv-max-bytes {max_bytes}; leave out one of them, or lower the window"
        )
    return spec, notes


def _largest(
    spec: CacheSpec, sink: object, layout: CacheLayout, max_bytes: int, positions: int | None
) -> tuple[CacheSpec, tuple[str, ...]]:
    most = MOST_WINDOW
    bounded = replace(spec, sink=sink, window=most)  # type: ignore[arg-type]
    if positions is not None:
        most = _room(bounded, positions)
    spec = largest_window(bounded, layout, max_bytes, most)
    note = f"--kv-max-bytes {max_bytes} holds --streaming-llm-window {spec.window} "
    return spec, (f"{note}({full_bytes(spec, layout)} bytes when full)",)


def _cut(spec: CacheSpec, positions: int) -> tuple[CacheSpec, tuple[str, ...]]:
    room = _room(spec, positions)
    note = (
        f"--streaming-llm-window {spec.window} is cut to {room}: with {spec.sinks} sinks this "
        f"model's {positions} learned positions hold no more"
    )
    try:
        return replace(spec, window=room), (note,)
    except ConfigError:
        raise ConfigError(
            f"{note}, and --kv-quantize {spec.precision} needs a window of at least "
            f"{spec.residual_for(room) + spec.group}: take --kv-quantize fp16, or fewer sinks"
        ) from None


def _room(spec: CacheSpec, positions: int) -> int:
    """The largest window that learned positions allow."""
    if spec.sinks >= positions:
        raise ConfigError(
            f"--streaming-llm-sink {spec.sinks} leaves no room in this model's {positions} "
            "learned positions; lower it"
        )
    return positions - spec.sinks


def _refuse_idle(given: dict[str, object], spec: CacheSpec, learned: bool) -> None:
    """A flag that would do nothing is refused, not ignored."""
    named = {flag.key: flag.flag for flag in FLAGS}
    for key in PACKED_ONLY:
        if key in given and spec.bits is None:
            raise ConfigError(
                f"{named[key]} has no meaning with --kv-quantize {spec.precision}, which packs "
                "nothing; leave it out, or take int8, int4, int3 or int2"
            )
    if "sink" in given and spec.window is None:
        raise ConfigError(
            f"--streaming-llm-sink {given['sink']} needs --streaming-llm-window: without a window "
            "nothing is evicted"
        )
    if given.get("window") == "none" and "max_bytes" in given:
        raise ConfigError(
            "--streaming-llm-window none keeps all tokens and --kv-max-bytes bounds them; leave "
            "out one of them"
        )
    if "positions" in given and spec.window is None:
        raise ConfigError(
            "--streaming-llm-positions needs --streaming-llm-window: without a window all "
            "positions are the tokens' own"
        )
    if "positions" in given and learned:
        raise ConfigError(
            "--streaming-llm-positions has no meaning for this model: its positions are learned, "
            "and the text starts again from position 0 when they run out; leave it out"
        )
