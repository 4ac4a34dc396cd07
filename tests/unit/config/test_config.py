"""The config tree itself: frozen, documented, and refusing settings that contradict each other."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from rlep.config.roles import GeneratorConfig
from rlep.config.schema import Config
from rlep.config.section import Section
from rlep.config.settings import dump_config, load_config, parse_config
from rlep.core.errors import ConfigError
from rlep.driver.run_directory import CHANGEABLE

ROOT = Path(__file__).parents[3]


def fields(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """(dotted key, field) of every leaf."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from fields(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, field


KEYS = dict(fields(Config))


@pytest.mark.parametrize("key", KEYS)
def test_every_field_says_what_it_is(key: str) -> None:
    description = KEYS[key].description
    assert description, f"{key} has no docstring"
    assert description.rstrip().endswith((".", "1.")), f"{key}: {description!r} is not a sentence"


@pytest.mark.parametrize("section", [field.annotation for field in Config.model_fields.values()])
def test_every_section_says_what_it_is(section: type[Section]) -> None:
    assert section.__doc__


def test_the_json_schema_carries_the_descriptions() -> None:
    schema = json.loads(json.dumps(Config.model_json_schema()))
    properties = schema["$defs"]["RolloutConfig"]["properties"]
    assert properties["fresh"]["description"] == "G: fresh rollouts of the current policy for each prompt."
    assert properties["fresh"]["default"] == 16
    assert schema["$defs"]["RolloutConfig"]["additionalProperties"] is False


def test_a_config_cannot_be_changed() -> None:
    config = Config()
    with pytest.raises(ValidationError, match="frozen"):
        config.run.steps = 1  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        config.run = config.run  # type: ignore[misc]


