"""stdout takes the text, as UTF-8 bytes whatever the locale; stderr takes everything else."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tinygpt.errors import ConfigError

Say = Callable[[str], None]  # takes one line for the user, as `note` does


class OutputError(Exception):
    """stdout or a file could not be written, for a reason other than its reader having gone."""


class TextOutput:
    """Writes text to stdout at once. After the reader has gone, `closed`, it swallows the rest."""

    def __init__(self) -> None:
        if sys.stdout is None:
            raise OutputError("stdout is closed; there is nowhere to write the text")
        self.closed = False
        self.is_terminal = sys.stdout.isatty()
        self._ends_line = True

    def write(self, text: str) -> None:
        """Print and flush `text`.

        Raises:
            OutputError: the disk is full, or stdout fails in another way.
        """
        if self.closed or not text:
            return
        try:
            sys.stdout.buffer.write(text.encode("utf-8", "replace"))
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            self.closed = True
            silence_stdout()
        except OSError as error:
            silence_stdout()
            raise OutputError(f"cannot write to stdout: {error.strerror}") from error
        self._ends_line = text.endswith("\n")

    def end_line(self) -> None:
        """On a terminal, let what follows on stderr begin on a line of its own."""
        if self.is_terminal and not self._ends_line:
            self.write("\n")


def note(line: str) -> None:
    """One line on stderr. A stderr that cannot be written is not worth failing for."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(line, file=sys.stderr, flush=True)


def interruption(anything: bool) -> str:
    """What to say after Ctrl-C, by whether there is a result to print."""
    return "interrupted; " + ("what is done follows" if anything else "nothing was finished")


def silence_stdout() -> None:
    """Send what is still buffered nowhere, so that Python does not complain when it exits."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def check_writable(path: Path, flag: str) -> None:
    """Refuse, before any work is done, a file that could not be written at the end.

    Raises:
        ConfigError: the directory does not exist or is not writable, or `path` is a directory.
    """
    if path.is_dir():
        raise ConfigError(f"{flag} {path} is a directory; give the name of a file")
    if not path.parent.is_dir():
        raise ConfigError(f"{flag} {path}: there is no directory {path.parent}; create it first")
    place = path if path.exists() and not path.is_file() else path.parent
    if not os.access(place, os.W_OK):
        raise ConfigError(f"{flag} {path}: {place} is not writable; choose another place")


def check_apart(outputs: Mapping[str, Path | None], inputs: Sequence[Path]) -> None:
    """Refuse an output that would replace an input, or another output; by their flags.

    Raises:
        ConfigError: two of them are one file.
    """
    taken = {file.resolve(): str(file) for given in inputs for file in files_of(given)}
    for flag, path in outputs.items():
        if path is None or (path.exists() and not path.is_file()):
            continue  # a device or a pipe takes anything
        known = taken.get(path.resolve())
        if known is not None:
            raise ConfigError(f"{flag} {path} would replace {known}; choose another name")
        taken[path.resolve()] = f"{flag} {path}"


def files_of(model: Path) -> list[Path]:
    """A model's files: itself, or what lies in its directory."""
    return sorted(model.iterdir()) if model.is_dir() else [model]


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system says of writing `path` becomes an OutputError that names it."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Replace `path` with `content`, whole or not at all; a pipe or device is just written to.

    Raises:
        OutputError: it cannot be written.
    """
    text = json.dumps(content, indent=2) + "\n"  # ASCII: a path may hold bytes that are no UTF-8
    with writing(path):
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        _replace(path, text)


def _replace(path: Path, text: str) -> None:
    place = path.resolve()  # a link stays a link
    mask = os.umask(0)
    os.umask(mask)
    descriptor, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o666 & ~mask)
            file.write(text)
        os.replace(name, place)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
