"""The whole run as one frozen tree. Defaults are the paper's phase 2 (Qwen2.5-Math-7B); see ``docs/reference/fidelity.md``.

Every field's docstring says what it is, its unit, and what 0 or None means; ``rlep config schema`` prints them.
Secrets have no field here: the Redis password comes from ``RLEP_REDIS_PASSWORD`` or ``RLEP_REDIS_PASSWORD_FILE``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from rlep.config.no_effect import check_best, check_loss
from rlep.config.recording import RolloutFilesConfig, TrackingConfig
from rlep.config.replay import ReplayConfig, check_live
from rlep.config.roles import (
    ClusterConfig,
    Count,
    Decay,
    GeneratorConfig,
    LearnerConfig,
    PoolConfig,
    Positive,
    Seconds,
    Section,
    Share,
    VerifierConfig,
    Weight,
    check_colocated,
    check_times,
)
from rlep.core.errors import ConfigError


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

    path: Path = Path("models/Qwen2.5-Math-7B")
    """Hugging Face directory with safetensors weights, config.json and tokenizer."""
    chat_template: bool = True
    """Wrap each question in the tokenizer's chat template; False uses the question unchanged."""
    system_prompt: str | None = None
    """System message put before each question; needs ``chat_template``."""


class DataConfig(Section):
    """Questions with reference answers (verl Parquet, or problem/answer Parquet and JSONL)."""

    train: Path = Path("data/dapo-math-17k.parquet")
    """Training questions; duplicates are merged by content hash."""
    evaluation: tuple[Path, ...] = ()
    """Held-out files; each may hold several data sources, reported one by one."""
    max_prompt_tokens: Positive = 1024
    """Longer prompts are filtered and counted."""
    max_bad_rows: Share = 0.05
    """Largest share of a file's rows without a usable question or answer; a file with more is refused, and names ten of them."""


class RolloutConfig(Section):
    """What the current policy generates in every step."""

    prompts: Positive = 512
    """P: prompts per step."""
    fresh: Positive = 16
    """G: fresh rollouts of the current policy for each prompt."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature; the loss takes log-probs at temperature 1, whatever this is."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus: smallest set of tokens with this much probability; 1 keeps all."""
    top_k: Count = 0
    """Most probable tokens kept; 0 keeps all."""
    max_tokens: Positive = 3072
    """Longest response in tokens, EOS included."""
    deadline_s: Seconds = 3600
    """Longest rollout of one step; then the run ends with an error that counts the missing samples."""
    dynamic_sampling: bool = False
    """DAPO: drop prompts whose verdicts (and scores, if the verifier gives any) are all equal and draw others."""
    refill_limit: Positive = 4
    """Dynamic sampling: a step samples at most this many times ``prompts``, then continues with the groups it has."""
    max_staleness: Count = 0
    """Largest policy lag of a trained token, in versions; so many steps' rollouts are prefetched. 0 is on-policy (paper)."""
    partial: Literal["keep", "abort"] = "keep"
    """With staleness, an unfinished response continues under new weights (``keep``), or is generated again (``abort``)."""


class RewardConfig(Section):
    """From verdict to reward."""

    correct: float = 1.0
    """Reward of a correct response, and of a score of 1."""
    otherwise: float = -1.0
    """Reward of every other verdict, timeouts included, and of a score of 0."""
    overlong_buffer: Count = 512
    """Lc: tokens before ``rollout.max_tokens`` over which the penalty grows linearly; 0 switches it off."""
    overlong_factor: float = Field(1.0, ge=0)
    """Largest overlong penalty."""
    mask_truncated: bool = False
    """Take responses without EOS out of the loss instead of penalising them."""


