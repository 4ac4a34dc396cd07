"""A plan's numbers, each worked out by hand."""

import json
from functools import partial
from pathlib import Path

import pytest

from benchmarks.parts.hub_models import MODELS
from rlep.config.settings import load_config, parse_config
from rlep.core.errors import ConfigError, DataError, ModelError
from rlep.data.prompts import PromptReport
from rlep.plan.memory import GIB, plan_memory
from rlep.plan.model_shape import read_shape
from rlep.plan.run_plan import Known, PoolCoverage, make_plan, read_collection

ROOT = Path(__file__).parents[3]
RLEP = ROOT / "configs" / "paper" / "rlep.toml"
MATH_7B = MODELS["Qwen/Qwen2.5-Math-7B"]

plan_of = partial(make_plan, gpu_bytes=80 * GIB)


def report(questions: int) -> PromptReport:
    return PromptReport(questions, questions, 0, 0, 0, 0, (), 100)


def test_the_rlep_preset_is_eight_updates_of_64_prompts_and_9216_sequences() -> None:
    step = plan_of(load_config([RLEP]), Known()).step
    assert (step.groups, step.updates, step.prompts_per_update) == (512, 8, 64)
    assert step.sequences == 9216  # 512 x (16 + 2)
    assert step.sequences_per_update == 1152  # 64 x 18
    assert step.tokens_worst == 37_748_736  # 9216 x (1024 + 3072)
    assert step.tokens_expected == 18_874_368  # 9216 x (1024 + 3072 / 3): prompts unknown count as longest
    assert step.steps_per_epoch is None


def test_known_prompts_give_steps_per_epoch_and_expected_tokens() -> None:
    step = plan_of(load_config([RLEP]), Known(data=report(17_917), prompt_tokens=176.0)).step
    assert step.steps_per_epoch == 34  # 34 x 512 = 17,408
    assert step.tokens_expected == 11_059_200  # 9216 x (176 + 1024)


def test_a_step_of_more_prompts_than_there_are_is_refused_as_in_a_run() -> None:
    with pytest.raises(DataError, match="a step uses 512 prompts, the dataset has 511"):
        plan_of(load_config([RLEP]), Known(data=report(511)))


def test_dynamic_sampling_may_write_ten_times_the_answers() -> None:
    step = plan_of(load_config([ROOT / "configs" / "paper" / "dapo.toml"]), Known()).step
    assert (step.updates, step.sequences) == (16, 8192)
    assert step.sampled_at_most == 81_920  # 512 x 16 x 10


def test_replay_share_with_a_full_pool_and_with_this_one() -> None:
    # 10 questions: 2 have nothing, 3 one answer (not eligible), 1 two, 4 five.
    pool = PoolCoverage("here", {0: 2, 1: 3, 2: 1, 5: 4})
    replay = plan_of(load_config([RLEP]), Known(pool=pool)).replay
    assert replay is not None
    assert replay.share_full == pytest.approx(2 / 18)
    assert (replay.questions, replay.eligible) == (10, 5)
    assert replay.per_group == pytest.approx(1.0)  # 5 questions give 2 each
    assert replay.share_expected == pytest.approx(1 / 17)
    both = plan_of(
        load_config([RLEP, ROOT / "configs" / "replay" / "live.toml"], ["replay.source=both"]), Known(pool=pool)
    )
    assert both.replay is not None
    assert both.replay.eligible == 8  # the minimum is of these and the run's own responses together


def test_a_short_pool_gives_what_it_has() -> None:
    assert PoolCoverage("here", {1: 4, 3: 2}).drawn(2, 1) == 8  # 4 x 1 + 2 x 2


def test_no_replay_is_planned_in_phase_1() -> None:
    assert plan_of(load_config([ROOT / "configs" / "paper" / "dapo-nodyn-bs64.toml"]), Known()).replay is None


def test_coverage_is_read_from_what_a_collection_wrote(tmp_path: Path) -> None:
    file = tmp_path / "collection.json"
    file.write_text(json.dumps({"answers_per_question": [7, 0, 2]}))
    assert read_collection(file) == PoolCoverage(str(file), {0: 7, 1: 0, 2: 2})
    file.write_text("{}")
    with pytest.raises(ConfigError, match="not what a collection writes"):
        read_collection(file)


def test_evaluations_at_both_ends_and_between() -> None:
    # steps 0, 10, 20 with 4 answers, step 25 with 16: (3 x 4 + 16) x 60 questions
    tree = {"run": {"steps": 25}, "evaluation": {"every": 10, "samples": 4, "final_samples": 16}}
    plan = plan_of(parse_config(tree), Known(evaluation_questions=60)).evaluation
    assert (plan.times, plan.samples) == (4, 1680)


def test_evaluations_at_points_of_compute_and_at_both_ends() -> None:
    # 8 before the first step, twice 4 at the points, 16 after the last: 32 of each of 10 questions
    rule = {"compute": [1e3, 2e3], "samples": 4, "first_samples": 8, "final_samples": 16}
    plan = plan_of(parse_config({"evaluation": rule}), Known(evaluation_questions=10)).evaluation
    assert (plan.times, plan.samples) == (4, 320)