TEACHER = ["loss.teacher=big", "loss.kl_coef=1"]
TIS = 'loss.correction={weight="token",cap=2}'
LIVE = ["replay.source=live", "replay.count=2"]
ON_NETWORK = ["generator.transfer=gloo", "learner.ranks=2"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["update.prompts=100"], r"update\.prompts = 100 does not divide rollout\.prompts = 512"),
        (["rollout.prompts=32"], r"update\.prompts = 64 does not divide rollout\.prompts = 32"),
        (["rollout.max_tokens=512"], r"reward\.overlong_buffer = 512 must be smaller than rollout\.max_tokens = 512"),
        (["rollout.fresh=1"], r"rollout\.fresh = 1 without replays"),
        (
            ["rollout.fresh=1", "replay.count=1", "replay.start_step=100"],
            r"rollout\.fresh = 1 without replays before replay\.start_step = 100",
        ),
        (
            ["rollout.fresh=1", "advantage.estimator=batch", "advantage.scale=batch", "rollout.dynamic_sampling=true"],
            r"rollout\.fresh = 1 without replays: a group of one",
        ),
        (
            ["loss.reward_coef=0", "loss.kl_coef=1"],
            r"loss\.reward_coef = 0 without loss\.teacher: the KL is to the model",
        ),
        (
            [*LIVE, TIS, "rollout.max_staleness=1", "replay.old_logprobs=behaviour"],
            r'replay\.source = "live" with rollout\.max_staleness and stored log-probs',
        ),
        (
            ["loss.teacher=big"],
            r'^loss\.teacher = "big" needs loss\.kl_coef, not 0: it is the weight of the KL to the t',
        ),
        (["loss.teacher_revision=main"], r'teacher_revision = "main" needs loss\.teacher, not none'),
        ([*TEACHER, "loss.kl_reset=9"], r'kl_reset = 9 with loss\.teacher = "big": the policy would take'),
        (
            ["loss.reward_coef=0"],
            r"reward_coef = 0 needs loss\.kl_coef, not 0: without rewards and without a KL nothing",
        ),
        (
            ["rollout.max_staleness=1", "loss.correction.mask=geometric", "loss.correction.high=1.01"],
            r"rollout\.max_staleness = 1 needs loss\.correction\.weight: a mask alone",
        ),
        (["loss.correction=2"], r"loss\.correction = 2: must be a table of names and values"),
        (
            ["loss.correction.weight=token"],
            r"^loss\.correction = \{'weight': 'token'\}: nothing bounds a ratio here: set cap",
        ),
        (["loss.correction.cap=-1"], r"loss\.correction\.cap = -1: must be more than 0"),
        (["loss.correction.caps=2"], r"loss\.correction\.caps = 2: is not a known key"),
        (["loss.tis_cap=2"], r"unknown key loss\.tis_cap; did you mean loss\.correction\?"),
        (["reward.correct=-1"], r"reward\.correct = -1\.0 must exceed reward\.otherwise = -1\.0"),
        (
            ["generator.lease_s=153"],
            r"generator\.lease_s = 153 is less than the 153\.6 s that a response of rollout\.max_tokens = 3072 takes",
        ),
        (
            [*ON_NETWORK, "generator.transfer_deadline_s=150"],
            r"learner\.collective_timeout_s = 300 must exceed 2 × generator\.transfer_deadline_s = 300",
        ),
        (["generator.gpus=1", "generator.tensor_parallel=2"], r"needs generator\.gpus = 2, it is 1"),
        (["learner.gpus=2"], r"learner\.gpus = 2: a rank computes on one GPU"),
        (
            ["learner.ranks=8", "learner.replicas=3"],
            r"learner\.replicas = 3 does not divide learner\.ranks = 8",
        ),
        (
            ["learner.collective_timeout_s=3600"],
            r"learner\.deadline_s = 3600 must exceed learner\.collective_timeout_s = 3600",
        ),
        (["verifier.correct_at=0.5"], r"verifier\.correct_at = 0\.5 with verifier\.profile = math: only a python:"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config([], overrides)


GREEDY = "evaluation.temperature=0"
WARM = "rollout.temperature=0.6"
DISTILLED = [*TEACHER, "loss.reward_coef=0", "loss.kl_estimator=k2"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [GREEDY],
            r"evaluation\.temperature = 0 needs evaluation\.samples = 1, not 32: greedy responses to a question",
        ),
        (
            [GREEDY, "evaluation.samples=1", "evaluation.final_samples=8"],
            r"needs evaluation\.final_samples = 1 or none, not 8",
        ),
        (["rollout.temperature=0"], r"rollout\.temperature = 0: must be more than 0"),
        (["rollout.temperature=0.009"], r"^rollout\.temperature = 0\.009: vLLM would sample at 0\.01; set it to that"),
        (["evaluation.temperature=0.009"], r"^evaluation\.temperature = 0\.009: vLLM would sample at 0\.01"),
        (["collection.temperature=0.009"], r"^collection\.temperature = 0\.009: vLLM would sample at 0\.01"),
        (["rollout.temperature=2.1"], r"^rollout\.temperature = 2\.1: must be at most 2"),
        (["evaluation.temperature=2.1"], r"^evaluation\.temperature = 2\.1: must be at most 2"),
        (["collection.temperature=2.1"], r"^collection\.temperature = 2\.1: must be at most 2"),
        (["collection.temperature=0"], r"collection\.temperature = 0: must be more than 0"),
        (['rollout.stop=[""]'], r"rollout\.stop\.0 = '': must have at least 1 character"),
        (['rollout.stop="</answer>"'], r"rollout\.stop = '</answer>': must be a list"),
        (["rollout.stop_tokens=[-1]"], r"rollout\.stop_tokens\.0 = -1: must be at least 0"),
        (
            [TIS, WARM],
            r'cap = 2 } needs rollout\.temperature = 1, not 0\.6: set loss\.temperature = "rollout"',
        ),
        (["loss.temperature=0.6"], r"loss\.temperature = 0\.6: must be 1 or 'rollout'"),
        ([TIS, "loss.temperature=rollout", "rollout.top_p=0.9"], r"needs rollout\.top_p = 1, not 0\.9"),
        (
            ["advantage.scale=batch", "advantage.drop_constant=true"],
            r'scale = "batch" with advantage\.drop_constant = true: a group of equal rewards has a gradient with it',
        ),
        (
            ["advantage.count_constant=true"],
            r"^advantage\.count_constant = true needs advantage\.drop_constant, not false",
        ),
        (
            [*DISTILLED, "rollout.dynamic_sampling=true"],
            r"^loss\.reward_coef = 0 with rollout\.dynamic_sampling = true: it discards groups",
        ),
        (
            ["loss.kl_coef=0.1", "loss.kl_estimator=k1", "rollout.dynamic_sampling=true"],
            r'^loss\.kl_estimator = "k1" with rollout\.dynamic_sampling = true: it discards groups',
        ),
        ([*DISTILLED, TIS], r"^loss\.correction with loss\.reward_coef = 0"),
        ([*DISTILLED, TIS, "rollout.max_staleness=1"], r"^rollout\.max_staleness with loss\.reward_coef = 0"),
        ([*DISTILLED, "loss.high_entropy_fraction=0.2"], r"^loss\.high_entropy_fraction with loss\.reward_coef = 0"),
        ([*DISTILLED, "replay.count=2", "replay.weight=0.5"], r"^replay\.weight with loss\.reward_coef = 0"),
        ([TIS, "rollout.min_p=0.1"], r"cap = 2 } needs rollout\.min_p = 0, not 0\.1"),
        ([TIS, "rollout.repetition_penalty=1.1"], r"needs rollout\.repetition_penalty = 1, not 1\.1"),
    ],
)
def test_settings_that_cannot_be_together_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config([], overrides)
    load_config([], [GREEDY, "evaluation.samples=1"])
    load_config([], [GREEDY, "evaluation.samples=1", "evaluation.final_samples=1"])


