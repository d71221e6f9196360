"""The model inside the package: what `tinygpt sample` and `inspect` do when no MODEL is given."""

from __future__ import annotations

import json
from collections.abc import Callable

from tinygpt.cli.options import DEMO_MODEL
from tinygpt.cli.sample.options import DEMO_PROMPT

LARGEST = 8 * 10**6  # bytes, so that the package stays small


def test_without_a_model_the_demo_goes_on_from_its_own_prompt(cli: Callable) -> None:
    done = cli("sample", "--tokens", 5, "--seed", 1)
    assert done.status == 0, done.notes
    assert done.text.decode().startswith(DEMO_PROMPT)
    assert DEMO_MODEL.name in done.notes


def test_a_prompt_of_the_users_own_replaces_the_demos(cli: Callable) -> None:
    done = cli("sample", "--tokens", 3, "--temperature", 0, "--prompt", "My dear")
    assert done.status == 0, done.notes
    assert done.text.startswith(b"My dear") and DEMO_PROMPT.encode() not in done.text


def test_an_empty_prompt_that_was_asked_for_stays_empty(cli: Callable) -> None:
    done = cli("sample", "--tokens", 3, "--temperature", 0, "--prompt", "")
    assert done.status == 0, done.notes
    assert DEMO_PROMPT.encode() not in done.text
    assert len(done.text.rstrip(b"\n")) <= 3


def test_a_prompt_from_a_pipe_goes_to_the_demo(tinygpt: Callable) -> None:
    done = tinygpt("sample", "--tokens", 3, "--temperature", 0, input=b"My dear")
    assert done.status == 0, done.notes
    assert done.text.startswith(b"My dear")


def test_the_demo_is_small_and_says_what_it_is(cli: Callable) -> None:
    assert DEMO_MODEL.stat().st_size <= LARGEST
    found = json.loads(cli("inspect", "--json").text)
    assert found["weights"] == "fp16"
    assert found["config"]["architecture"] == "llama" and found["config"]["rope"]
    assert found["tokenizer"]["bos_id"] == 0 and found["tokenizer"]["add_bos"]
    assert "steps" in found["metadata"]["training"]