class AdvantageConfig(Section):
    """One baseline over the mixed group (eq. 5)."""

    estimator: Literal["group", "leave-one-out"] = "group"
    """``group``: GRPO. ``leave-one-out``: RLOO."""
    ddof: Literal[0, 1] = 1
    """Degrees of freedom subtracted in the standard deviation."""
    eps: float = Field(1e-6, ge=0)
    """Added to the standard deviation."""
    scale: bool = True
    """Divide by the standard deviation; False is Dr.GRPO."""
    drop_constant: bool = False
    """Leave groups whose rewards are all equal out of the policy's loss and its token count: they have no gradient there either
    way, and are not computed. KL and entropy, where they are on, act on them all the same."""


class LossConfig(Section):
    """Eq. 4 and its variants."""

    clip_low: float = Field(0.2, ge=0, lt=1)
    """Lower clip: ratios below 1 - clip_low are clipped."""
    clip_high: float = Field(0.28, ge=0)
    """Upper clip (clip-higher): ratios above 1 + clip_high are clipped."""
    dual_clip: float | None = Field(10.0, gt=1)
    """Bound of the loss where the advantage is negative; None (``"none"`` or 0 in TOML) is eq. 4 literally."""
    aggregation: Literal[
        "token-mean", "prompt-token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "fixed-length"
    ] = "token-mean"
    """How token losses are averaged over one update."""
    level: Literal["token", "sequence"] = "token"
    """Importance ratio per token, or per sequence (GSPO)."""
    surrogate: Literal["ppo", "cispo"] = "ppo"
    """Clipped surrogate, or clipped importance weights on the log-probs (CISPO)."""
    tis_cap: float | None = Field(None, gt=0)
    """Truncated importance sampling between sampler and learner, capped here; None is off."""
    kl_coef: Weight = 0.0
    """Weight of the KL to the base model; 0 is off, anything else holds the base weights a second time."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of that KL; ``k1`` is refused with ``kl_coef``: as a loss, its gradient is zero in expectation."""
    entropy_coef: Weight = 0.0
    """Weight of the entropy bonus; 0 is off."""
    high_entropy_fraction: float = Field(1.0, gt=0, le=1)
    """Train only on this share of tokens, those of highest entropy (the 80/20 paper uses 0.2)."""


class UpdateConfig(Section):
    """How a rollout is divided into optimizer steps, and the optimizer."""

    prompts: Positive = 64
    """B: prompts (whole groups) per optimizer step; must divide ``rollout.prompts``."""
    stream: bool = False
    """Score and update on mini-batches while later responses are generated; the result is the same to the bit."""
    lr: float = Field(1e-6, gt=0)
    """AdamW learning rate."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """AdamW moment decays."""
    weight_decay: float = Field(0.1, ge=0)
    """Decoupled weight decay, of every weight: biases, norms and embeddings too."""
    warmup: Count = 10
    """Linear warm-up, counted in ``update.unit`` (first factor 1/this); 0 starts at full rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up; a decay ends after the last of ``run.steps``, which is one part above the end."""
    floor: Share = 0.0
    """Factor of ``lr`` at the end of a decay."""
    unit: Literal["rollouts", "updates"] = "rollouts"
    """What warm-up and decay count: the updates of one rollout share a rate, or each has its own."""
    clip_norm: float = Field(1.0, gt=0)
    """Global gradient norm is clipped here; a non-finite gradient skips the update."""
    idle_steps: Count = 100
    """End the run when no update had a gradient in so many steps in a row, or in any step of the run; 0: never."""


class EvaluationConfig(Section):
    """Held-out accuracy during training and in ``rlep evaluate``."""

    every: Count = 10
    """Steps between evaluations, beside the first and the last; 0 evaluates only at the ends."""
    samples: Positive = 32
    """n: responses per question."""
    final_samples: Positive | None = None
    """n after the last step; None takes ``samples``."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus."""
    seed: int = Field(0, ge=0)
    """Seed of the evaluation's samples; use the same in runs that you compare."""