BEST = ["run.steps=50", 'checkpoint.best="evaluation/all/avg"']


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([*BEST, "checkpoint.every=7"], r"checkpoint\.every = 7 and evaluation\.every = 10 first meet at step 70"),
        (
            [*BEST, "evaluation.every=0"],
            r"checkpoint\.every = 10 and evaluation\.every = 0 meet at the last step alone",
        ),
        ([*BEST, "evaluation.compute=[1e6]"], r"only every checkpoint\.every = 10th has a checkpoint"),
    ],
)
def test_a_best_checkpoint_by_evaluations_that_none_has_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config([], overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        ["loss.kl_estimator=k1"],
        [*TEACHER, "loss.reward_coef=0", "rollout.fresh=1"],  # distillation needs no group
        ["loss.kl_coef=0.03", "loss.kl_estimator=k1"],
        [WARM],
        ["rollout.fresh=1", "advantage.estimator=batch", "advantage.scale=batch"],
        [TIS],
        [*DISTILLED, TIS, "loss.kl_estimator=k1"],  # the KL in the reward is corrected with it
        [WARM, *LIVE],
        [WARM, "loss.temperature=rollout", TIS, "rollout.max_staleness=1"],
        [WARM, "loss.temperature=rollout", *LIVE, TIS.replace("loss", "replay")],
        ["loss.temperature=1.0"],
        [WARM, "replay.count=2", "replay.old_logprobs=behaviour"],  # the pool's records say how they were sampled
        [*BEST, "checkpoint.every=5"],
        [*BEST, "checkpoint.every=1", "evaluation.compute=[1e6]"],
        [*BEST, "checkpoint.every=50"],  # one checkpoint, nothing to choose
        ["run.steps=50", "checkpoint.every=7", "checkpoint.best=rollout/accuracy"],
    ],
)
def test_settings_with_an_effect_are_taken(overrides: list[str]) -> None:
    load_config([], overrides)


@pytest.mark.parametrize(
    "key",
    ["reward.correct", "reward.otherwise", "reward.overlong_factor", "advantage.eps", "update.lr", "loss.clip_high"],
)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_number_that_is_not_finite_is_refused_before_anything_starts(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{key} = {value}: must be a finite number"):
        load_config([], [f"{key}={value}"])


@pytest.mark.parametrize(
    ("given", "max_tokens", "seconds"),
    [(None, 12_000, 600), (None, 12_001, 600.05), (None, 20_480, 1024), (5.0, 48, 5), ("none", 20_480, 1024)],
)
def test_a_lease_lasts_as_long_as_the_longest_response_may_take(given: object, max_tokens: int, seconds: float) -> None:
    assert GeneratorConfig.model_validate({"lease_s": given}).lease(max_tokens) == seconds


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("gpu_memory_utilization", "set generator.memory_utilization"),
        ("max_model_len", "set data.max_prompt_tokens and rollout.max_tokens"),
        ("logits_processors", "the weights, the tokenizer and the distribution are those of model.path"),
        ("worker_extension_cls", "rlep places and watches the engine's processes"),
        ("data_parallel_rpc_port", "rlep places and watches the engine's processes"),
        ("hf_token", "no key holds a secret"),
        ("trust_remote_code", "no code is loaded by a name, nor that of a model's repository"),
        ("quantization", "published weights are compared to the bit with those that generators hold"),
        (
            "speculative_config",
            "a draft model would get no new weights, and a seed would no longer give the same response",
        ),
        ("kv_transfer_config", "keys and values must not outlive the policy version"),
        ("generation_config", "a response ends at every EOS of the model's own; for others set rollout.stop_tokens"),
        ("override_generation_config", "set the keys of rollout, evaluation and collection"),
        ("max_num_scheduled_tokens", "set generator.max_batched_tokens"),  # a longer prompt would wait for ever
        ("long_prefill_token_threshold", "vLLM dies on CPUs when it cuts the prompt"),
        ("enable_lora", "set learner.lora_rank: generators get merged weights"),
        ("tokens_only", "the weights, the tokenizer and the distribution are those of model.path"),
    ],
)
def test_an_engine_argument_that_rlep_owns_is_refused_with_the_reason_or_the_key(name: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=rf"^generator\.engine\.{name} is refused: {remedy}"):
        load_config([], [f'generator.engine.{name}="x"'])


