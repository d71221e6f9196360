"""Makes docs/results.md out of the JSON files that `reproduce.sh` has written.

    python scripts/results/page.py docs/results > docs/results.md

Every number of the page comes from a file; a file that is missing leaves out its section.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from speed import bench_section, decode_section, long_section
from tables import code, megabytes, number, table
from targets import targets_section

HEAD = """# Results

Every table here is made by the commands of `scripts/reproduce.sh` and written by
`scripts/results/page.py` from the files in `docs/results/`. Bytes are those of all allocated
arrays, in decimal units. Where no other model is named it is SmolLM2-135M-Instruct (Q4_1 in a GGUF
file), computed in float32.
"""
TEXTS = {
    "emma": "*Emma*",
    "prideprejudice": "*Pride and Prejudice*",
    "own": "this project's own documents and source, which no model has seen",
}


def machine_section(found: dict) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return f"Made on {found['machine']}, {found['date']}; {versions}.\n"


def bytes_section(found: dict) -> str:
    shape = found["shape"]
    lengths = sorted({row["tokens"] for row in found["bytes"]})
    cells = {(row["cache"], row["tokens"]): row["bytes"] for row in found["bytes"]}
    caches = dict.fromkeys(row["cache"] for row in found["bytes"])
    rows = [[code(c), *(megabytes(cells[c, length]) for length in lengths)] for c in caches]
    return (
        f"## Bytes of a cache\n\nFor {shape['layers']} layers × {shape['kv_heads']} heads × "
        f"{shape['head_dim']} channels, after so many tokens.\n\n"
        + table(["cache", *map(str, lengths)], rows)
    )


def greedy_section(found: dict) -> str:
    caches = dict.fromkeys(match["cache"] for match in found["greedy"])
    rows = []
    for cache in caches:
        own = [match for match in found["greedy"] if match["cache"] == cache]
        share = sum(match["matched"] for match in own) / sum(match["tokens"] for match in own)
        margins = [match["margin"] for match in own if match["margin"] is not None]
        each = [f"{match['matched']}/{match['tokens']}" for match in own]
        rows.append([code(cache), *each, f"{share:.1%}", number(max(margins, default=None), ".4f")])
    prompts = dict.fromkeys(match["prompt"] for match in found["greedy"])
    return (
        "## Greedy tokens that are the full cache's\n\nUp to the first difference. The margin is "
        "by how much the full cache's logits prefer their token there, at most. With the default "
        "residual no query of a text this short reads a packed token (the first group is packed "
        "at token 68); with `residual=0` every full group is.\n\n"
        + table(["cache", *(f"{prompt}…" for prompt in prompts), "all", "margin"], rows)
    )


def smoke_section(files: dict[str, dict]) -> str:
    rows = [
        [
            what,
            str(run["generated_tokens"]),
            megabytes(run["cache"]["bytes"]),
            str(run["cache"]["held"]),
            f"{run['decode_tokens_per_second']:.1f}",
            run["finish_reason"],
        ]
        for what, run in files.items()
    ]
    head = ["int8", "tokens", "cache", "held", "tokens/s", "ended by"]
    return "## The 500-token smoke test\n\n" + table(head, rows)


def quality_rows(found: dict) -> list[list[str]]:
    return [
        [
            code(one["cache"]),
            str(one["tokens"]),
            number(one["perplexity"], ".3f"),
            number(one["perplexity_se"], ".3f"),
            number(one["bits_per_byte"], ".4f"),
            number(one["kl_mean"], ".2g"),
            number(one["kl_p99"], ".2g"),
            number(one["kl_max"], ".2g"),
            number(one["top1"], ".2%"),
            megabytes(one["bytes"]),
            number(one["bytes_per_token"], ",.0f"),
        ]
        for one in found["results"]
    ]


FEW = 9  # tokens; a perplexity of fewer says nothing
QUALITY_HEAD = "cache tokens perplexity ± bits/byte KL-mean KL-p99 KL-max top-1 held bytes/token"


def kivi_section(found: dict, text: str) -> str:
    return (
        f"## Precision, on {TEXTS[text]}\n\n{_source(found)} KL and top-1 against the "
        "full cache of the same weights. Rows of mlx-lm are its own caches in its own model code "
        "on these weights.\n\n" + table(QUALITY_HEAD.split(), quality_rows(found))
    )


def defaults_section(found: dict) -> str:
    return (
        f"## Groups, residual and first tokens\n\n{_source(found)} What is not named is "
        "the default: groups of 32, residual 32, first_fp 4.\n\n"
        + table(QUALITY_HEAD.split(), quality_rows(found))
    )


def windows_section(found: dict) -> str:
    starts = sorted({part["start"] for one in found["results"] for part in one["by_position"]})
    stops = {part["start"]: part["stop"] for one in found["results"] for part in one["by_position"]}
    rows = []
    for one in found["results"]:
        parts = (part for part in one["by_position"] if part["tokens"] >= FEW)
        by_start = {part["start"]: part["perplexity"] for part in parts}
        rows.append([code(one["cache"]), *(number(by_start.get(at), ".2f") for at in starts)])
    head = ["perplexity at", *(f"{at:,}–{stops[at]:,}" for at in starts)]
    return (
        f"## Bounded caches, on {TEXTS['emma']}\n\n{_source(found)} The full cache ends "
        f"at the model's context of {found['context']:,} tokens.\n\n"
        + table(QUALITY_HEAD.split(), quality_rows(found))
        + "\n"
        + table(head, rows)
    )


def sinks_section(found: dict) -> str:
    layers = found["sink_mass"]
    queries = range(found["tokens"] // 2, found["tokens"])
    even = sum(min(1.0, found["sinks"] / (query + 1)) for query in queries) / len(queries)
    rows = [
        [str(at), f"{sum(heads) / len(heads):.1%}", f"{min(heads):.1%}", f"{max(heads):.1%}"]
        for at, heads in enumerate(layers)
    ]
    return (
        f"## Attention sinks of {found['model']}\n\nThe share of attention that goes to the first "
        f"{found['sinks']} tokens, averaged over the later half of {found['tokens']} tokens of "
        f"{found['text']}; {even:.1%} if all tokens got the same.\n\n"
        + table(["layer", "mean of heads", "least", "most"], rows)
    )


def passkey_section(found: dict) -> str:
    cells = {(one["cache"], one["length"], one["depth"]): one for one in found["passkey"]}
    depths = sorted({one["depth"] for one in found["passkey"]})
    rows = []
    for cache, length in dict.fromkeys((one["cache"], one["length"]) for one in found["passkey"]):
        hits = (cells.get((cache, length, depth)) for depth in depths)
        shown = ("–" if one is None else f"{one['hits']}/{one['trials']}" for one in hits)
        rows.append([code(cache), f"{length:,}", *shown])
    return "## Passkey retrieval\n\nKeys found, by how deep they lie in the text.\n\n" + table(
        ["cache", "tokens", *map(str, depths)], rows
    )


def _source(found: dict) -> str:
    texts = ", ".join(
        f"{one['tokens']:,} tokens of {Path(one['file']).name}" for one in found["texts"]
    )
    return f"{texts}, teacher-forced."


SECTIONS: dict[str, Callable[[dict], str]] = {
    "machine": machine_section,
    "bytes": bytes_section,
    "greedy": greedy_section,
    **{f"kivi_{text}": lambda found, text=text: kivi_section(found, text) for text in TEXTS},
    "defaults": defaults_section,
    "windows": windows_section,
    "sinks_smollm2": sinks_section,
    "sinks_demo": sinks_section,
    "passkey": passkey_section,
    "decode": decode_section,
    "bench": bench_section,
    "long_demo": long_section,
    "long_smollm2": long_section,
}
SMOKE = {"smoke_plain": "all tokens", "smoke_streaming": "4 + 256"}


def pictures_section(directory: Path) -> str:
    """Every picture beside the files; the page lies one directory above them."""
    names = sorted(path.name for path in directory.glob("*.png"))
    links = [f"![{name.removesuffix('.png')}]({directory.name}/{name})\n" for name in names]
    return "\n".join(["## Pictures\n", *links]) if links else ""


def page(directory: Path) -> str:
    """The whole page from the files in `directory`."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))}
    parts = [HEAD]
    parts += [section(found[name]) for name, section in SECTIONS.items() if name in found]
    smoke = {what: found[name] for name, what in SMOKE.items() if name in found}
    if smoke:
        parts.append(smoke_section(smoke))
    parts += [targets_section(found), pictures_section(directory)]
    return "\n".join(part for part in parts if part)


if __name__ == "__main__":
    sys.stdout.write(page(Path(sys.argv[1])))
