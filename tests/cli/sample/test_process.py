"""`tinygpt sample` as the shell sees it: pipes, signals, statuses, a stdin that is not ours."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import shlex
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ENDLESS = ("--tokens", "unlimited", "--streaming-llm-window", 32, "--seed", 1, "--ignore-eos")
DEADLINE = 60.0  # seconds to print the first text, on a machine that is busy with other things

Start = Callable[..., subprocess.Popen[bytes]]


def read_some(process: subprocess.Popen[bytes], count: int) -> bytes:
    """The first `count` bytes of its stdout."""
    assert process.stdout is not None
    data = b""
    while len(data) < count:
        piece = os.read(process.stdout.fileno(), count - len(data))
        assert piece, f"it ended after {data!r}"
        data += piece
    return data


def read_terminal(master: int) -> bytes:
    """All that was shown on a terminal whose writer has ended."""
    shown = b""
    with contextlib.suppress(OSError):  # how a terminal without a writer ends
        while piece := os.read(master, 4096):
            shown += piece
    os.close(master)
    return shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_a_signal_flushes_the_text_prints_the_report_and_writes_the_figures(
    process: Start, tinygpt: Callable, learned: Path, tmp_path: Path, number: signal.Signals
) -> None:
    stats = tmp_path / "stats.json"
    run = ("sample", learned, "--prompt", "a", *ENDLESS, "--stats-json", stats)
    with process(*run) as running:
        head = read_some(running, 40)
        running.send_signal(number)
        rest, err = running.communicate(timeout=DEADLINE)
    assert running.returncode == 128 + number, err.decode()
    notes = err.decode()
    assert "Traceback" not in notes and "KV cache:" in notes and "interrupted" in notes
    figures = json.loads(stats.read_text())
    assert figures["finish_reason"] == "interrupted"
    window = ENDLESS[2:]
    repeat = tinygpt(*run[:4], "--tokens", figures["generated_tokens"], *window)
    assert head + rest == repeat.text, "every counted token was printed, and no other"


def test_a_second_signal_ends_a_process_whose_reader_has_stalled(
    process: Start, learned: Path
) -> None:
    with process("sample", learned, *ENDLESS) as running:
        read_some(running, 10)
        for _ in range(2):  # nobody reads on, so it soon blocks in a write and stays there
            time.sleep(1.5)
            running.send_signal(signal.SIGINT)
        assert running.wait(timeout=DEADLINE) == 130
        assert running.stderr is not None and b"Traceback" not in running.stderr.read()


def test_an_interrupt_while_loading_is_quiet(process: Start, tmp_path: Path) -> None:
    """The prompt is read from a pipe that stays open: it waits there, with everything imported."""
    with process("sample", tmp_path, "--prompt-file", "-", stdin=subprocess.PIPE) as running:
        time.sleep(2)
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=DEADLINE) == 130
        assert running.stderr is not None and running.stderr.read() == b""


def test_head_gets_its_bytes_and_nobody_complains(learned: Path) -> None:
    command = shlex.join([sys.executable, "-m", "tinygpt", "sample", str(learned)])
    options = " ".join(map(str, ENDLESS))
    script = f"{command} --prompt 0123456789 {options} | head -c 5; echo; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=DEADLINE)
    assert done.stdout == b"01234\n0\n"
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [["--help"], ["sample", "--help"], ["inspect", "MODEL"]], ids=str
)
def test_a_reader_that_leaves_at_once_is_no_error(learned: Path, arguments: list[str]) -> None:
    given = [str(learned) if word == "MODEL" else word for word in arguments]
    command = shlex.join([sys.executable, "-m", "tinygpt", *given])
    script = f"{{ sleep 0.2; {command}; echo $? >&2; }} | true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=DEADLINE)
    assert done.stderr == b"0\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["sample"], ["inspect"], ["--help"]], ids=str)
def test_a_full_disk_is_status_one_with_one_line(
    tinygpt: Callable, learned: Path, arguments: list[str]
) -> None:
    more = [] if arguments == ["--help"] else [learned]
    quiet = ["--quiet"] if arguments == ["sample"] else []
    with open("/dev/full", "wb") as full:
        done = tinygpt(*arguments, *more, *quiet, stdout=full)
    assert done.status == 1 and done.notes.count("\n") == 1 and "No space left" in done.notes


def test_a_loop_that_reads_lines_keeps_them_when_a_prompt_is_given(learned: Path) -> None:
    command = shlex.join([sys.executable, "-m", "tinygpt", "sample", str(learned)])
    script = (
        "printf '%s\\n' one two three | while read -r line; do "
        f'{command} --prompt "$line" --tokens 0 --quiet; echo; done'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=DEADLINE)
    assert done.stdout == b"one\ntwo\nthree\n"


def test_a_piped_or_redirected_prompt_is_taken_as_it_is(
    tinygpt: Callable, learned: Path, tmp_path: Path
) -> None:
    text = "größte\n"
    file = tmp_path / "prompt.txt"
    file.write_text(text)
    run = ("sample", learned, "--tokens", 0, "--quiet")
    assert tinygpt(*run, input=text.encode()).text == text.encode()
    assert tinygpt(*run, "--prompt-file", "-", input=text.encode()).text == text.encode()
    assert tinygpt(*run, "--prompt-file", file).text == text.encode()
    with file.open("rb") as stdin:
        assert tinygpt(*run, stdin=stdin).text == text.encode()
    ids = b"103 114 10"
    assert tinygpt(*run, "--prompt-ids", "-", input=ids).text == b"gr\n"


def test_an_empty_pipe_is_no_prompt(tinygpt: Callable, learned: Path) -> None:
    done = tinygpt("sample", learned, "--tokens", 3, "--temp", 0, input=b"")
    assert done.status == 0 and done.text


def test_a_closed_stdin_is_no_prompt(learned: Path) -> None:
    command = shlex.join([sys.executable, "-m", "tinygpt", "sample", str(learned), "--tokens", "2"])
    script = f"{command} --temp 0 --quiet <&-"
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=DEADLINE)
    assert done.returncode == 0 and done.stdout and done.stderr == b""


def test_a_pipe_that_is_not_utf8_is_refused(tinygpt: Callable, learned: Path) -> None:
    done = tinygpt("sample", learned, input=b"ab\xff")
    assert done.status == 2 and "stdin" in done.notes and "byte 2" in done.notes


def test_a_terminal_or_a_socket_is_not_waited_for(process: Start, learned: Path) -> None:
    left, right = socket.socketpair()
    master, terminal = pty.openpty()
    with left, right, open(master, "rb", buffering=0), open(terminal, "rb", buffering=0) as tty:
        for stdin in (right, tty):
            with process("sample", learned, "--tokens", 3, stdin=stdin) as running:
                running.communicate(timeout=DEADLINE)
            assert running.returncode == 0


@pytest.mark.parametrize("locale", ["C", "en_US.ISO-8859-1"])
def test_text_is_utf8_whatever_the_locale(tinygpt: Callable, learned: Path, locale: str) -> None:
    variables = {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    prompt = "größte 🙂"
    run = ("sample", learned, "--prompt", prompt, "--tokens", 0)
    done = tinygpt(*run, environment={**variables, "PYTHONIOENCODING": "ascii"})
    assert (done.status, done.text) == (0, prompt.encode())


def test_a_closed_stdout_is_said_and_a_closed_stderr_is_not_missed(learned: Path) -> None:
    command = shlex.join([sys.executable, "-m", "tinygpt", "sample", str(learned), "--tokens", "2"])
    closed = subprocess.run(["bash", "-c", f"{command} >&-"], capture_output=True, timeout=DEADLINE)
    assert closed.returncode == 1 and b"stdout" in closed.stderr
    silent = subprocess.run(
        ["bash", "-c", f"{command} --prompt a 2>&-"], capture_output=True, timeout=DEADLINE
    )
    assert silent.returncode == 0 and silent.stdout.startswith(b"a")


def test_on_a_terminal_the_report_begins_on_its_own_line(process: Start, learned: Path) -> None:
    master, terminal = pty.openpty()
    run = ("sample", learned, "--prompt", "x", "--tokens", 0)
    with process(*run, stdout=terminal, stderr=terminal) as running:
        running.wait(timeout=DEADLINE)
    os.close(terminal)
    assert b"x\r\n(0 tokens in" in read_terminal(master)


@pytest.mark.parametrize("prompt, tokens, word", [(1_500, 1, b"prefill:"), (1, 1_500, b"text:")])
def test_long_work_shows_progress_on_a_terminal_only(
    process: Start, tinygpt: Callable, learned: Path, prompt: int, tokens: int, word: bytes
) -> None:
    window = ("--streaming-llm-window", 32, "--ignore-eos")
    run = ("sample", learned, "--prompt", "x" * prompt, "--tokens", tokens, *window)
    assert word.decode() not in tinygpt(*run).notes
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    with process(*run, stderr=terminal):
        os.close(terminal)
        shown = read_terminal(master)
    assert word in shown and b"1500" in shown
    assert b"KV cache:" in shown, "the report is missing"


def test_the_console_script_and_the_module_are_the_same(tinygpt: Callable) -> None:
    script = Path(sys.executable).with_name("tinygpt")
    if not script.exists():
        pytest.skip("the package is not installed here")
    done = subprocess.run([script, "--version"], capture_output=True, text=True)
    assert done.stdout == tinygpt("--version").text.decode()


def test_ctrl_c_while_the_program_is_still_loading_ends_it_without_a_word() -> None:
    """The signal comes with the first import, long before the handlers of the command line."""
    code = (
        "import importlib.abc, os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # `command &` ignores it
        "class Early(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'click':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "from tinygpt.cli.start import main\n"
        "sys.meta_path.insert(0, Early())\n"
        "sys.argv[1:] = ['--version']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_an_empty_pipe_is_no_prompt_and_that_is_said(tinygpt: Callable, learned: Path) -> None:
    done = tinygpt("sample", learned, "--tokens", 2, "--seed", 1, input=b"")
    assert done.status == 0
    assert "stdin is empty: the text starts from nothing" in done.notes
