"""Every family from its directory to its logits, against NumPy forwards in float64."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from oracles import hf_numpy, hf_writer
from oracles.hf_writer import CONFIGS, VOCAB
from oracles.small_models import cached
from tinygpt.cache import CacheSpec
from tinygpt.io.load import load_model, open_checkpoint
from tinygpt.models.transformer import Transformer

LENGTH = 70
POSITIONS = (0, 1, 20, 60)
# float32 against float64 through four layers; logits are of size 1 to 10
TOLERANCE = 1e-4
# what eight bits of every key and value may do to the logits: measured up to 0.016 of them
PACKING_ERROR = 0.03


@pytest.fixture(scope="module")
def ids() -> list[int]:
    return np.random.default_rng(1).integers(0, VOCAB, LENGTH).tolist()


def built(directory: Path, config: dict, **form: object) -> tuple[Transformer, dict]:
    tensors = hf_writer.random_tensors(config)
    hf_writer.write(directory, config, tensors, **form)
    return load_model(open_checkpoint(directory), "fp32"), tensors


@pytest.mark.parametrize("family", CONFIGS)
def test_logits_equal_those_of_the_definition(tmp_path: Path, ids: list[int], family: str) -> None:
    config = CONFIGS[family]
    model, tensors = built(tmp_path, config)
    expected = hf_numpy.forward(config, tensors, ids)
    got = {"whole": np.array(model(mx.array([ids]))[0])}
    got |= {f"chunks of {n}": cached(model, ids, n) for n in (1, 7, LENGTH)}
    for how, logits in got.items():
        for position in POSITIONS:
            np.testing.assert_allclose(
                logits[position],
                expected[position],
                atol=TOLERANCE,
                rtol=TOLERANCE,
                err_msg=f"{how}, position {position}",
            )


LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0 + i / 20 for i in range(16)],
    "long_factor": [1.0 + i for i in range(16)],
}
PHI3 = {"partial_rotary_factor": 1.0, "rope_scaling": LONGROPE}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
SCALED: dict[str, dict] = {
    "longrope, short": CONFIGS["phi3"] | PHI3 | {"original_max_position_embeddings": LENGTH},
    "longrope, long": CONFIGS["phi3"] | PHI3 | {"original_max_position_embeddings": LENGTH - 1},
    "su": CONFIGS["phi3"] | PHI3 | {"rope_scaling": LONGROPE | {"type": "su"}},
    "yarn, own factor": CONFIGS["qwen2"] | {"rope_scaling": YARN | {"attention_factor": 1.3}},
    "dynamic, short": CONFIGS["llama"] | {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "dynamic, long": CONFIGS["llama"]
    | {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 30},
    "partial": CONFIGS["llama"] | {"partial_rotary_factor": 0.25},
}


@pytest.mark.parametrize("scaling", SCALED)
def test_a_scaled_rope_gives_the_logits_of_the_definition(
    tmp_path: Path, ids: list[int], scaling: str
) -> None:
    config = SCALED[scaling]
    model, tensors = built(tmp_path, config)
    expected = hf_numpy.forward(config, tensors, ids)
    for how, got in (("whole", np.array(model(mx.array([ids]))[0])), ("7", cached(model, ids, 7))):
        np.testing.assert_allclose(
            got, expected, atol=TOLERANCE, rtol=TOLERANCE, err_msg=f"chunks: {how}"
        )


@pytest.mark.parametrize("family", CONFIGS)
def test_a_bounded_int8_cache_stays_near_the_full_one(
    tmp_path: Path, ids: list[int], family: str
) -> None:
    model, _ = built(tmp_path, CONFIGS[family])
    spec = CacheSpec("int8", window=40)
    packed, full = cached(model, ids, 7, spec), cached(model, ids, 7)
    assert np.isfinite(packed).all()
    # up to here only the packing differs, 8 bits of each number
    error = np.linalg.norm(packed[:40] - full[:40]) / np.linalg.norm(full[:40])
    assert error < PACKING_ERROR, f"int8 moved the logits by {error:.3f} of their size"
