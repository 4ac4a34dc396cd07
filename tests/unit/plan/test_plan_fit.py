"""What fits and what does not, why, and what helps; the presets of machines with the models they are for."""

from __future__ import annotations

import math
import re

import pytest

from benchmarks.parts.hub_models import MODELS
from rlep.config.settings import load_config, parse_config
from rlep.plan.fit import Fit, lowering_settings, plan_fit
from rlep.plan.host import plan_host
from rlep.plan.learner import plan_learner
from rlep.plan.memory import GIB
from rlep.plan.run_plan import Known, make_plan
from tests.unit.plan.test_plan import MATH_7B, RLEP, ROOT

QWEN = {
    **{size: MODELS[f"Qwen/{size}"] for size in ("Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B", "Qwen3-8B")},
    "1.5B": MODELS["Qwen/Qwen2.5-1.5B-Instruct"],
    "7B": MATH_7B,
    "14B": MODELS["Qwen/Qwen2.5-14B-Instruct"],
}


def fit(overrides: list[str], gib: float = 80) -> Fit:
    return plan_fit(load_config([RLEP], overrides), MATH_7B, gpu_bytes=int(gib * GIB), host_bytes=None)


COLOCATED = ["cluster.placement=colocated"]


@pytest.mark.parametrize(
    ("machine", "gib", "size"),
    [
        ("1x24gb", 24, "1.5B"),
        ("1x80gb", 80, "1.5B"),
        ("1x24gb-lora", 24, "7B"),
        ("1x80gb-lora", 80, "7B"),
        ("8x80gb", 80, "7B"),
        ("2x8x80gb", 80, "7B"),
        ("2x8x80gb", 80, "14B"),
    ],
)
@pytest.mark.parametrize("method", ["rlep", "dapo-nodyn-bs64"])
def test_the_presets_of_machines_fit_the_models_they_are_for(machine: str, gib: int, size: str, method: str) -> None:
    layers = [ROOT / "configs" / "paper" / f"{method}.toml", ROOT / "configs" / "machines" / f"{machine}.toml"]
    found = plan_fit(load_config(layers), QWEN[size], gpu_bytes=gib * GIB, host_bytes=None)
    assert found.fits, found.reason


def test_the_recipe_for_qwen3_takes_the_memory_that_its_readme_says() -> None:
    readme = (ROOT / "configs" / "qwen3" / "README.md").read_text()
    rows = re.findall(
        r"^\| `Qwen/(\S+)` \| (\d+) GB \| (?:–|`(\S+)`) \| (\d+) GiB \| (\d+), (\d+) GiB \| (\d+) GB \|$", readme, re.M
    )
    assert len(rows) == 6
    for size, card, machine, learner, host, shared, disk in rows:
        layers = [ROOT / "configs" / "qwen3" / "gsm8k.toml", *([ROOT / machine] if machine else [])]
        planned = plan_fit(load_config(layers), QWEN[size], gpu_bytes=int(card) * GIB, host_bytes=None)
        assert planned.fits, planned.reason
        assert round(planned.learner_bytes / GIB) == int(learner), (size, machine)
        memory = plan_host(load_config(layers), QWEN[size])
        assert math.ceil(memory.memory_bytes / GIB) == int(host), (size, machine)
        assert math.ceil(memory.published_bytes / GIB) == int(shared), (size, machine)
        assert round(memory.disk_bytes / 1e9) == int(disk), (size, machine)


def test_the_eight_gpus_of_the_paper_s_preset_are_all_used_by_both_sides() -> None:
    config = load_config([RLEP, ROOT / "configs" / "machines" / "8x80gb.toml"])
    assert (config.generator.count, config.learner.ranks) == (8, 8)
    plan = make_plan(config, Known(model=MATH_7B), 80 * GIB)
    assert (plan.gpus, plan.fits) == (8, True)
    assert plan.learner is not None
    assert plan.learner.asleep_bytes == 11_423_424_768  # 12 bytes x parameters / 8 ranks


