"""One evaluation: measure, keep what is done whatever comes, print the tables."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from tinygpt import __version__
from tinygpt.cache import CacheSpec
from tinygpt.cli.device import LONG_PREFILL, advise
from tinygpt.cli.eval.inputs import digest, open_inputs
from tinygpt.cli.eval.options import EvalOptions
from tinygpt.cli.eval.record import Record, text_entries
from tinygpt.cli.eval.table import (
    greedy_table,
    passkey_table,
    position_table,
    quality_csv,
    quality_table,
)
from tinygpt.cli.output import TextOutput, interruption, note, writing
from tinygpt.cli.progress import Progress, stderr_is_terminal
from tinygpt.cli.signals import Interrupted, Signals
from tinygpt.evaluate.cache_text import FULL
from tinygpt.evaluate.greedy import GreedyMatch
from tinygpt.evaluate.passkey import Retrieval, found, haystack
from tinygpt.evaluate.quality import Candidate, Quality, candidate

TOGETHER = 4  # caches that share one run of the reference, and are lost together by --resume


class EvalRun:
    """Measures what one command line asks for. `go` is called once.

    Raises:
        TinyGPTError: the request or the model is refused; nothing has been measured.
    """

    def __init__(self, options: EvalOptions, signals: Signals) -> None:
        self._options, self._signals = options, signals
        self._inputs = open_inputs(options, note)
        self._record = Record(self._describe())
        if options.resume and options.json is not None:
            self._record.resume(options.json)
        model = self._inputs.model
        self._texts = [named.text for named in self._inputs.texts]
        self._candidates = [
            candidate(model, name, spec) for name, spec in self._inputs.caches.items()
        ]
        self._full = candidate(model, FULL, CacheSpec())
        if options.versus is not None:
            self._candidates += self._rivals()
        self._done = 0
        total = self._total()
        if total > LONG_PREFILL:
            advise(note)
        self._progress = Progress("eval", total, stderr_is_terminal())

    def go(self, output: TextOutput) -> int:
        """Measure, print, and return the exit status.

        Raises:
            GenerationError: after the tables of what was done before.
        """
        self._signals.patient = True
        try:
            self._measure()
        except Interrupted:
            record = self._record
            note(interruption(bool(record.results or record.greedy or record.passkey)))
        finally:
            self._progress.close()
            self._write(output)
        return self._signals.status

    def _measure(self) -> None:
        if self._options.text:
            missing = [one for one in self._candidates if not self._record.finished(one.name)]
            for low in range(0, len(missing), TOGETHER):
                self._score(missing[low : low + TOGETHER])
        if self._options.greedy:
            for prompt in self._inputs.prompts:
                self._match(prompt, self._options.greedy)
        if self._options.passkey:
            for name, spec in self._inputs.caches.items():
                self._search(name, spec)

    def _score(self, ones: Sequence[Candidate]) -> None:
        """Score the caches `ones` in lockstep; on an interruption each has what was done."""
        record, options = self._record, self._options
        reference = next((one for one in ones if one.name == FULL), self._full)
        quality = Quality(ones, reference, chunk=options.prefill_chunk, batch=options.batch)
        base = self._done
        complete = False
        try:
            quality.run(self._texts, lambda fed: self._reach(base + fed))
            complete = True
        finally:
            for result in quality.results:
                if complete or result.tokens:
                    record.results.append(result)
                if not complete:
                    record.unfinished.append(result.cache)
        self._save()

    def _match(self, prompt: str, tokens: int) -> None:
        record = self._record
        known = {(match.cache, match.prompt) for match in record.greedy}
        missing = [name for name in self._inputs.caches if (name, prompt) not in known]
        if not missing:
            return
        ids = self._inputs.tokenizer.encode(prompt)
        match = GreedyMatch(self._inputs.model, prompt, ids, tokens, self._signals.check)
        self._reach(self._done + tokens)
        for name in missing:
            record.greedy.append(match.compare(name, self._inputs.caches[name]))
            self._reach(self._done + tokens)
        self._save()

    def _search(self, name: str, spec: CacheSpec) -> None:
        record, options = self._record, self._options
        known = {(one.cache, one.length, one.depth) for one in record.passkey}
        for length, depth in self._cells():
            if (name, length, depth) in known or self._too_long(name, spec, length):
                continue
            hits = sum(self._finds(spec, length, depth, trial) for trial in range(options.trials))
            record.passkey.append(Retrieval(name, length, depth, options.trials, hits))
            self._save()

    def _finds(self, spec: CacheSpec, length: int, depth: float, trial: int) -> bool:
        tokenizer = self._inputs.tokenizer
        start = tokenizer.encode("") if tokenizer.add_bos else []
        text = haystack(tokenizer.encode_plain, start, length, depth, self._options.seed + trial)
        hit = found(self._inputs.model, spec, text, tokenizer.decode, self._signals.check)
        self._reach(self._done + length)
        return hit

    def _too_long(self, name: str, spec: CacheSpec, length: int) -> bool:
        config = self._inputs.model.config
        if config.rope is not None or spec.held is not None or length <= config.context:
            return False
        note(f"{name}: {length} tokens do not fit in {config.context} learned positions; left out")
        return True

    def _cells(self) -> list[tuple[int, float]]:
        return [
            (length, depth) for length in self._options.lengths for depth in self._options.depths
        ]

    def _total(self) -> int:
        """Tokens that are still to be fed, for the progress line."""
        options, record = self._options, self._record
        total = sum(
            one.reach(text)
            for one in self._candidates
            if not record.finished(one.name)
            for text in self._texts
        )
        caches = len(self._inputs.caches)
        total += (options.greedy or 0) * len(self._inputs.prompts) * (caches + 1)
        if options.passkey:
            total += caches * options.trials * sum(length for length, _ in self._cells())
        return total

    def _reach(self, done: int) -> None:
        """`done` tokens are fed; a place where the run may stop."""
        self._done = done
        self._progress.reach(done)
        self._signals.check()

    def _rivals(self) -> list[Candidate]:
        """mlx-lm's caches for the specs that it has; the others are named."""
        from tinygpt.evaluate.mlx_lm import MlxLm

        peer = MlxLm(self._inputs.model)
        rivals = []
        for name, spec in self._inputs.caches.items():
            reason = peer.refuses(spec)
            if reason is None:
                rivals.append(peer.candidate(name, spec))
                if spec.window is not None and self._options.prefill_chunk > 1:
                    note(
                        f"mlx-lm {name}: its bounded cache hides its sinks from all queries of a "
                        "chunk, and holds the chunk; --prefill-chunk 1 shows what it decodes with"
                    )
            else:
                note(f"{name}: mlx-lm {reason}")
        return rivals

    def _describe(self) -> dict[str, object]:
        """What was asked, but for the caches: what --resume needs to be the same."""
        options, texts = self._options, self._inputs.texts
        on_gpu = mx.default_device() == mx.Device(mx.gpu)
        return {
            "version": __version__,
            "model": str(options.model),
            "model_digest": digest(options.model),
            "device": "gpu" if on_gpu else "cpu",
            "weights_dtype": options.weights_dtype,
            "context": self._inputs.model.config.context,
            "texts": text_entries(
                [named.name for named in texts],
                [named.digest for named in texts],
                [len(named.text.ids) for named in texts],
            ),
            "greedy_tokens": options.greedy,
            "trials": options.trials,
            "seed": options.seed,
        }

    def _save(self) -> None:
        if self._options.json is not None:
            self._record.write(self._options.json)

    def _write(self, output: TextOutput) -> None:
        record, options = self._record, self._options
        parts = []
        if options.text:
            parts += [quality_table(record.results), position_table(record.results)]
            parts.append("".join(f"{line}\n" for line in self._remarks()))
        if record.greedy:
            parts.append(greedy_table(record.greedy))
        if record.passkey:
            parts.append(passkey_table(record.passkey))
        output.write("\n".join(part for part in parts if part))
        self._save()
        if options.csv is not None:
            with writing(options.csv):
                options.csv.write_text(quality_csv(record.results), encoding="utf-8")

    def _remarks(self) -> list[str]:
        """What the table cannot say: texts without a score, caches that stopped early."""
        lines = [
            f"{named.name} has {len(named.text.ids)} token(s): nothing can be scored"
            for named in self._inputs.texts
            if len(named.text.ids) < 2
        ]
        context = self._inputs.model.config.context
        short = [
            one.name
            for one in self._candidates
            if any(one.reach(text) < len(text.ids) - 1 for text in self._texts)
        ]
        if short:
            lines.append(
                f"up to the model's context of {context} tokens, for want of a window: "
                + "; ".join(short)
            )
        lines += [f"interrupted before its end: {name}" for name in self._record.unfinished]
        return lines
