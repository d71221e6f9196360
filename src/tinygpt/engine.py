"""Feeds tokens of one text or of several to a model through their caches. Nothing else does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from tinygpt.cache import CacheSpec, KVCache
from tinygpt.cache.rows import Rows
from tinygpt.cache.text import Token
from tinygpt.errors import CacheError, ConfigError
from tinygpt.models.config import ModelConfig
from tinygpt.models.transformer import Transformer, check_ids
from tinygpt.ops.backend import block_sizes

CLEAR_EVERY = 256  # tokens, after which MLX gives back buffers of shapes that have outgrown


@dataclass(frozen=True, slots=True)
class Restart:
    """How a bounded text goes on where learned positions end.

    The token that would need position `context` finds the cache emptied and refilled from position
    0: the `sinks`, then the `kept` = ⌊(C − S)/2⌋ last tokens, C being the cap S + W or the context,
    whichever is less. When that happens depends on the number of tokens alone.
    """

    context: int
    sinks: int
    kept: int


def restart_rule(config: ModelConfig, spec: CacheSpec) -> Restart | None:
    """The rule for a cache of `spec`; None where positions do not end or the cache does not move.

    Raises:
        ConfigError: the sinks leave no room in the learned positions.
    """
    if config.rope is not None or spec.held is None:
        return None
    if spec.sinks >= config.context:
        raise ConfigError(
            f"{spec.sinks} sinks leave no room in {config.context} learned positions; take fewer"
        )
    kept = (min(spec.held, config.context) - spec.sinks) // 2
    return Restart(config.context, spec.sinks, kept)


class Engine:
    """Feeds texts, row b through `caches[b]`, a cache of one text each.

    Rows may differ in length, position and spec: each is what it would be alone, to the rounding of
    a product of another shape. The engine keeps nothing of a text, the cache does: several engines
    may take turns on it. `chunk` is how many tokens of a row are fed at once, None: what suits the
    device.

    Raises:
        ConfigError: there is no cache, or one for two rows; learned positions end and the sinks
            leave no room in them.
        CacheError: such a cache holds tokens that no engine fed, so it could not start again.
    """

    def __init__(
        self, model: Transformer, caches: Sequence[KVCache], *, chunk: int | None = None
    ) -> None:
        if not caches or len({id(cache) for cache in caches}) < len(caches):
            raise ConfigError(f"{len(caches)} caches: an engine needs one for each row, at least 1")
        self.model, self.caches = model, tuple(caches)
        self._chunk = chunk or block_sizes().prefill_chunk
        self._rules = [restart_rule(model.config, cache.spec) for cache in self.caches]
        for cache, rule in zip(self.caches, self._rules, strict=True):
            if rule is not None and cache.text.told != cache.total:
                raise CacheError(
                    f"the cache has seen {cache.total} tokens, an engine fed {cache.text.told} of "
                    "them: feed all of a text through Engine or Generation, or reset the cache"
                )

    @property
    def row_bytes(self) -> list[int]:
        """Bytes of each row's buffers."""
        return [cache.nbytes for cache in self.caches]

    @property
    def room(self) -> int | None:
        """How many more tokens fit into every row; None where there is no end."""
        config = self.model.config
        if config.rope is not None:
            return None
        bounded = zip(self.caches, self._rules, strict=True)
        left = [config.context - cache.position for cache, rule in bounded if rule is None]
        return min(left, default=None)

    def expect(self, tokens: Sequence[int]) -> None:
        """How many tokens each row is still going to get: buffers grow no further than that."""
        for cache, more in zip(self.caches, tokens, strict=True):
            cache.reserve(cache.seen + len(cache.text.unfed) + more)

    def feed(
        self,
        rows: Sequence[Sequence[int]],
        *,
        last: int | None = None,
        report: Callable[[int], None] = lambda done: None,
    ) -> list[mx.array]:
        """Logits [n, V], evaluated, of each row's tokens fed now or of only the `last` n.

        A row's unfed tokens come first, then its ids, of which there may be none. `report` is told
        after each chunk how many tokens of all rows are done.

        Raises:
            ConfigError: an id is not in the vocabulary.
            CacheError: a row passes the end of learned positions.
        """
        for ids in rows:
            check_ids(ids, self.model.config.vocab_size)
        todo = [self._with_unfed(cache, ids) for cache, ids in zip(self.caches, rows, strict=True)]
        wanted = [0 if last is None else len(ids) - last for ids in todo]  # from here on
        done, found = [0] * len(todo), [list[mx.array]() for _ in todo]
        while any(at < len(ids) for at, ids in zip(done, todo, strict=True)):
            counts = [self._next(row, len(ids) - done[row]) for row, ids in enumerate(todo)]
            pieces = [ids[at : at + n] for ids, at, n in zip(todo, done, counts, strict=True)]
            skipped = [max(0, low - at) for low, at in zip(wanted, done, strict=True)]
            logits = self._chunk_logits(pieces, skipped)
            for row, of_row in enumerate(logits):
                found[row] += [] if of_row is None else [of_row]
            done = [at + n for at, n in zip(done, counts, strict=True)]
            report(sum(done))
        none = mx.zeros((0, self.model.config.vocab_size))
        return [_joined(pieces) if pieces else none for pieces in found]

    def launch(self, tokens: mx.array) -> mx.array:
        """Start computing the logits [B, V] after one more of `tokens` [B] for each row.

        They are not waited for, and `tokens` may be on their way as well: while the device computes
        the host can read a token, print it, or build a mask.

        Raises:
            CacheError: a row passes the end of learned positions, or has unfed tokens.
        """
        for row, cache in enumerate(self.caches):
            if cache.text.unfed:
                raise CacheError("tokens of the text are not fed yet, so feed comes before launch")
            self._next(row, 1)
        counts = [1] * len(self.caches)
        logits = self.model.logits(self._hidden(tokens.reshape(1, -1), self.caches, counts))[0]
        for row in range(len(self.caches)):
            self._remember(row, [tokens.reshape(-1)[row]])
        if self.caches[0].seen % CLEAR_EVERY == 0:
            mx.clear_cache()
        mx.async_eval(logits)
        return logits

    def undo(self, tokens: Sequence[int]) -> None:
        """Forget the last `tokens` of each row, those that are unfed first.

        Raises:
            CacheError: further back than a row's slack, or over a restart; no row has changed then.
        """
        fed = [max(0, n - len(c.text.unfed)) for c, n in zip(self.caches, tokens, strict=True)]
        for cache, count in zip(self.caches, fed, strict=True):
            cache.check_undo(count)
        for cache, count, all_of_it in zip(self.caches, fed, tokens, strict=True):
            unfed = cache.text.unfed
            del unfed[max(0, len(unfed) - all_of_it) :]
            cache.undo(count)

    def _with_unfed(self, cache: KVCache, ids: Sequence[int]) -> list[int]:
        unfed = [int(token) for token in cache.text.unfed]
        cache.text.unfed.clear()
        return [*unfed, *map(int, ids)]

    def _next(self, row: int, left: int) -> int:
        """How many of `left` tokens the row takes now; it starts again if that would be none."""
        rule, cache = self._rules[row], self.caches[row]
        if rule is None or not left:
            return min(self._chunk, left)
        if cache.position == rule.context:
            self._restart(cache, rule)
        return min(self._chunk, left, rule.context - cache.position)

    def _restart(self, cache: KVCache, rule: Restart) -> None:
        again = cache.text.ends(rule.sinks, rule.kept)
        cache.restart(len(again))
        for start in range(0, len(again), self._chunk):
            self.model.hidden(mx.array([again[start : start + self._chunk]]), cache)
            mx.eval(cache.evaluated())
        cache.settle()

    def _chunk_logits(
        self, pieces: Sequence[list[int]], skipped: Sequence[int]
    ) -> list[mx.array | None]:
        """Evaluated logits of each row's piece but for those `skipped`; None where none is left."""
        rows = [row for row, piece in enumerate(pieces) if piece]
        counts = [len(pieces[row]) for row in rows]
        ids = mx.array([[token for row in rows for token in pieces[row]]], dtype=mx.int32)
        caches = [self.caches[row] for row in rows]
        x = self._hidden(ids, caches, counts)  # [1, ΣT, C]
        logits: list[mx.array | None] = [None] * len(pieces)
        end = 0
        for row, count in zip(rows, counts, strict=True):
            self._remember(row, pieces[row])
            start, end = end + skipped[row], end + count
            if start < end:
                logits[row] = self.model.logits(x[:, start:end])[0]
        mx.eval([one for one in logits if one is not None], [c.evaluated() for c in caches])
        mx.clear_cache()
        return logits

    def _hidden(self, ids: mx.array, caches: Sequence[KVCache], counts: Sequence[int]) -> mx.array:
        """The model's output [1, ΣT, C] for the rows' next `counts` tokens, end to end."""
        return self.model.hidden(ids, caches[0] if len(caches) == 1 else Rows(caches, counts))

    def _remember(self, row: int, tokens: Sequence[Token]) -> None:
        rule, cache = self._rules[row], self.caches[row]
        if rule is not None:
            cache.text.add(tokens, rule.sinks, rule.kept + cache.spec.slack)


def _joined(pieces: list[mx.array]) -> mx.array:
    return pieces[0] if len(pieces) == 1 else mx.concatenate(pieces)
