"""Ctrl-C and SIGTERM as one polite stop. The second signal ends the process at once."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType

STOPPING = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """A signal came. Not an `Exception`, so that no handler for failures swallows it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.status = 128 + number


class Signals:
    """While entered, a signal raises `Interrupted`, or, once `patient`, is only remembered.

    The generation loop is patient: it asks `received` between tokens, so that a token is either
    printed and counted or neither.
    """

    def __init__(self) -> None:
        self.patient = False
        self.received: int | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Signals:
        for number in STOPPING:
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @property
    def status(self) -> int:
        """What to exit with: 0 while no signal has come."""
        return 0 if self.received is None else 128 + self.received

    def check(self) -> None:
        """Raise `Interrupted` if a signal has come; for places where a patient loop may stop."""
        if self.received is not None:
            raise Interrupted(self.received)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            os._exit(128 + number)
        self.received = int(number)
        if not self.patient:
            raise Interrupted(number)
