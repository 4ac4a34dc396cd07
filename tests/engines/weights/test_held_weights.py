"""vLLM's own model of every family, not packed for a CPU, holds what was published to the bit: as 1, 2 and 4 workers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlep.core.errors import ModelError, WeightSyncError
from rlep.engines.families import FAMILIES
from rlep.engines.weights.checksums import checksum
from rlep.engines.weights.held_weights import HeldWeight, Worker, check_held, parts_of
from tests.engines.test_families import write_model
from tests.engines.weights.held_process import WORKERS

Held = dict[str, dict[int, list[list[Worker]]]]
"""Family -> workers -> version -> for each worker its weights."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of each family, with the weights of a second version in which every number is another."""
    root = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        write_model(root / family, family)
        first = load_file(root / family / "model.safetensors")
        save_file({name: 1.5 * weight + 0.25 for name, weight in first.items()}, root / family / "second.safetensors")
    return root


@pytest.fixture(scope="module")
def held(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Held:
    """From one process, for it changes vLLM's idea of its own rank."""
    result = tmp_path_factory.mktemp("held") / "held.json"
    command = [sys.executable, "-m", "tests.engines.weights.held_process", str(models), str(result)]
    subprocess.run(command, check=True, timeout=500)
    found: dict[str, dict[str, list[list[dict[str, Any]]]]] = json.loads(result.read_text())
    return {
        family: {
            int(count): [
                [{name: HeldWeight(**weight) for name, weight in worker.items()} for worker in workers]
                for workers in versions
            ]
            for count, versions in counts.items()
        }
        for family, counts in found.items()
    }


def published(file: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Sizes and checksums as a learner publishes them in bfloat16."""
    weights = {name: weight.bfloat16() for name, weight in load_file(file).items()}
    assert all(weight.dtype == torch.bfloat16 for weight in weights.values())
    sizes = {name: weight.numel() for name, weight in weights.items()}
    return sizes, {name: int(checksum(weight)) for name, weight in weights.items()}


def fused_and_copied(family: str, count: int) -> bool:
    """Phi-3 publishes q, k and v as one weight; four workers hold its two heads of k and v twice."""
    return family == "phi3" and count == 4


@pytest.mark.parametrize("count", WORKERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_is_explained_by_published_ones_and_equals_them(
    family: str, count: int, models: Path, held: Held
) -> None:
    for file, workers in zip(("model", "second"), held[family][count], strict=True):
        sizes, checksums = published(models / family / f"{file}.safetensors")
        if fused_and_copied(family, count):
            with pytest.raises(
                ModelError, match=r"holds 2 weights that no published .*: model.layers.0.self_attn.qkv_pr"
            ):
                parts_of(workers[0], sizes)
            continue
        explained = parts_of(workers[0], sizes)
        assert sorted({part for parts in explained.values() for part in parts}) == sorted(sizes)
        check_held(workers, explained, sizes, checksums)


@pytest.mark.parametrize("count", WORKERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_any_weight_of_any_worker_that_stayed_as_it_was_is_named(
    family: str, count: int, models: Path, held: Held
) -> None:
    if fused_and_copied(family, count):
        pytest.skip("refused before")
    sizes, checksums = published(models / family / "second.safetensors")
    before, after = held[family][count]
    explained, seen = parts_of(after[0], sizes), 0
    for rank, worker in enumerate(after):
        for name in worker:
            if before[rank][name] == worker[name]:
                assert (name.split(".")[-2], rank, count) in {("embed_tokens", 3, 4), ("lm_head", 3, 4)}  # only padding
                continue
            stale = [dict(other) for other in after]
            stale[rank][name] = before[rank][name]
            with pytest.raises(WeightSyncError, match=rf"1 of the engine's .* not what was published: {name}$"):
                check_held(stale, explained, sizes, checksums)
            seen += 1
    assert seen >= count * (len(explained) - 2)
