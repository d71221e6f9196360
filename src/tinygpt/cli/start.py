"""The process's entry: a signal that comes before the program is loaded ends it without a word."""

from __future__ import annotations

import os
import signal
from types import FrameType


def main() -> None:
    """Run the command line, see `cli.main`. Its own handlers stand in front of these."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and `command &` ignore it
            signal.signal(number, _end)
    from tinygpt.cli.main import main as run

    run()


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)
