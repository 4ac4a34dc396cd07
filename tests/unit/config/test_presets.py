"""The presets against the paper's numbers (arXiv 2507.07451, section 4), written out here a second time."""

import json
from itertools import chain
from pathlib import Path

import pytest

from rlep.config.replay import ReplayConfig
from rlep.config.schema import Config
from rlep.config.settings import dump_config, load_config, parse_config
from rlep.core.errors import ConfigError
from rlep.plan.fit import plan_fit
from rlep.plan.model_shape import read_shape

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "configs"
QUICKSTART = ROOT / "rlep" / "quickstart"

# table 1, and section 4 for RLEP: (dynamic sampling, prompts per update, M)
TRAINING = {
    "dapo": (True, 32, 0),
    "dapo-nodyn-bs32": (False, 32, 0),
    "dapo-nodyn-bs64": (False, 64, 0),
    "rlep": (False, 64, 2),
}


def preset(name: str) -> Config:
    return load_config([CONFIGS / "paper" / f"{name}.toml"])


@pytest.mark.parametrize("name", TRAINING)
def test_training_presets_have_the_paper_s_numbers(name: str) -> None:
    config = preset(name)
    dynamic, update, replays = TRAINING[name]
    assert config.rollout.dynamic_sampling is dynamic
    assert config.update.prompts == update
    assert config.replay.count == replays
    assert (config.rollout.prompts, config.rollout.fresh) == (512, 16)
    assert (config.rollout.temperature, config.rollout.top_p, config.rollout.top_k) == (1.0, 1.0, 0)
    assert (config.data.max_prompt_tokens, config.rollout.max_tokens) == (1024, 3072)
    assert (config.update.lr, config.update.weight_decay, config.update.betas) == (1e-6, 0.1, (0.9, 0.999))
    assert (config.update.warmup, config.update.clip_norm) == (10, 1.0)
    assert (config.loss.clip_low, config.loss.clip_high, config.loss.dual_clip) == (0.2, 0.28, 10.0)
    assert (config.loss.aggregation, config.loss.kl_coef, config.loss.entropy_coef) == ("token-mean", 0.0, 0.0)
    assert (config.reward.correct, config.reward.otherwise) == (1.0, -1.0)
    assert (config.reward.overlong_buffer, config.reward.overlong_factor) == (512, 1.0)
    assert config.reward.mask_truncated is False
    assert (config.advantage.ddof, config.advantage.eps, config.advantage.scale) == (1, 1e-6, "group")
    assert (config.evaluation.samples, config.evaluation.temperature, config.evaluation.top_p) == (32, 1.0, 1.0)
    assert config.model.path.name == "Qwen2.5-Math-7B"


def test_dapo_refills_at_most_ten_times() -> None:
    assert preset("dapo").rollout.refill_limit == 10


def test_replays_are_drawn_as_in_the_paper() -> None:
    replay = preset("rlep").replay
    assert (replay.selection, replay.schedule, replay.minimum) == ("uniform", "constant", 2)
    assert (replay.only_below, replay.old_logprobs) == (None, "recompute")


def test_collection_asks_64_times_at_0_7_and_0_95() -> None:
    config = preset("collect")
    assert (config.collection.samples, config.collection.temperature, config.collection.top_p) == (64, 0.7, 0.95)
    assert (config.replay.minimum, config.rollout.max_tokens, config.data.max_prompt_tokens) == (2, 3072, 1024)


def test_phases_hand_over_to_each_other() -> None:
    phase1, collect, phase2 = preset("dapo-nodyn-bs64"), preset("collect"), preset("rlep")
    assert collect.model.path == phase1.run.directory / "checkpoints" / "step-000400" / "model"
    assert phase1.run.steps == 400
    assert phase2.pool.directory == collect.run.directory / "pool"
    assert phase2.data == phase1.data
    assert phase2.model == phase1.model


def test_evaluation_is_32_answers_at_temperature_1() -> None:
    config = preset("evaluate")
    assert (config.evaluation.samples, config.evaluation.temperature, config.evaluation.top_p) == (32, 1.0, 1.0)
    assert (config.rollout.max_tokens, config.data.max_prompt_tokens) == (3072, 1024)


@pytest.mark.parametrize("name", [*TRAINING, "collect", "evaluate"])
def test_presets_run_in_bfloat16_on_gpus_without_labels(name: str) -> None:
    config = preset(name)
    assert (config.generator.gpus, config.generator.dtype) == (1, "bfloat16")
    assert all(not role.label_selector for role in (config.generator, config.verifier, config.learner))
    if name in TRAINING:
        assert (config.learner.gpus, config.learner.dtype) == (1, "bfloat16")
        assert config.learner.activation_checkpointing
        assert config.generator.count + config.learner.ranks == 8


def test_every_training_preset_writes_into_its_own_directory() -> None:
    assert [preset(name).run.directory for name in TRAINING] == [Path("runs") / name for name in TRAINING]
    assert all(preset(name).run.name == name for name in TRAINING)


