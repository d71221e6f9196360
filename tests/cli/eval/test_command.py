"""`tinygpt eval` end to end: tables, files, refusals, interruption and resumption."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from oracles import tinygpt_writer
from tinygpt.cli.main import run
from tinygpt.cli.options import repeat_lists
from tinygpt.cli.signals import Interrupted, Signals

KEYS = [
    "cache",
    "tokens",
    "perplexity",
    "perplexity_se",
    "bits_per_byte",
    "kl_mean",
    "kl_p99",
    "kl_max",
    "top1",
    "bytes",
    "bytes_per_token",
    "peak_bytes",
    "tokens_per_second",
    "by_position",
]
CACHES = ("fp32", "int8", "int4,group=64", "int8,sink=4,window=256")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("All happy families are alike. " * 20)
    return path


class StopsAfter(Signals):
    """A Ctrl-C at the `count`-th place where a run may stop."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._left = count

    def check(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.received = 2
            raise Interrupted(2)


def results(path: Path) -> dict[str, dict]:
    return {one["cache"]: one for one in json.loads(path.read_text())["results"]}


def test_one_command_prints_a_table_and_writes_it_as_csv_and_json(
    cli: Callable, rope: Path, text: Path, tmp_path: Path
) -> None:
    files = ("--csv", tmp_path / "out.csv", "--json", tmp_path / "out.json")
    done = cli("eval", rope, "--text", text, "--tokens", 300, "--cache", *CACHES, *files)
    assert done.status == 0, done.notes
    found = json.loads((tmp_path / "out.json").read_text())["results"]
    assert [one["cache"] for one in found] == list(CACHES)
    assert all(list(one) == KEYS for one in found)
    assert all(one["tokens"] == 299 for one in found)
    table = done.text.decode()
    for one in found:
        line = next(line for line in table.splitlines() if line.startswith(one["cache"]))
        assert f"{one['perplexity']:.3f}" in line and f"{one['top1']:.2%}" in line
    assert "perplexity at" in table and "256–1k" in table
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["cache"] for row in rows] == list(CACHES)
    assert float(rows[1]["kl_mean"]) == found[1]["kl_mean"] > 0
    assert list(rows[0])[: len(KEYS) - 1] == KEYS[:-1]