def test_other_engine_arguments_are_kept_as_toml_has_them(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        "[generator.engine]\nasync_scheduling = false\ncompilation_config = { level = 0, sizes = [1, 2] }\n"
    )
    config = load_config([file], ["generator.engine.swap_gib=1.5"])
    wanted = {"async_scheduling": False, "compilation_config": {"level": 0, "sizes": [1, 2]}, "swap_gib": 1.5}
    assert config.generator.engine == wanted
    assert parse_config(json.loads(dump_config(config))).generator.engine == wanted
    with pytest.raises(ConfigError, match=r"generator\.engine\.a = .*: "):
        load_config([], ["generator.engine.a=2026-11-26"])  # a date is no value of JSON


COLOCATED = ["cluster.placement=colocated", "generator.count=2", "learner.ranks=4", "generator.tensor_parallel=2"]
ON_GPUS = ["generator.gpus=2", "learner.gpus=1"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["learner.ranks=2"],
            "learner.ranks = 2: generator.count = 2 with generator.tensor_parallel = 2 has the devices of 4",
        ),
        (["learner.replicas=4"], "learner.replicas = 4: a generator of tensor_parallel = 2 has .* which has 1"),
        (["learner.gpus=1"], "generator.gpus = 0 and learner.gpus = 1: a rank has one GPU, and a generator those of"),
        ([*ON_GPUS, "generator.memory_utilization=0.95"], "memory_utilization = 0.95: a sleeping learner keeps"),
        (["generator.label_selector.rlep-role=generator"], "generator.label_selector: it differs from learner"),
    ],
)
def test_what_devices_used_in_turns_rule_out_is_refused_with_the_reason(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=f'^cluster.placement = "colocated" with .*{message}'):
        load_config([], [*COLOCATED, *overrides])
    load_config([], [*COLOCATED, *overrides, "cluster.placement=split"])


@pytest.mark.parametrize(
    "overrides",
    [
        [*COLOCATED],
        [*COLOCATED, *ON_GPUS, "generator.memory_utilization=0.9"],
        [*COLOCATED, "learner.label_selector.zone=a", "generator.label_selector.zone=a"],
        ["rollout.fresh=1", "replay.count=1"],  # a group of two
        ["generator.lease_s=154"],
        [*ON_NETWORK, "generator.transfer_deadline_s=149"],
        ["generator.transfer=gloo", "generator.transfer_deadline_s=500"],  # no rank waits for the one
        ["learner.ranks=2", "generator.transfer_deadline_s=500"],  # nothing is transferred
        ["reward.overlong_buffer=0", "rollout.max_tokens=1"],
        ["rollout.prompts=6", "update.prompts=3"],
        ["verifier.correct_at=0.5", "verifier.profile=python:mine:grade"],
        ["verifier.correct_at=0.5", "verifier.profile='python:a.b:f, 0.5*c:g'", "verifier.network=true"],
        ["verifier.correct_at=0.5", "verifier.profile=judge:judges/strict.toml", "verifier.network=true"],
        [r"verifier.profile='regex:label: (\w+)'"],
    ],
)
def test_settings_at_the_border_are_taken(overrides: list[str]) -> None:
    load_config([], overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["verifier.network=true"],
            "verifier.network = true with verifier.profile = math: only a python:module:function",
        ),
        (["verifier.profile='python:a:f,x*b:g'"], "there is no verifier.profile python:a:f,x"),
        (["verifier.profile=judge:"], "there is no verifier.profile judge:: there are math, "),
    ],
)
def test_a_profile_that_is_none_and_a_network_without_a_function_are_refused(
    overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config([], overrides)


def test_what_may_change_on_resume_names_real_keys() -> None:
    for name in CHANGEABLE:
        assert any(key == name or (name.endswith(".") and key.startswith(name)) for key in KEYS), name


def test_no_key_is_made_for_a_secret() -> None:
    assert not [
        key
        for key in KEYS
        if not key.endswith("_file") and any(word in key for word in ("password", "secret", "token_"))
    ]
