"""The results page says what the files say."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
PART = {"start": 0, "stop": 256, "tokens": 9, "perplexity": 31.25, "compared": 9}
RESULT = {
    "cache": "int4",
    "tokens": 9,
    "perplexity": 31.25,
    "perplexity_se": 1.5,
    "bits_per_byte": 1.0625,
    "kl_mean": 0.00123,
    "kl_p99": 0.5,
    "kl_max": None,
    "top1": 0.975,
    "bytes": 1_250_000,
    "bytes_per_token": 8847.0,
    "by_position": [PART],
}
TEXTS = [{"file": "own.txt", "tokens": 10}]
SIDE = {
    "prefill_seconds": 4.0,
    "step_seconds": 0.05,
    "bytes": 2_500_000,
    "peak_bytes": 6e8,
    "floor_seconds": 0.0401,
}
DECODED = {
    "cache": "int8",
    "length": 2000,
    "peer_is_unquantised": False,
    "peer_prefill_was_dense": True,
    "tinygpt": SIDE,
    "mlx_lm": {**SIDE, "bytes": 3_500_000},
    "prefill_ratio": 1.125,
    "decode_ratio": 1.5,
    "decode_ratios": [1.5, 1.25, 1.75],
    "peak_ratio": 0.625,
}
MATCH = {"cache": "int8", "prompt": "Once", "tokens": 60, "matched": 45, "margin": 0.0625}
FILES: dict[str, dict] = {
    "bytes": {
        "shape": {"layers": 12, "kv_heads": 8, "head_dim": 32},
        "bytes": [{"cache": "int4", "tokens": 500, "bytes": 2_364_000}],
    },
    "greedy": {"greedy": [MATCH, {**MATCH, "prompt": "In", "matched": 60, "margin": None}]},
    "machine": {"machine": "Linux", "date": "2026-11-30", "versions": {"mlx": "1"}},
    "kivi_own": {"texts": TEXTS, "results": [RESULT]},
    "defaults": {"texts": TEXTS, "results": [{**RESULT, "cache": "int4,residual=0"}]},
    "windows": {"texts": TEXTS, "context": 8192, "results": [RESULT]},
    "sinks_demo": {
        "model": "demo.tinygpt",
        "text": "emma.txt",
        "tokens": 100,
        "sinks": 1,
        "sink_mass": [[0.25, 0.75], [0.001, 0.003]],
    },
    "decode": {
        "configuration": {
            "model": "m.gguf",
            "dtype": "float32",
            "text": "emma.txt",
            "machine": "Linux",
            "date": "2026-11-30",
            "tokens_a_turn": 8,
        },
        "bandwidth": 1e10,
        "start_up_seconds": {"tinygpt": 0.75},
        "decode": [DECODED],
    },
    "long_demo": {
        "model": "demo",
        "cache": "int8",
        "long": [{"tokens": 1000, "seconds": 2.5, "bytes": 4480, "peak_bytes": 1e6}],
    },
}


@pytest.fixture
def results_page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    room = ROOT / "scripts" / "results"
    monkeypatch.syspath_prepend(room)
    spec = importlib.util.spec_from_file_location("results_page", room / "page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_figure_of_the_files_is_on_the_page(results_page: ModuleType, tmp_path: Path) -> None:
    for name, content in FILES.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "windows_frontier.png").touch()
    page = results_page.page(tmp_path)
    assert f"![windows_frontier]({tmp_path.name}/windows_frontier.png)" in page
    for line in (
        "| `int4` | 2.36 MB |",
        "| `int8` | 45/60 | 60/60 | 87.5% | 0.0625 |",
        "| `int4` | 9 | 31.250 | 1.500 | 1.0625 | 0.0012 | 0.5 | – | 97.50% | 1.25 MB | 8,847 |",
        "| `int4` | 31.25 |",
        "| decode after 2,000 tokens, int8, times mlx-lm's speed | ≥ 1.35 | 1.50 | yes |",
        "| MB of int4 after 500 tokens, 12 × 8 × 32 | ≤ 2.50 | 2.36 | yes |",
        "| 0 | 50.0% | 25.0% | 75.0% |",
        "Made on Linux, 2026-11-30; mlx 1.",
        "| `int4,residual=0` | 9 | 31.250 | 1.500 | 1.0625 | 0.0012 | 0.5 | – | 97.50% | 1.25 MB | "
        "8,847 |",
        "| `int8` | 2,000 | the same, dense prefill | 500 | 1.12 | 20.0 | 1.50 | 1.25–1.75 | 50.0 "
        "| 40.1 | 2.50 MB | 3.50 MB | 600 MB | 0.62 |",
        "| 1,000 | 2.50 | 4,480 | 1.00 MB |",
    ):
        assert line in page.splitlines()
    assert "## Passkey" not in page, "a section without its file"


def test_the_committed_page_is_made_of_the_committed_files(results_page: ModuleType) -> None:
    if not (ROOT / "docs" / "results").is_dir():
        pytest.skip("docs/results is not there: scripts/reproduce.sh makes it")
    written = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert written == results_page.page(ROOT / "docs" / "results"), "run scripts/results/page.py"
