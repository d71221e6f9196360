#!/usr/bin/env python3
"""Write docs/cli.md: the --help text of every command, as a terminal of 96 columns shows it."""

from __future__ import annotations

from pathlib import Path

import click

from tinygpt.cli.main import COMMANDS, cli

TARGET = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
WIDTH = 96
HEAD = """# Command line

Text goes to stdout, everything else to stderr. Exit status: 0 done, 1 failed while running, 2
refused (usage or input), 130 and 143 interrupted. This page is written by
`python scripts/write_cli_docs.py`; a test checks that it is up to date.
"""


def help_text(name: str) -> str:
    """The help of `tinygpt NAME`."""
    with cli.make_context("tinygpt", ["--help"], resilient_parsing=True) as parent:
        command = cli.get_command(parent, name)
        assert command is not None
        with click.Context(
            command, info_name=name, parent=parent, max_content_width=WIDTH, terminal_width=WIDTH
        ) as context:
            return "\n".join(line.rstrip() for line in command.get_help(context).splitlines())


def page() -> str:
    """All of docs/cli.md."""
    parts = [f"## tinygpt {name}\n\n```\n{help_text(name)}\n```\n" for name in sorted(COMMANDS)]
    return "\n".join([HEAD, *parts])


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
