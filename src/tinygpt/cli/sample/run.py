"""One generation on its way to stdout: text, signals, progress; then the report."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from tinygpt import __version__
from tinygpt.cache.report import describe_cache
from tinygpt.cli.output import Say, TextOutput, write_json
from tinygpt.cli.progress import Progress, stderr_is_terminal
from tinygpt.cli.sample.options import SampleOptions
from tinygpt.cli.sample.prompt import Prompt
from tinygpt.cli.sample.report import Figures, cache_json, figures_json, finish_line, report_line
from tinygpt.cli.sample.session import Session
from tinygpt.cli.signals import Interrupted, Signals
from tinygpt.errors import GenerationError
from tinygpt.generate import Generation
from tinygpt.memory import peak_memory
from tinygpt.sampling import Sampler
from tinygpt.text_stream import TextStream
from tinygpt.uncached import UncachedGeneration

AnyGeneration = Generation | UncachedGeneration


@dataclass(frozen=True, slots=True)
class Ending:
    """How a generation ended: `reason`, and the error that is to be raised after the report."""

    reason: str
    error: GenerationError | None = None


class Run:
    """Generates for one command line. `go` is called once."""

    def __init__(
        self,
        options: SampleOptions,
        session: Session,
        output: TextOutput,
        say: Say,
        signals: Signals,
    ) -> None:
        self._options, self._session = options, session
        self._output, self._say, self._signals = output, say, signals
        self._sampler = Sampler(options.sampling, session.ids)
        self._text = TextStream(session.tokenizer, options.stop)
        shown = stderr_is_terminal()
        self._prefill_progress = Progress("prefill", len(session.ids), shown)
        self._decode_progress = Progress("text", options.tokens, shown and not output.is_terminal)
        self._generation = self._generate()

    def go(self, prompt: Prompt) -> int:
        """Print the text, then the report, and return the exit status.

        Raises:
            GenerationError: after the text so far and the report.
            OutputError: at once; there is nowhere to print the rest.
        """
        if self._options.sampling.seed is None and not self._options.sampling.greedy:
            self._say(f"seed {self._sampler.seed} (--seed {self._sampler.seed} repeats this text)")
        self._signals.patient = True
        if self._options.echo:
            self._output.write(prompt.text or self._text.echo(prompt.ids))
        ending = self._stream()
        self._output.end_line()
        self._report(ending.reason)
        if ending.error is not None:
            raise ending.error
        return self._signals.status

    def _generate(self) -> AnyGeneration:
        session, options = self._session, self._options
        stop_ids = frozenset() if options.ignore_eos else session.tokenizer.eos_ids
        if session.cache is None:
            return UncachedGeneration(
                session.model,
                session.ids,
                self._sampler,
                tokens=options.tokens,
                stop_ids=stop_ids,
                on_prefill=self._prefilled,
            )
        return Generation(
            session.model,
            session.cache,
            session.ids,
            self._sampler,
            tokens=options.tokens,
            stop_ids=stop_ids,
            prefill_chunk=session.prefill_chunk,
            on_prefill=self._prefilled,
        )

    def _prefilled(self, done: int) -> None:
        self._prefill_progress.reach(done)
        self._signals.check()

    def _stream(self) -> Ending:
        """Print token after token, and at the end, whatever it is, what was held back."""
        self._prefill_progress.reach(0)
        try:
            return Ending(self._print_tokens())
        except Interrupted:
            return Ending("interrupted")
        except GenerationError as error:
            return Ending("error", error)
        finally:
            self._prefill_progress.close()
            self._decode_progress.close()
            self._output.write(self._text.finish())

    def _print_tokens(self) -> str:
        for token in self._generation:
            self._output.write(self._text.push(token))
            self._decode_progress.reach(self._generation.decode_tokens)
            if self._text.stopped:
                return "stop"
            if self._output.closed:
                return "closed"
            self._signals.check()
        return self._generation.finish_reason or "length"

    def _report(self, reason: str) -> None:
        generation, cache = self._generation, self._session.cache
        figures = Figures(
            prompt_tokens=len(self._session.ids),
            prefill_tokens=generation.prefill_tokens,
            prefill_seconds=generation.prefill_seconds,
            generated_tokens=generation.decode_tokens,
            decode_seconds=generation.decode_seconds,
        )
        line = finish_line(reason, cached=cache is not None)
        if line is not None:
            self._say(line)
        self._say(report_line(figures, cached=cache is not None))
        if cache is not None:
            self._say(describe_cache(cache, generation.seen))
        if self._options.stats_json is not None:
            write_json(self._options.stats_json, self._stats(figures, reason))

    def _stats(self, figures: Figures, reason: str) -> dict[str, object]:
        cache = self._session.cache
        on_gpu = mx.default_device() == mx.Device(mx.gpu)
        return {
            "version": __version__,
            "model": str(self._options.model),
            "device": "gpu" if on_gpu else "cpu",
            "seed": None if self._options.sampling.greedy else self._sampler.seed,
            "finish_reason": reason,
            **figures_json(figures),
            "cache": None if cache is None else cache_json(cache, self._generation.seen),
            "peak_memory": mx.get_peak_memory(),
            "process_peak_memory": peak_memory(),
        }