def test_a_shared_gpu_needs_what_the_sleeping_side_keeps_as_well() -> None:
    rank = plan_learner(load_config([RLEP]), MATH_7B).peak_bytes
    alone, shared = fit([]), fit(COLOCATED)
    assert alone.learner_bytes == rank + 2 * GIB
    assert shared.learner_bytes == rank + 4 * GIB
    assert alone.generator_bytes == 73_014_444_032  # 0.85 x 80 GiB
    assert shared.generator_bytes == alone.generator_bytes + 2 * GIB


@pytest.mark.parametrize("placement", [[], COLOCATED], ids=["split", "colocated"])
def test_what_does_not_fit_says_why_and_what_helps(placement: list[str]) -> None:
    eight = ["learner.ranks=8", "generator.count=8", *placement]
    found = fit(eight, gib=40)
    assert found.fits is False
    assert "a learner rank needs " in found.reason
    advice = found.reason.partition("; try ")[2].replace("--set ", "").split()
    assert fit([*eight, *advice], gib=40).fits is True


def test_unsharded_gradients_are_the_first_thing_to_go() -> None:
    found = fit(["learner.unsharded_gradients=true", "learner.ranks=8", "loss.kl_coef=0.01"])
    assert found.reason.endswith("; try --set learner.unsharded_gradients=false")


def test_it_says_so_where_no_setting_helps() -> None:
    none = ["learner.cpu_offload=true", "learner.reshard_after_forward=true"]
    found = fit(none, gib=8)
    assert found.fits is False
    assert found.reason.endswith(
        "; try LoRA (learner.lora_rank = 32), more GPUs for a generator (generator.tensor_parallel), "
        "more memory or a smaller model: no other setting helps"
    )
    assert fit([*none, "learner.lora_rank=8", "learner.micro_batch_tokens=4096"], gib=4).reason.endswith(
        "more GPUs for a generator (generator.tensor_parallel), more memory or a smaller model: no other setting helps"
    )


def test_a_generator_beside_a_sleeping_rank_takes_less() -> None:
    found = fit([*COLOCATED, "generator.memory_utilization=0.9"], gib=16)
    assert found.fits is False
    assert "the sleeping rank's 2.0 GiB included" in found.reason


def test_a_generator_that_is_too_large_for_one_gpu_is_spread_over_more() -> None:
    found = fit(["generator.memory_utilization=0.1"])  # 8 GiB of each GPU: four together hold 14.2 GiB and the cache
    assert found.reason == (
        "a generator's weights leave no KV cache for one sequence of greatest length; try "
        "--set generator.tensor_parallel=4 --set generator.gpus=4 --set generator.count=1"
    )
    alone = fit(["generator.memory_utilization=0.1", "generator.count=1"])
    assert alone.reason.endswith(
        "; try more GPUs for a generator (generator.tensor_parallel), more memory or a smaller model: no other setting helps"
    )


@pytest.mark.parametrize(
    ("overrides", "host_gib"),
    [([], 0), (COLOCATED, 85.1), (["learner.lora_rank=32", "learner.cpu_offload=true"], 15.4)],
)
def test_what_a_rank_has_in_host_memory_is_stated(overrides: list[str], host_gib: float) -> None:
    # 7,615,616,512 x 12 bytes asleep; 2 bytes of frozen weights and 80,740,352 adapters x 16 offloaded
    found = fit(["learner.ranks=1", "generator.count=1", *overrides], gib=200)
    assert found.fits is True
    said = f", and {host_gib} GiB of host memory for each rank"
    assert (said in found.reason) if host_gib else ("host" not in found.reason)


@pytest.mark.parametrize(("host_gib", "fits"), [(None, None), (64, False), (512, True)])
def test_on_cpus_the_host_s_memory_decides_where_it_is_known(host_gib: int | None, fits: bool | None) -> None:
    host = None if host_gib is None else host_gib * GIB
    assert plan_fit(parse_config({}), MATH_7B, gpu_bytes=GIB, host_bytes=host).fits is fits


def test_settings_that_lower_the_peak_are_named_the_cheapest_first() -> None:
    assert lowering_settings(load_config([RLEP])) == [
        "--set learner.micro_batch_tokens=4096",
        "--set learner.reshard_after_forward=true",
        "--set learner.cpu_offload=true",
        "--set learner.ranks=8",
    ]