def test_an_evaluation_due_at_the_last_step_is_not_counted_twice() -> None:
    tree = {"run": {"steps": 20}, "evaluation": {"every": 10, "samples": 1}}
    assert plan_of(parse_config(tree), Known(evaluation_questions=1)).evaluation.samples == 3  # 0, 10, 20


@pytest.mark.parametrize(("questions", "times", "samples"), [(0, 0, 0), (None, 2, None)])
def test_evaluation_without_questions(questions: int | None, times: int, samples: int | None) -> None:
    tree = {"evaluation": {"every": 0}}
    plan = plan_of(parse_config(tree), Known(evaluation_questions=questions)).evaluation
    assert (plan.times, plan.samples) == (times, samples)


def test_resources_are_asked_per_actor() -> None:
    plan = plan_of(load_config([RLEP]), Known())
    assert [(role.role, role.actors, role.cpus, role.gpus) for role in plan.roles] == [
        ("generator", 4, 16, 4),
        ("verifier", 4, 8, 0),
        ("learner", 4, 16, 4),
    ]


COLOCATED = ["cluster.placement=colocated", "update.stream=false"]


def test_devices_used_in_turns_are_counted_once() -> None:
    plan = plan_of(load_config([RLEP], COLOCATED), Known())
    assert [(role.role, role.gpus) for role in plan.roles] == [("generator", 4), ("verifier", 0), ("learner", 4)]
    assert (plan.cpus, plan.gpus) == (24, 4)  # 16 of generators or learners, 8 of verifiers
    apart = plan_of(load_config([RLEP]), Known())
    assert (apart.cpus, apart.gpus) == (40, 8)


def test_parameters_of_the_paper_s_model() -> None:
    # embedding and head 2 x 152064 x 3584; a layer: q and o 2 x 3584^2, k and v 2 x 3584 x 512, biases 3584 + 2 x 512,
    # MLP 3 x 3584 x 18944, norms 2 x 3584: 233,057,792; x 28; last norm 3584
    assert MATH_7B.parameters == 7_615_616_512


def test_parameters_of_the_shipped_model_are_those_of_its_file() -> None:
    assert read_shape(ROOT / "rlep" / "quickstart" / "model").parameters == 109_888


def test_memory_of_the_rlep_preset_s_generators() -> None:
    memory = plan_memory(load_config([RLEP]), MATH_7B, 80 * GIB)
    assert memory.kv_token == 57_344  # 2 x 28 x 4 x 128 x 2 bytes
    assert memory.kv_sequence == 234_881_024  # 224 MiB for 4096 tokens
    # 0.85 x 80 GiB = 73,014,444,032, less weights, 2 GiB of the process, and logits of 512 sequences 16 x 512 x 152064
    assert memory.kv_cache == 54_390_019_072
    assert memory.kv_sequences == 231  # 231.6
    assert (
        plan_memory(load_config([RLEP]), MATH_7B, 40 * GIB).kv_sequences == 76
    )  # (36,507,222,016 - the same) / 224 MiB
    # With 32 sequences the feed-forward network needs more: 8192 x (3 x 18944 + 4 x 3584) x 2 = 1,166,016,512
    few = load_config([RLEP], ["generator.max_sequences=32"])
    assert plan_memory(few, MATH_7B, 80 * GIB).kv_cache == 54_390_019_072 + 1_245_708_288 - 1_166_016_512
    assert memory.weight_update == 15_231_233_024


def test_on_cpu_the_cache_is_what_the_config_says_and_values_are_float32() -> None:
    memory = plan_memory(parse_config({"generator": {"kv_cache_gib": 2}}), MATH_7B, 80 * GIB)
    assert memory.kv_token == 114_688
    assert memory.kv_cache == 2 * GIB
    assert memory.kv_sequences == 4  # 2 GiB / 448 MiB


def test_a_model_that_leaves_no_room_for_the_cache_fits_no_sequence() -> None:
    config = parse_config({"generator": {"gpus": 1, "memory_utilization": 0.1}})
    assert plan_memory(config, MATH_7B, 80 * GIB).kv_sequences == 0


@pytest.mark.parametrize(
    ("kind", "name"),
    [("qwen2", "Qwen/Qwen2.5-3B-Instruct"), ("qwen3", "Qwen/Qwen3-4B"), ("llama", "meta-llama/Llama-3.2-1B-Instruct")],
)
def test_a_shape_is_read_as_each_family_states_it(kind: str, name: str, tmp_path: Path) -> None:
    shape = MODELS[name]
    stated = {"model_type": kind, "num_hidden_layers": shape.layers, "hidden_size": shape.hidden}
    stated |= {"intermediate_size": shape.intermediate, "vocab_size": shape.vocabulary}
    stated |= {"num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim}
    (tmp_path / "config.json").write_text(json.dumps({**stated, "tie_word_embeddings": shape.tied}))
    assert read_shape(tmp_path) == shape


def test_a_config_json_without_a_shape_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_attention_heads": 2}')
    with pytest.raises(
        ModelError, match=r"config\.json: the model's shape cannot be read: KeyError\('num_hidden_layers'"
    ):
        read_shape(tmp_path)
