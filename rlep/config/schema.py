"""The whole run as one frozen tree. Defaults are the paper's phase 2 (Qwen2.5-Math-7B); see ``docs/reference/fidelity.md``.

Every field's docstring says what it is, its unit, and what 0 or None means; ``rlep config schema`` prints them.
Secrets have no field here: the Redis password comes from ``RLEP_REDIS_PASSWORD`` or ``RLEP_REDIS_PASSWORD_FILE``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue, PlainSerializer, field_validator, model_validator

from rlep.config.environment import EnvironmentConfig
from rlep.config.replay import ReplayConfig
from rlep.config.roles import (
    ClusterConfig,
    GeneratorConfig,
    LearnerConfig,
    PoolConfig,
    VerifierConfig,
    check_colocated,
    check_times,
)
from rlep.config.sampling import SamplingConfig
from rlep.config.section import (
    Count,
    Positive,
    Seconds,
    Section,
    Share,
    clashes,
    needs,
    option,
    refusals,
)
from rlep.config.training import (
    AdvantageConfig,
    CheckpointConfig,
    CollectionConfig,
    EvaluationConfig,
    LossConfig,
    RewardConfig,
    UpdateConfig,
)
from rlep.core.errors import ConfigError
from rlep.core.hub_names import hub_data
from rlep.core.types import Sampling

LONGEST_LIVE_NAME = 59
"""Characters of ``run.name`` that leave room for ``.live`` in the name of a pool."""

GIVEN_VARIABLES = (
    *(
        "conversation",
        "messages",
        "tools",
        "documents",
        "chat_template",
        "add_generation_prompt",
        "tokenize",
        "padding",
    ),
    *("continue_final_message", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs"),
    "return_assistant_tokens_mask",
)
"""Names that ``apply_chat_template`` of transformers takes for its own arguments."""


class RunConfig(Section):
    """Name, directory and length of the run."""

    name: str = Field("rlep", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    """Label in reports, trackers and Ray actor names."""
    directory: Path = Path("runs/rlep")
    """Run directory: metrics, events, checkpoints, resolved config. The same directory resumes the run."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of every random draw: prompt order, samples, replay draws."""
    steps: Positive = 400
    """Training steps; one step is one rollout of ``rollout.prompts`` prompts and its updates."""