def test_without_a_cache_the_full_one_is_measured(
    cli: Callable, rope: Path, text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    assert cli("eval", rope, "--text", text, "--tokens", 50, "--json", out).status == 0
    full = results(out)["full"]
    assert (full["kl_max"], full["top1"], full["tokens"]) == (0, 1, 49)


def test_the_grid_is_measured_where_the_model_allows_it(
    cli: Callable, rope: Path, text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    done = cli("eval", rope, "--text", text, "--tokens", 40, "--grid", "--json", out)
    assert done.status == 0, done.notes
    assert {"full", "int8", "int2", "sink=4,window=256"} <= set(results(out))


def test_the_grid_leaves_out_what_the_model_excludes_and_says_so(
    cli: Callable, learned: Path, text: Path
) -> None:
    done = cli("eval", learned, "--text", text, "--tokens", 40, "--grid")
    assert done.status == 0, done.notes
    assert "left out of --grid: --cache 'sink=4,window=256,positions=absolute': " in done.notes


def test_the_file_s_own_cache_hints_are_ignored(cli: Callable, text: Path, tmp_path: Path) -> None:
    config = {"vocabSize": 256, "ctx": 128, "layers": 1, "heads": 2, "dModel": 64, "dMlp": 64}
    weights, out = tinygpt_writer.random_model(config), tmp_path / "out.json"
    bytes_held = []
    for hints in ({}, {"kviBits": 4, "streamingSink": 4, "streamingWindow": 48}):
        path = tmp_path / "model.tinygpt"
        tinygpt_writer.write(path, config, weights, "training", header=hints)
        assert cli("eval", path, "--text", text, "--tokens", 100, "--json", out).status == 0
        bytes_held.append(results(out)["full"]["bytes"])
    assert bytes_held[0] == bytes_held[1] == 99 * 2 * 64 * 4


@pytest.mark.parametrize("content", ["x", ""])
def test_a_text_of_one_token_scores_nothing_and_says_so(
    cli: Callable, learned: Path, tmp_path: Path, content: str
) -> None:
    short, out = tmp_path / "short.txt", tmp_path / "out.json"
    short.write_text(content)
    done = cli("eval", learned, "--text", short, "--cache", "int8", "--json", out)
    assert done.status == 0, done.notes
    assert f"has {len(content)} token(s): nothing can be scored" in done.text.decode()
    assert results(out)["int8"]["perplexity"] is None and results(out)["int8"]["tokens"] == 0


def test_a_text_past_the_context_says_which_caches_ended_there(
    cli: Callable, learned: Path, text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    caches = ("fp16", "int8,sink=4,window=64")
    done = cli("eval", learned, "--text", text, "--cache", *caches, "--json", out)
    assert "up to the model's context of 256 tokens, for want of a window: fp16" in (
        done.text.decode()
    )
    assert [one["tokens"] for one in results(out).values()] == [256, 599]


def test_values_in_a_row_are_understood_wherever_the_model_stands(
    cli: Callable, learned: Path, text: Path
) -> None:
    shared = ("--tokens", 20)
    first = cli("eval", learned, "--text", text, text, "--cache", "int8", "fp16", *shared)
    last = cli("eval", "--cache", "int8", "fp16", *shared, "--text", text, text, learned)
    apart = cli("eval", "--text", text, "--text", text, learned, "--cache=int8", "--cache", "fp16")
    assert first.status == last.status == apart.status == 0, (first, last, apart)
    assert [line.split()[1] for line in first.text.decode().splitlines()[1:3]] == ["38", "38"]
    assert repeat_lists(["--text", "a", "-", "--grid"])[0] == [
        "--text",
        "a",
        "--text",
        "-",
        "--grid",
    ]


def test_ctrl_c_prints_what_is_done_and_resume_goes_on(
    rope: Path, text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    caches = ["fp32", "fp16", "bf16", "int8", "int4", "int2"]  # four are measured in lockstep
    line = ["eval", str(rope), "--text", str(text), "--cache", *caches]
    line += ["--tokens", "100", "--prefill-chunk", "25", "--json", str(out)]
    status = run(line, StopsAfter(20))  # four caches × 4 chunks, then two caches × 2
    table = capfd.readouterr().out
    assert status == 130
    assert "interrupted before its end: int4\ninterrupted before its end: int2\n" in table
    first = results(out)
    assert [one["tokens"] for one in first.values()] == [99, 99, 99, 99, 50, 50]
    assert json.loads(out.read_text())["unfinished"] == ["int4", "int2"]
    assert run([*line, "--resume"], Signals()) == 0
    second = results(out)
    assert [one["tokens"] for one in second.values()] == [99] * 6
    assert second["fp16"] == first["fp16"], "a finished cache was measured again"
    assert json.loads(out.read_text())["unfinished"] == []
    assert run([*line, "--resume", "int3"], Signals()) == 2


def test_resume_adds_a_measurement_of_another_kind(
    cli: Callable, rope: Path, text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    quality = ("--text", text, "--tokens", 20, "--json", out)
    greedy = ("--greedy", 3, "--json", out, "--resume")
    assert cli("eval", rope, *quality).status == cli("eval", rope, *greedy).status == 0
    assert cli("eval", rope, *quality, "--resume", "--cache", "full", "int8").status == 0
    content = json.loads(out.read_text())
    assert set(results(out)) == {"full", "int8"} and len(content["greedy"]) == 4
    assert content["texts"][0]["tokens"] == 20 and content["greedy_tokens"] == 3


def test_resume_refuses_the_results_of_another_run(
    cli: Callable, refused: Callable, rope: Path, text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    line, words = ("eval", rope, "--text", text, "--json", out), text.read_bytes()
    assert cli(*line, "--tokens", 20).status == 0
    assert 'was made with texts {"tokens": 20}, this run has {"tokens": 30}' in refused(
        *line, "--tokens", 30, "--resume"
    )
    text.write_text("Other words of the same length")
    assert "was made with texts" in refused(*line, "--tokens", 20, "--resume")
    content = json.loads(out.read_text())
    content["results"][0]["perplexity"] = "low"
    text.write_bytes(words)
    out.write_text(json.dumps(content))
    assert "perplexity is 'low', no number" in refused(*line, "--tokens", 20, "--resume")
    out.write_text("{}")
    assert "is no result of tinygpt eval" in refused(*line, "--tokens", 20, "--resume")
    out.write_text("[")
    assert "is no result of tinygpt eval" in refused(*line, "--tokens", 20, "--resume")


def test_resume_refuses_other_weights_under_the_same_name(
    cli: Callable, refused: Callable, rope: Path, learned: Path, text: Path, tmp_path: Path
) -> None:
    model, out = tmp_path / "model", tmp_path / "out.json"
    line = ("eval", model, "--text", text, "--tokens", 20, "--json", out, "--resume")
    model.write_bytes(rope.read_bytes())
    assert cli(*line).status == cli(*line, "--cache", "full", "int8").status == 0
    model.write_bytes(learned.read_bytes())
    assert "was made with model_digest" in refused(*line)


def test_a_request_that_cannot_be_is_refused_before_anything_runs(
    refused: Callable, rope: Path, text: Path, tmp_path: Path
) -> None:
    assert "nothing to measure" in refused("eval", rope)
    assert "no MODEL given" in refused("eval", "--grid", "--greedy", 2)
    assert "--json FILE" in refused("eval", rope, "--text", text, "--resume")
    assert "there is no key 'bits'" in refused("eval", rope, "--text", text, "--cache", "bits=8")
    assert "No such file" in refused("eval", rope, "--text", tmp_path / "absent")
    assert "no directory" in refused("eval", rope, "--text", text, "--csv", tmp_path / "a" / "b")
    assert "--lengths is '0'" in refused("eval", rope, "--passkey", "--lengths", "0")
    assert "--depths is '2'" in refused("eval", rope, "--passkey", "--depths", "2")
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    assert "not UTF-8 at byte 3" in refused("eval", rope, "--text", tmp_path / "latin")
    (tmp_path / "blank").write_text("\n \n")
    prompts = ("--greedy", 2, "--prompts", tmp_path / "blank")
    assert "has no prompts" in refused("eval", rope, *prompts)
    assert "given 2 times" in refused("eval", rope, "--text", "-", "-")


@pytest.mark.parametrize(
    ("asked", "idle", "needed"),
    [
        (("--text", "FILE"), ("--prompts", "FILE"), "--greedy"),
        (("--text", "FILE"), ("--trials", 2), "--passkey"),
        (("--greedy", 2), ("--tokens", 9), "--text"),
        (("--passkey",), ("--csv", "FILE"), "--text"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    refused: Callable, rope: Path, tmp_path: Path, asked: tuple, idle: tuple, needed: str
) -> None:
    file = tmp_path / "file"
    asked, idle = (tuple(file if v == "FILE" else v for v in part) for part in (asked, idle))
    file.write_text("words")
    assert f"{idle[0]} has no meaning without {needed}" in refused("eval", rope, *asked, *idle)


def test_an_output_never_replaces_an_input_or_another_output(
    refused: Callable, rope: Path, text: Path, tmp_path: Path
) -> None:
    before, words = rope.read_bytes(), text.read_bytes()
    run = ("eval", rope, "--text", text, "--tokens", 9)
    assert f"would replace {rope}" in refused(*run, "--json", rope)
    assert f"would replace {text}" in refused(*run, "--csv", text.parent / "." / text.name)
    greedy = ("eval", rope, "--greedy", 2, "--prompts", text)
    assert f"would replace {text}" in refused(*greedy, "--json", text)
    both = tmp_path / "both"
    assert "would replace --csv" in refused(*run, "--csv", both, "--json", both)
    assert f"would replace {rope}" in refused("bench", rope, "--json", rope)
    assert (rope.read_bytes(), text.read_bytes()) == (before, words) and not both.exists()


def test_greedy_matches_are_printed_for_each_prompt_and_cache(
    cli: Callable, rope: Path, tmp_path: Path
) -> None:
    out, prompts = tmp_path / "out.json", tmp_path / "prompts"
    prompts.write_text("one two three\n\nfour five\n")
    cut = "sink=0,window=1"
    line = ("eval", rope, "--greedy", 12, "--cache", "fp32", cut, "--json", out)
    done = cli(*line, "--prompts", prompts)
    assert done.status == 0, done.notes
    found = json.loads(out.read_text())["greedy"]
    assert [(one["cache"], one["prompt"]) for one in found] == [
        (cache, prompt) for prompt in ("one two three", "four five") for cache in ("fp32", cut)
    ]
    for one in found:
        assert (one["margin"] is None) == (one["matched"] == one["tokens"] == 12)
    assert all(one["matched"] == 12 for one in found if one["cache"] == "fp32")
    assert "all prompts" in done.text.decode() and "four five" in done.text.decode()
    assert cli(*line, "--greedy", 3).text.decode().count("Photosynthesis is") == 2


def test_passkey_hits_are_printed_over_depth_and_length(
    cli: Callable, rope: Path, learned: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    places = ("--lengths", "300,340", "--depths", "0.1,0.9", "--trials", 2)
    done = cli("eval", rope, "--passkey", *places, "--cache", "int8", "--json", out)
    assert done.status == 0, done.notes
    found = json.loads(out.read_text())["passkey"]
    assert [(one["length"], one["depth"], one["trials"]) for one in found] == [
        (length, depth, 2) for length in (300, 340) for depth in (0.1, 0.9)
    ]
    assert "300 tokens" in done.text.decode()
    assert "left out" in cli("eval", learned, "--passkey", *places).notes
    assert "too short" in cli("eval", rope, "--passkey", "--lengths", "20").notes


def test_versus_without_mlx_lm_or_with_another_family_says_so(
    refused: Callable, learned: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ("eval", learned, "--text", text, "--versus", "mlx-lm")
    monkeypatch.setattr("tinygpt.evaluate.mlx_lm.util.find_spec", lambda name: None)
    assert "mlx-lm is not installed; pip install mlx-lm" in refused(*line)
    monkeypatch.setattr("tinygpt.evaluate.mlx_lm.util.find_spec", lambda name: name)
    assert "does not compute this" in refused(*line)


def test_mlx_lm_s_full_cache_has_no_divergence_and_its_4_bits_have_more_than_ours(
    cli: Callable, rope: Path, text: Path, tmp_path: Path
) -> None:
    pytest.importorskip("mlx_lm")
    out = tmp_path / "out.json"
    caches = ("full", "int4", "window=64", "int8,window=64")
    line = ("eval", rope, "--text", text, "--tokens", 200, "--versus", "mlx-lm", "--json", out)
    done = cli(*line, "--cache", *caches)
    assert done.status == 0, done.notes
    assert "int8,window=64: mlx-lm cannot quantise a bounded cache" in done.notes
    found = results(out)
    assert found["mlx-lm full"]["kl_max"] < 1e-8
    assert found["mlx-lm int4"]["kl_mean"] > found["int4"]["kl_mean"]
    assert found["mlx-lm window=64"]["bytes"] < found["mlx-lm full"]["bytes"]


@pytest.mark.real
def test_a_real_model_loses_little_at_8_and_4_bits(
    cli: Callable, smollm2: Path, tmp_path: Path
) -> None:
    """500 tokens that no model was trained on: this project's own source."""
    source = Path(__file__).parents[3] / "src" / "tinygpt" / "cache" / "spec.py"
    out = tmp_path / "out.json"
    line = ("eval", smollm2, "--text", source, "--tokens", 500, "--json", out)
    assert cli(*line, "--cache", "int8", "int4").status == 0
    found = results(out)
    assert 0 < found["int8"]["kl_mean"] <= 2e-4
    assert found["int8"]["kl_mean"] < found["int4"]["kl_mean"] <= 4e-3
    assert found["int4"]["top1"] >= 0.95
    assert found["int4"]["bytes"] < found["int8"]["bytes"]


def test_a_failure_comes_after_the_table_of_what_was_done(
    cli: Callable, text: Path, tmp_path: Path
) -> None:
    """The second text reaches a position whose embedding is no number."""
    config = {"vocabSize": 256, "ctx": 128, "layers": 1, "heads": 2, "dModel": 64, "dMlp": 64}
    weights = tinygpt_writer.random_model(config)
    weights["position_embedding.weight"][100] = float("nan")
    path = tinygpt_writer.write(tmp_path / "model.tinygpt", config, weights, "training")
    short, out = tmp_path / "short.txt", tmp_path / "out.json"
    short.write_text("All happy families")
    line = ("--cache", "fp32", "fp16", "--prefill-chunk", 1, "--json", out)
    done = cli("eval", path, "--text", short, text, *line)
    assert done.status == 1
    assert "error: fp32: the logits for position 101 are not finite" in done.notes
    assert "interrupted before its end: fp32" in done.text.decode()
    assert json.loads(out.read_text())["unfinished"] == ["fp32", "fp16"]


@pytest.mark.parametrize("given", ["int4", "int8,sink=4,window=256", "window=64"])
def test_a_cache_that_was_taken_for_the_model_is_told_apart(
    refused: Callable, text: Path, given: str
) -> None:
    said = refused("eval", "--text", text, "--cache", "int8", given)
    assert f"no MODEL given: {given} looks like a cache" in said
    assert "no MODEL given" in refused("bench", "--cache", "int8", given)