@pytest.mark.parametrize(
    "file",
    [file for readme in CONFIGS.glob("*/README.md") for file in readme.parent.glob("*.toml")],
    ids=lambda file: file.name,
)
def test_every_config_of_a_recipe_is_complete(file: Path) -> None:
    load_config([file])


@pytest.mark.parametrize("machine", sorted((CONFIGS / "machines").glob("*.toml")), ids=lambda file: file.name)
def test_machines_are_layered_onto_methods_and_change_nothing_but_who_does_the_work(machine: Path) -> None:
    for name in [*TRAINING, "collect", "evaluate"]:
        layers = [CONFIGS / "paper" / f"{name}.toml", machine]
        if name == "dapo" and machine.name.startswith("2x"):
            with pytest.raises(ConfigError, match="dynamic_sampling"):
                load_config(layers)
            continue
        config, method = load_config(layers), preset(name)
        if not config.rollout.max_staleness:
            assert (config.rollout, config.loss) == (method.rollout, method.loss)
        # Adapters are given ten times the learning rate.
        update = method.update.model_copy(update={"lr": 1e-5}) if config.learner.lora_rank else method.update
        assert (config.update, config.reward, config.replay) == (update, method.reward, method.replay)


@pytest.mark.parametrize("name", ["phase1", "phase2", "collect"])
def test_the_quickstart_s_layers_parse(name: str) -> None:
    config = load_config([QUICKSTART / "base.toml", QUICKSTART / f"{name}.toml"])
    assert config.replay.count == (2 if name == "phase2" else 0)
    assert config.data.max_prompt_tokens == load_config([QUICKSTART / "base.toml"]).data.max_prompt_tokens


@pytest.mark.parametrize("name", ["phase1", "phase2", "collect"])
def test_on_a_gpu_the_quickstart_shares_it_and_fits_a_small_one(name: str) -> None:
    config = load_config([QUICKSTART / f"{layer}.toml" for layer in ("base", "gpu", name)])
    fit = plan_fit(config, read_shape(QUICKSTART / "model"), gpu_bytes=8 * 2**30, host_bytes=None)
    # 2 GiB are planned for each process, asleep or not; 16,384 tokens of the toy take 0.1, and the engine 40 % of the card.
    assert fit.fits is True
    assert round(fit.learner_bytes / 2**30, 1) == 4.1
    assert fit.generator_bytes == int(0.4 * 8 * 2**30) + 2 * 2**30


def test_no_config_lies_anywhere_else() -> None:
    known = {file.resolve() for file in chain(CONFIGS.glob("*/*.toml"), QUICKSTART.glob("*.toml"))}
    inside = chain((ROOT / "rlep").rglob("*.toml"), (ROOT / "deploy").rglob("*.toml"), CONFIGS.rglob("*.toml"))
    assert {file.resolve() for file in inside} == known


@pytest.mark.parametrize("name", ["live", "luffy"])
def test_replay_presets_layer_onto_the_method(name: str) -> None:
    config = load_config(
        [CONFIGS / "paper" / "rlep.toml", CONFIGS / "replay" / f"{name}.toml", CONFIGS / "machines" / "8x80gb.toml"]
    )
    assert (config.run.name, config.run.directory) == (name, Path("runs") / name)
    assert config.replay.minimum == 1
    assert config.rollout.prompts == 512


@pytest.mark.parametrize("name", ["live", "exgrpo", "luffy"])
def test_count_0_is_the_control_of_every_replay_preset(name: str) -> None:
    files = [CONFIGS / "paper" / "rlep.toml", CONFIGS / "replay" / f"{name}.toml"]
    more = [] if name == "live" else ["replay.start_step=3", "replay.failed=2", "replay.schedule=linear"]
    control = load_config(files, [*more, "replay.count=0"])
    assert control.replay == ReplayConfig(count=0, minimum=1)
    assert parse_config(json.loads(dump_config(control))) == control
    with pytest.raises(ConfigError, match=r"replay\.source = 'liv': must be"):
        load_config(files, ["replay.count=0", "replay.source=liv"])


def test_pass_at_k_is_a_control_without_replay() -> None:
    config = load_config([CONFIGS / "paper" / "rlep.toml", CONFIGS / "replay" / "pass-at-k.toml"])
    assert (config.replay.count, config.advantage.estimator, config.advantage.k) == (0, "pass@k", 4)


def test_replay_presets_have_their_papers_numbers() -> None:
    live, luffy = (
        load_config([CONFIGS / "paper" / "rlep.toml", CONFIGS / "replay" / f"{name}.toml"]).replay
        for name in ("live", "luffy")
    )
    assert (live.source, live.count, live.per_question, live.old_logprobs) == ("live", 2, 16, "recompute")
    assert (luffy.source, luffy.group, luffy.count, luffy.old_logprobs, luffy.shaping) == (
        "offline",
        "replace",
        1,
        "unit",
        0.1,
    )