class ModelConfig(Section):
    """The base policy."""

    path: Path = Path("Qwen/Qwen2.5-Math-7B")
    """Directory with safetensors weights, config.json and tokenizer, or a model's id on the Hugging Face hub, e.g.
    ``Qwen/Qwen3-4B``. A directory wins over an id."""
    revision: str | None = Field(None, min_length=1)
    """Branch, tag or commit of a model of the hub; None is the newest. A run records the commit, and is continued on no other."""
    chat_template: bool = True
    """Wrap each question in the tokenizer's chat template; False uses the question unchanged."""
    system_prompt: str | None = option(
        None, requires=[needs("model.chat_template", because="a message is part of a template")]
    )
    """System message put before each question; needs ``chat_template``."""
    template: dict[str, JsonValue] = option(
        {}, requires=[needs("model.chat_template", because="they are variables of a template")]
    )
    """Variables of the chat template, e.g. ``{ enable_thinking = false }`` for Qwen3; one that it does not read is refused."""
    template_file: Path | None = option(
        None, requires=[needs("model.chat_template", because="without it no template is used")]
    )
    """Jinja file used in place of the tokenizer's own chat template."""

    @field_validator("template")
    @classmethod
    def _only_the_users(cls, template: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if taken := [name for name in template if name in GIVEN_VARIABLES]:
            raise ConfigError(f"model.template.{taken[0]}: rlep gives it to the chat template itself; leave it out")
        return template


class TrainingSet(Section):
    """One of several training sets."""

    path: Path
    """File, or ``hf:ORG/NAME[/CONFIG]:SPLIT``."""
    weight: float = Field(1.0, gt=0)
    """Its share of every step's prompts, relative to the other sets' weights."""

    @field_validator("path")
    @classmethod
    def _known_form(cls, path: Path) -> Path:
        hub_data(path)
        return path


def _sets(value: object) -> object:
    """One path is one set; so is each path of a list."""
    if isinstance(value, str | Path):
        hub_data(Path(value))
        return [{"path": value}]
    if not isinstance(value, list | tuple) or not value:
        raise ValueError("must be a path, as text, or a list of tables with path and weight")
    return [{"path": one} if isinstance(one, str | Path) else one for one in value]


def _as_written(sets: tuple[TrainingSet, ...]) -> str | list[dict[str, Any]]:
    """A single set is dumped as its path."""
    single = len(sets) == 1 and sets[0].weight == 1
    return str(sets[0].path) if single else [one.model_dump(mode="json") for one in sets]


class DataConfig(Section):
    """Questions with reference answers (verl Parquet, or problem/answer Parquet and JSONL), of files or of the hub."""

    train: Annotated[tuple[TrainingSet, ...], BeforeValidator(_sets), PlainSerializer(_as_written)] = (
        TrainingSet(path=Path("data/dapo-math-17k.parquet")),
    )
    """Training questions: a file, or ``hf:ORG/NAME[/CONFIG]:SPLIT``, a data set's Parquet conversion on the Hugging Face hub; or
    several with weights, ``[{path = "a.parquet", weight = 3}, {path = "b.parquet"}]``. Duplicates are merged by content hash."""
    evaluation: tuple[Path, ...] = ()
    """Held-out sets, named likewise; each may hold several data sources, reported one by one."""
    question: str | None = Field(None, min_length=1)
    """Column of the question, which the training set must have; None finds it among the known names, as in a held-out set
    without this column."""
    answer: str | None = Field(None, min_length=1)
    """Column of the reference answer, likewise."""
    max_prompt_tokens: Positive = 1024
    """Longer prompts are filtered and counted."""
    max_bad_rows: Share = 0.05
    """Largest share of a file's rows without a usable question or answer; a file with more is refused, and names ten of them."""

    @field_validator("evaluation")
    @classmethod
    def _known_form(cls, paths: tuple[Path, ...]) -> tuple[Path, ...]:
        for path in paths:
            hub_data(path)
        return paths

    @property
    def train_paths(self) -> tuple[Path, ...]:
        """Files and names of the training sets, in their order."""
        return tuple(one.path for one in self.train)


class RolloutConfig(SamplingConfig):
    """Responses that the current policy generates in every step."""

    prompts: Positive = 512
    """P: prompts per step."""
    fresh: Positive = 16
    """G: fresh rollouts of the current policy for each prompt."""
    max_tokens: Positive = 3072
    """Longest response in tokens, EOS included; in evaluation and collection too."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Texts that end a response, e.g. ``["</answer>"]``, in evaluation and collection too. Its tokens up to the one that
    completes the text are kept, trained on and graded; special tokens count as their text."""
    stop_tokens: tuple[Count, ...] = ()
    """Ids of tokens that end a response beside the EOS, in evaluation and collection too."""
    deadline_s: Seconds = 3600
    """Longest rollout of one step; then the run ends with an error that counts the missing samples. One with more responses,
    e.g. an evaluation, has in proportion more, and with ``max_staleness`` that of the rollouts before it as well."""
    dynamic_sampling: bool = False
    """DAPO: drop prompts whose verdicts (and scores, if the verifier gives any) are all equal and draw others."""
    refill_limit: Positive = 4
    """Dynamic sampling: a step samples at most this many times ``prompts``, then continues with the groups it has."""
    max_staleness: Count = option(
        0,
        requires=[
            needs(
                "loss.correction",
                because='set { weight = "token", cap = 2 }: old log-probs are those of the learner at the start of the step, and '
                "only importance sampling brings tokens of an older policy to it",
            )
        ],
        excludes=[
            clashes(
                "rollout.dynamic_sampling",
                because="how much a step samples is known only when its groups are verified, so nothing can be prefetched within "
                "the bound; switch one of them off",
            )
        ],
    )
    """Largest policy lag of a trained token, in versions; so many steps' rollouts are prefetched. 0 is on-policy (paper)."""
    partial: Literal["keep", "abort"] = option(
        "keep", requires=[needs("rollout.max_staleness", because="without, no response sees new weights")]
    )
    """With staleness, an unfinished response continues under new weights (``keep``), or is generated again (``abort``)."""


class RolloutFilesConfig(Section):
    """``rollouts/`` in the run directory: every trajectory of every step as a row, and the texts of chosen groups."""

    groups: Count = 32
    """Groups of each step whose texts, token ids and log-probs are written: half drawn, half extreme; 0 writes none."""
    watch: tuple[str, ...] = Field((), max_length=64)
    """Ids of at most 64 training prompts whose groups are written on top of those, in every step that has them."""
    keep_gib: float = Field(8.0, ge=0)
    """GiB that the token files of all steps may take; the oldest are removed first. The rows are kept."""


class TrackingConfig(Section):
    """Sinks of metrics beside ``metrics.jsonl``, which is always written."""

    sinks: tuple[Literal["tensorboard", "wandb", "mlflow", "prometheus"], ...] = ()
    """Extra sinks; the first three need the extra of their name installed, ``prometheus`` scrapes Ray's own metrics."""
    project: str = "rlep"
    """Project or experiment name in the tracker."""


class Config(Section):
    """A whole run."""

    run: RunConfig = RunConfig()
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    rollout: RolloutConfig = RolloutConfig()
    replay: ReplayConfig = ReplayConfig()
    reward: RewardConfig = RewardConfig()
    advantage: AdvantageConfig = AdvantageConfig()
    loss: LossConfig = LossConfig()
    update: UpdateConfig = UpdateConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    collection: CollectionConfig = CollectionConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    generator: GeneratorConfig = GeneratorConfig()
    verifier: VerifierConfig = VerifierConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    learner: LearnerConfig = LearnerConfig()
    pool: PoolConfig = PoolConfig()
    cluster: ClusterConfig = ClusterConfig()
    rollouts: RolloutFilesConfig = RolloutFilesConfig()
    tracking: TrackingConfig = TrackingConfig()

    @property
    def pool_directory(self) -> Path:
        """Directory of the embedded Redis."""
        return self.pool.directory or self.run.directory / "pool"

    @property
    def models(self) -> tuple[ModelConfig, ...]:
        """The policy's model and, where there is one, the teacher, in the terms of ``[model]``."""
        teacher = {"path": self.loss.teacher, "revision": self.loss.teacher_revision}
        return (self.model, *([self.model.model_copy(update=teacher)] if self.loss.teacher else []))

    @property
    def context(self) -> int:
        """Longest sequence, prompt and response, in tokens."""
        return self.data.max_prompt_tokens + self.rollout.max_tokens

    @property
    def loss_temperature(self) -> float:
        """Temperature of the learner's log-probs."""
        return self.rollout.temperature if self.loss.temperature == "rollout" else 1.0

    @property
    def logprobs_mode(self) -> Literal["raw", "processed"]:
        """Log-probs that generators return: of the model, or of the distribution that they draw from."""
        return "processed" if self.loss.temperature == "rollout" else "raw"

    def sampling(self, section: SamplingConfig) -> Sampling:
        """Sampling of a rollout, an evaluation or a collection: all end a response alike."""
        drawn = {name: getattr(section, name) for name in SamplingConfig.model_fields}
        rollout = self.rollout
        return Sampling(**drawn, max_tokens=rollout.max_tokens, stop=rollout.stop, stop_tokens=rollout.stop_tokens)

    @property
    def schedule_end(self) -> int:
        """Rollouts or updates of the run, whichever ``update.unit`` counts: the end of a decay."""
        return self.run.steps * (self.updates_per_step if self.update.unit == "updates" else 1)

    @property
    def updates_per_step(self) -> int:
        """Optimizer steps of a whole rollout."""
        return self.update.epochs * (self.rollout.prompts // self.update.prompts)

    @property
    def on_update(self) -> Literal["wait", "keep", "abort"]:
        """Effect of new weights on responses being generated: waited for, continued, or begun again."""
        return self.rollout.partial if self.rollout.max_staleness else "wait"

    @property
    def keeps_start_weights(self) -> bool:
        """True if a step scores after its first update, with the weights before it."""
        return self.update.stream and self.update.prompts < self.rollout.prompts

    @property
    def rehearses(self) -> bool:
        """True if the learner tries its largest update first: some seconds on a GPU. A CPU would take minutes, and swap."""
        return self.learner.gpus > 0

    @property
    def generator_threads(self) -> int:
        """CPU threads of an engine: its own, or, taking turns with learner ranks, theirs where those are more."""
        own, shared = self.generator.cpus, self.generator.tensor_parallel * self.learner.cpus
        return self.generator.threads or self._threads(own, shared)

    @property
    def learner_threads(self) -> int:
        """CPU threads of a rank: its own, or, taking turns with a generator, its part of those where that is more."""
        own, shared = self.learner.cpus, self.generator.cpus / self.generator.tensor_parallel
        return self.learner.threads or self._threads(own, shared)

    def _threads(self, own: float, shared: float) -> int:
        return max(1, int(max(own, shared) if self.cluster.placement == "colocated" else own))

    def with_values(self, **sections: Mapping[str, Any]) -> Self:
        """A copy with other values in some sections; they are not checked, nor is what they contradict."""
        changed = {name: getattr(self, name).model_copy(update=dict(values)) for name, values in sections.items()}
        return self.model_copy(update=changed)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for refusal in refusals(self):
            raise ConfigError(refusal)
        self._check_step()
        self._check_rewards()
        self._check_replay()
        self._check_best()
        check_times(self.generator, self.learner, self.rollout.max_tokens)
        if self.cluster.placement == "colocated":
            check_colocated(self.generator, self.learner)
            self._check_sampling_asleep()
        return self

    def _check_sampling_asleep(self) -> None:
        """Refuse on GPUs what vLLM's sampler counts in memory that a sleeping generator gives away.

        A collection has no learner to sleep for.
        """
        for section in ("rollout", "evaluation") if self.generator.gpus else ():
            penalty = getattr(self, section).repetition_penalty
            if penalty != 1:
                raise ConfigError(
                    f'{section}.repetition_penalty = {penalty:g} with cluster.placement = "colocated" on GPUs: vLLM counts '
                    'tokens in memory that it gives away asleep; set it to 1, or cluster.placement = "split"'
                )

    def _check_step(self) -> None:
        rollout, update, reward = self.rollout, self.update, self.reward
        if rollout.prompts % update.prompts:
            raise ConfigError(
                f"update.prompts = {update.prompts} does not divide rollout.prompts = {rollout.prompts}: "
                "an optimizer step takes whole groups"
            )
        if reward.overlong_buffer >= rollout.max_tokens:
            raise ConfigError(
                f"reward.overlong_buffer = {reward.overlong_buffer} must be smaller than "
                f"rollout.max_tokens = {rollout.max_tokens}; 0 switches the penalty off"
            )
        correction = self.loss.correction
        if rollout.max_staleness and correction is not None and correction.weight is None:
            raise ConfigError(
                f"rollout.max_staleness = {rollout.max_staleness} needs loss.correction.weight: a mask alone does not bring "
                'tokens of an older policy to that of the step; set it to "token"'
            )
        environment = self.environment
        if environment.factory and environment.observation_tokens >= rollout.max_tokens:
            raise ConfigError(
                f"environment.observation_tokens = {environment.observation_tokens} must be smaller than rollout.max_tokens = "
                f"{rollout.max_tokens}, which bounds a whole episode with its observations"
            )
        advantage = self.advantage
        if advantage.estimator == "pass@k" and advantage.k >= rollout.fresh:
            raise ConfigError(
                f'advantage.k = {advantage.k} with rollout.fresh = {rollout.fresh}: "pass@k" compares the {advantage.k}-subsets '
                "of a group; set it below rollout.fresh"
            )
        if reward.correct <= reward.otherwise:
            raise ConfigError(f"reward.correct = {reward.correct} must exceed reward.otherwise = {reward.otherwise}")
        lone = rollout.fresh == 1 and (self.replay.count == 0 or self.replay.start_step > 0)
        if lone and self.loss.reward_coef and (self.advantage.estimator != "batch" or rollout.dynamic_sampling):
            until = f" before replay.start_step = {self.replay.start_step}" if self.replay.count else ""
            raise ConfigError(
                f"rollout.fresh = 1 without replays{until}: a group of one has no advantage; use 2 or more"
            )
        if update.schedule != "constant" and self.schedule_end <= update.warmup:
            raise ConfigError(
                f'update.schedule = "{update.schedule}" begins after update.warmup = {update.warmup}, and the run has '
                f"{self.schedule_end} {update.unit}; shorten the warm-up, or raise run.steps"
            )

    def _check_rewards(self) -> None:
        """Refuse what acts on the rewards' term of the loss alone where ``loss.reward_coef = 0`` takes that away."""
        loss, replay = self.loss, self.replay
        if not (loss.reward_coef or loss.teacher or loss.entropy_coef):
            raise ConfigError(
                "loss.reward_coef = 0 without loss.teacher: the KL is to the model that the run begins with, and is 0; name a "
                "teacher"
            )
        if loss.reward_coef or loss.kl_estimator == "k1":  # which is part of that term
            return
        useless = {
            "rollout.max_staleness": self.rollout.max_staleness,
            "loss.correction": loss.correction,
            "loss.high_entropy_fraction": loss.high_entropy_fraction < 1,
            "replay.correction": replay.correction,
            "replay.shaping": replay.shaping,
            "replay.weight": replay.weight != 1,
        }
        if key := next((key for key, value in useless.items() if value), None):
            raise ConfigError(
                f'{key} with loss.reward_coef = 0 and loss.kl_estimator = "{loss.kl_estimator}": it acts on the rewards\' part '
                'of the loss, not on that KL; leave it out, or set loss.kl_estimator = "k1", whose KL is in the reward'
            )

    def _check_replay(self) -> None:
        replay, fresh = self.replay, self.rollout.fresh
        replay.check_schedule(self.run.steps)
        if replay.source == "live" and replay.per_question < replay.minimum:
            raise ConfigError(
                f"replay.per_question = {replay.per_question} keeps fewer responses of a question than replay.minimum = "
                f"{replay.minimum} asks for: none would be replayed"
            )
        if replay.group == "replace" and replay.count + replay.failed >= fresh:
            raise ConfigError(
                f'replay.group = "replace" with replay.count = {replay.count} and rollout.fresh = {fresh}: a group needs '
                "a fresh response"
            )
        if replay.source == "offline":
            return
        source = f'replay.source = "{replay.source}"'
        if self.rollout.max_staleness and replay.compares_stored:
            raise ConfigError(
                f"{source} with rollout.max_staleness and stored log-probs: a live response is stored with the learner's, and "
                'earlier weights sampled it; set replay.old_logprobs = "recompute" and leave replay.correction out, or '
                "rollout.max_staleness = 0"
            )
        if len(self.run.name) > LONGEST_LIVE_NAME:
            raise ConfigError(f"{source} with run.name = {self.run.name}: at most {LONGEST_LIVE_NAME} characters")

    def _check_best(self) -> None:
        """Refuse a ``checkpoint.best`` of evaluations where no checkpoint but the last one has any."""
        best, saves, evaluates, steps = (
            self.checkpoint.best,
            self.checkpoint.every,
            self.evaluation.every,
            self.run.steps,
        )
        if not (best or "").startswith("evaluation/") or saves >= steps:
            return
        if self.evaluation.compute:
            if saves > 1:
                raise ConfigError(
                    f"checkpoint.best = {best!r} with evaluation.compute: it evaluates after steps that nobody knows before, and "
                    f"only every checkpoint.every = {saves}th has a checkpoint; set checkpoint.every = 1, or evaluation.every"
                )
            return
        both = math.lcm(saves, evaluates)  # 0 where only the ends are evaluated
        if not both or both >= steps:
            meet = f"first meet at step {both}" if both else "meet at the last step alone"
            raise ConfigError(
                f"checkpoint.best = {best!r}: no checkpoint before the last of run.steps = {steps} has an evaluation, because "
                f"checkpoint.every = {saves} and evaluation.every = {evaluates} {meet}; set them to the same"
            )