class CollectionConfig(Section):
    """``rlep collect``: verified responses of the trained policy enter the pool."""

    samples: Positive = 64
    """Candidates per question."""
    temperature: float = Field(0.7, gt=0)
    """Sampling temperature."""
    top_p: float = Field(0.95, gt=0, le=1)
    """Nucleus."""
    cap: Positive = 64
    """Most responses stored for one question."""
    failed: Count = 0
    """Most complete but wrong responses stored for one question, in a separate pool, for ``replay.failed``."""


class CheckpointConfig(Section):
    """Resumable state of a training run."""

    every: Positive = 10
    """Steps between checkpoints; the last step is always written."""
    keep: Positive = 2
    """Newest checkpoints kept."""
    best: str | None = None
    """Metric whose largest value marks a checkpoint that is kept too, e.g. ``evaluation/aime2024/avg``; None keeps none."""
    accept: tuple[Literal["data", "tokenizer", "pool", "template", "update"], ...] = ()
    """What may differ from the run that is continued; everything else is refused."""


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
    learner: LearnerConfig = LearnerConfig()
    pool: PoolConfig = PoolConfig()
    cluster: ClusterConfig = ClusterConfig()
    rollouts: RolloutFilesConfig = RolloutFilesConfig()
    tracking: TrackingConfig = TrackingConfig()

    @property
    def pool_directory(self) -> Path:
        """Where the embedded Redis keeps its data."""
        return self.pool.directory or self.run.directory / "pool"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
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
        if update.stream and rollout.dynamic_sampling:
            raise ConfigError(
                "update.stream = true with rollout.dynamic_sampling: which groups a step trains on is known "
                "only when all are verified; switch one of them off"
            )
        if rollout.fresh == 1 and self.replay.count == 0:
            raise ConfigError("rollout.fresh = 1 without replays: a group of one has no advantage; use 2 or more")
        if self.replay.start_step >= self.run.steps:
            raise ConfigError(
                f"replay.start_step = {self.replay.start_step} leaves no step for replays: run.steps = {self.run.steps}"
            )
        if self.model.system_prompt is not None and not self.model.chat_template:
            raise ConfigError("model.system_prompt needs model.chat_template = true")
        if self.reward.correct <= self.reward.otherwise:
            raise ConfigError(f"reward.correct = {reward.correct} must exceed reward.otherwise = {reward.otherwise}")
        check_live(self.replay, url=self.pool.url or "", run_name=self.run.name)
        check_loss(self)
        check_best(self)
        self._check_replaced()
        self._check_staleness()
        check_times(self.generator, self.learner, rollout.max_tokens)
        if self.cluster.placement == "colocated":
            check_colocated(self.generator, self.learner, stream=update.stream, max_staleness=rollout.max_staleness)
        return self

    def _check_replaced(self) -> None:
        rollout, replay = self.rollout, self.replay
        if replay.group == "add":
            return
        if replay.count + replay.failed >= rollout.fresh:
            raise ConfigError(
                f'replay.group = "replace" with replay.count = {replay.count} and rollout.fresh = {rollout.fresh}: a group needs '
                "a fresh response"
            )
        for key, on in (("rollout.max_staleness", rollout.max_staleness), ("update.stream", self.update.stream)):
            if on:
                raise ConfigError(f'replay.group = "replace" with {key}: requests are sent before replays are drawn')

    def _check_staleness(self) -> None:
        rollout = self.rollout
        if not rollout.max_staleness:
            if rollout.partial != "keep":
                raise ConfigError(
                    f"rollout.partial = {rollout.partial} is set but rollout.max_staleness = 0: no response sees new weights"
                )
            return
        stale = f"rollout.max_staleness = {rollout.max_staleness}"
        if self.loss.tis_cap is None:
            raise ConfigError(
                f"{stale} needs loss.tis_cap, e.g. 2: old log-probs are those of the learner at the start of the step, "
                "and only importance sampling brings tokens of an older policy to it"
            )
        if rollout.dynamic_sampling:
            raise ConfigError(
                f"{stale} with rollout.dynamic_sampling: how much a step samples is known only when its groups are "
                "verified, so nothing can be prefetched within the bound; switch one of them off"
            )
