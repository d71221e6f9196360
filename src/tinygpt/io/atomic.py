"""Files and directories that appear whole or not at all, whatever happens in between.

Everything is written under another name in the same directory, flushed to the disk, then renamed.
An exception, a signal that raises one included, removes it; a process that is killed leaves a
hidden file beside the old one, which stays as it was.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that becomes `path` when the block ends without an exception.

    Raises:
        OSError: it cannot be written, for instance because the disk is full.
    """
    place = path.resolve()  # a link stays a link
    descriptor, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
    try:
        with os.fdopen(descriptor, "w+b") as file:
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, place)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    sync_directory(place.parent)


@contextlib.contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """A directory to fill that becomes `path`, absent or empty before, when the block ends.

    Raises:
        OSError: it cannot be written, or `path` is not empty.
    """
    place = path.resolve()
    name = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{place.name}."))
    try:
        name.chmod(0o777 & ~_umask())
        yield name
        sync_directory(name)
        os.rename(name, place)
    except BaseException:
        shutil.rmtree(name, ignore_errors=True)
        raise
    sync_directory(place.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory last; file systems that cannot do that are let be."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
