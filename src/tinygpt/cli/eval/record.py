"""What `tinygpt eval` has measured so far, and the JSON file it is kept in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tinygpt.cli.output import write_json
from tinygpt.errors import ConfigError
from tinygpt.evaluate.greedy import Match
from tinygpt.evaluate.passkey import Retrieval
from tinygpt.evaluate.summary import Range, Result

OPTIONAL = ("texts", "greedy_tokens")  # what one run may ask for and another not


@dataclass(slots=True)
class Record:
    """`run` says what was asked, results apart; `unfinished` names caches that were interrupted.

    The lists are in the order in which things were measured.
    """

    run: dict[str, object]
    results: list[Result] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    greedy: list[Match] = field(default_factory=list)
    passkey: list[Retrieval] = field(default_factory=list)

    def finished(self, cache: str) -> bool:
        """Has `cache` been scored to the end?"""
        return any(result.cache == cache for result in self.results)

    def write(self, path: Path) -> None:
        """Replace `path`, whole or not at all."""
        write_json(
            path,
            {
                **self.run,
                "results": [asdict(result) for result in self.results],
                "unfinished": self.unfinished,
                "greedy": [asdict(match) for match in self.greedy],
                "passkey": [asdict(found) for found in self.passkey],
            },
        )

    def resume(self, path: Path) -> None:
        """Take over what `path` holds; nothing, if there is no such file.

        Raises:
            ConfigError: it is damaged, or was made for another run.
        """
        if not path.exists():
            return
        try:
            old = json.loads(path.read_text(encoding="utf-8"))
            self._check(old, path)
            unfinished = set(old["unfinished"])
            self.results = [
                _result(item) for item in old["results"] if item["cache"] not in unfinished
            ]
            self.greedy = [Match(**item) for item in old["greedy"]]
            self.passkey = [Retrieval(**item) for item in old["passkey"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(
                f"--resume: {path} is no result of tinygpt eval ({reason}); name another --json"
            ) from error

    def _check(self, old: Mapping[str, object], path: Path) -> None:
        for name, value in self.run.items():
            before = old[name]
            if name in OPTIONAL and not (before and value):
                self.run[name] = value or before
            elif before != value:
                then, now = _difference(before, value)
                raise ConfigError(
                    f"--resume: {path} was made with {name} {then}, this run has {now}; give the "
                    "same, or another --json"
                )


def text_entries(names: Iterable[str], digests: Iterable[str], tokens: Iterable[int]) -> object:
    """How the texts are named in the file: a list of file, sha256, tokens."""
    return [
        {"file": name, "sha256": digest, "tokens": count}
        for name, digest, count in zip(names, digests, tokens, strict=True)
    ]


def _result(item: Mapping[str, object]) -> Result:
    parts = item["by_position"]
    if not isinstance(parts, list):
        raise ValueError("by_position is no list")
    for name, value in item.items():
        if name not in ("cache", "by_position") and not isinstance(value, int | float | None):
            raise ValueError(f"{name} is {value!r}, no number")
    return Result(**{**item, "by_position": tuple(Range(**part) for part in parts)})  # type: ignore[arg-type]


def _difference(before: object, now: object) -> tuple[str, str]:
    """Two values that differ, in short: of two lists of objects only what the first two differ in.

    Where one list is longer, how long both are.
    """
    if isinstance(before, list) and isinstance(now, list):
        if len(before) != len(now):
            return f"{len(before)} of them", str(len(now))
        one, other = next(pair for pair in zip(before, now, strict=True) if pair[0] != pair[1])
        if isinstance(one, dict) and isinstance(other, dict):
            keys = [key for key in one if one[key] != other.get(key)]
            before, now = ({key: item.get(key) for key in keys} for item in (one, other))
    return _brief(before), _brief(now)


def _brief(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 160 else text[:159] + "…"
