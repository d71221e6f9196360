"""What a command line names is read: a file, or stdin for `-`; text is UTF-8."""

from __future__ import annotations

import sys
from pathlib import Path

from tinygpt.errors import ConfigError

STDIN = "-"


def read_file(name: str, flag: str) -> bytes:
    """The bytes of a file, or of stdin for `-`; ConfigError if it cannot be read."""
    try:
        return sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
    except (OSError, ValueError, AttributeError) as error:
        reason = getattr(error, "strerror", None) or "it is closed"
        raise ConfigError(f"{flag} {name}: {reason}") from error


def decode_utf8(data: bytes, name: str) -> str:
    """`data` as text; ConfigError with the offset of the first byte that is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{name} is not UTF-8 at byte {error.start} (0x{data[error.start]:02x}); "
            "convert it to UTF-8 first"
        ) from error
