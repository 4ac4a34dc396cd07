"""Sections about training: reward, advantage, loss, update, evaluation, collection, checkpoints."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from rlep.config.replay import plain_sampling
from rlep.config.sampling import MOST_TEMPERATURE, SamplingConfig
from rlep.config.section import CorrectionConfig, Count, Decay, Positive, Section, Share, Weight, clashes, needs, option

Aggregation = Literal["token-mean", "prompt-token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "fixed-length"]


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

    estimator: Literal["group", "leave-one-out", "batch", "pass@k"] = option(
        "group",
        requires=[
            needs("advantage.scale", "batch", when=("batch",), because="the whole rollout is its only baseline"),
            needs("reward.overlong_buffer", 0, when=("pass@k",), because="it knows correct and wrong responses alone"),
        ],
    )
    """``group``: GRPO. ``leave-one-out``: RLOO. ``batch``: REINFORCE++, without a baseline of the group's own. ``pass@k``: by how
    often one of ``k`` responses of the group is correct."""
    k: Positive = option(4, requires=[needs("advantage.estimator", "pass@k", because="it is the k of pass@k")])
    """Responses of which one has to be correct, for ``estimator = "pass@k"``."""
    ddof: Literal[0, 1] = 1
    """Degrees of freedom subtracted in the standard deviation."""
    eps: float = Field(1e-6, ge=0)
    """Added to the standard deviation."""
    scale: Literal["group", "batch", "none"] = option(
        "group",
        excludes=[
            clashes(
                "update.stream",
                when=("batch",),
                because="its mean and deviation are known only when the whole rollout is; switch streaming off",
            ),
            clashes(
                "advantage.drop_constant", when=("batch",), because="a group of equal rewards has a gradient with it"
            ),
        ],
    )
    """Divisor: standard deviation of the group (``leave-one-out`` has none), of all tokens of the rollout, whose mean is then 0
    (``batch``; with ``estimator = "group"`` REINFORCE++-baseline), or 1 (``none``: Dr.GRPO)."""
    drop_constant: bool = False
    """Leave groups whose advantages are all 0, as where all rewards are equal, out of the policy's loss and its token count:
    they have no gradient there either way, and are not computed. KL and entropy, where they are on, act on them all the same."""
    count_constant: bool = option(
        False,
        requires=[
            needs("advantage.drop_constant", because="groups that are in the loss are in its token count anyway")
        ],
    )
    """Keep those groups in the token count (and ``aggregation``'s counts of sequences and prompts), though they are not computed:
    the paper's weights without their compute. An update that has no other group is skipped."""


class LossConfig(Section):
    """Eq. 4 and its variants."""

    temperature: Literal[1, "rollout"] = 1
    """Temperature of the log-probs in the loss: 1, or ``"rollout"``: that of ``rollout.temperature``, at which the update is
    exactly on-policy."""
    clip_low: float = Field(0.2, ge=0, lt=1)
    """Lower clip: ratios below 1 - clip_low are clipped."""
    clip_high: float = Field(0.28, ge=0)
    """Upper clip (clip-higher): ratios above 1 + clip_high are clipped."""
    dual_clip: float | None = Field(10.0, gt=1)
    """Bound of the loss where the advantage is negative; None (``"none"`` or 0 in TOML) is eq. 4 literally."""
    aggregation: Aggregation = "token-mean"
    """Averaging of token losses over one update."""
    level: Literal["token", "sequence"] = "token"
    """Importance ratio per token, or per sequence (GSPO)."""
    surrogate: Literal["ppo", "cispo"] = option(
        "ppo",
        requires=[needs("loss.level", "token", because="cispo is defined per token")],
        excludes=[clashes("loss.dual_clip", because='cispo bounds the ratio itself; set loss.dual_clip = "none"')],
    )
    """Clipped surrogate, or clipped importance weights on the log-probs (CISPO)."""
    correction: CorrectionConfig | None = option(None, requires=plain_sampling())
    """Importance weights and masks of fresh tokens, for the mismatch of sampler and learner; None is off."""
    reward_coef: Weight = option(
        1.0,
        requires=[needs("loss.kl_coef", when=(0.0,), because="without rewards and without a KL nothing is trained")],
        excludes=[
            clashes(
                "rollout.dynamic_sampling",
                when=(0.0,),
                because="it discards groups of equal verdicts, which have a KL all the same; switch it off",
            )
        ],
    )
    """Factor of the rewards' advantages; 0 trains by the KL alone, with ``teacher`` distillation without rewards."""
    kl_coef: Weight = 0.0
    """Weight of the KL to the base model, or to ``teacher``; 0 is off, anything else holds the weights of that model too."""
    teacher: Path | None = option(
        None, requires=[needs("loss.kl_coef", because="it is the weight of the KL to the teacher")]
    )
    """Model in the base model's place in that KL, of the same tokenizer and any size: a directory or an id of the hub. On-policy
    distillation is ``kl_coef = 1`` with ``kl_estimator = "k2"``."""
    teacher_revision: str | None = option(
        None, requires=[needs("loss.teacher", because="it is that model's")], min_length=1
    )
    """Branch, tag or commit of a teacher of the hub, as ``model.revision``."""
    kl_reset: Count = option(
        0,
        requires=[
            needs("loss.kl_coef", because="without it nothing is held against a reference"),
            needs("learner.lora_rank", 0, because="with adapters the frozen weights are the reference"),
        ],
        excludes=[clashes("loss.teacher", because="the policy would take the teacher's place")],
    )
    """Steps after which the reference of that KL becomes the present policy, again and again (ProRL); 0: it stays the base
    model, or in a run that was continued with 0 the last reference. Checkpoints then hold the reference too."""
    kl_estimator: Literal["k1", "k2", "k3"] = option(
        "k3",
        excludes=[
            clashes(
                "advantage.drop_constant",
                when=("k1",),
                because="with the KL in the reward, responses of equal verdicts have a gradient; switch it off",
            ),
            clashes(
                "rollout.dynamic_sampling",
                when=("k1",),
                because="it discards groups of equal verdicts, which have a gradient with the KL in the reward; switch it off",
            ),
        ],
    )
    """Estimator of that KL, per token: ``k2`` and ``k3`` (GRPO) are terms of the loss. ``k1`` is taken off the reward of fresh
    tokens, and their advantage has that of the tokens after them too; as a loss its gradient would be zero in expectation."""
    entropy_coef: Weight = 0.0
    """Weight of the entropy bonus; 0 is off."""
    high_entropy_fraction: float = Field(1.0, gt=0, le=1)
    """Train only on this share of tokens, those of highest entropy (the 80/20 paper uses 0.2)."""


class UpdateConfig(Section):
    """Division of a rollout into optimizer steps, and the optimizer."""

    prompts: Positive = 64
    """B: prompts (whole groups) per optimizer step; must divide ``rollout.prompts``."""
    epochs: Positive = 1
    """Passes over the mini-batches of a rollout, in the same order; old log-probs stay those of the start of the step."""
    stream: bool = option(
        False,
        excludes=[
            clashes(
                "rollout.dynamic_sampling",
                because="which groups a step trains on is known only when all are verified; switch one of them off",
            )
        ],
    )
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
    """Unit of warm-up and decay: the updates of one rollout share a rate, or each has its own."""
    clip_norm: float = Field(1.0, gt=0)
    """Global gradient norm is clipped here; a non-finite gradient skips the update."""
    idle_steps: Count = 100
    """End the run when no update had a gradient in so many steps in a row, or in any step of the run; 0: never."""

    def lr_at(self, index: int, end: int) -> float:
        """Learning rate at the ``index``-th (from 0) rollout or update of ``end``."""
        return self.lr * self._factor(index, end)

    def _factor(self, index: int, end: int) -> float:
        if index < self.warmup:
            return (index + 1) / self.warmup
        if self.schedule == "constant":
            return 1.0
        done = min(1.0, (index - self.warmup) / (end - self.warmup))  # the last one is above the floor
        left = 1.0 - done if self.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.floor + (1.0 - self.floor) * left


class EvaluationConfig(SamplingConfig):
    """Held-out accuracy during training and in ``rlep evaluate``."""

    every: Count = 10
    """Steps between evaluations, beside the first and the last; 0 evaluates only at the ends."""
    compute: tuple[Annotated[float, Field(gt=0)], ...] = ()
    """Compute (generated + scored + 3 × trained tokens) to evaluate at, in place of ``every``: after the step that reaches each.
    The last of them takes ``final_samples``."""
    samples: Positive = 32
    """n: responses per question."""
    first_samples: Positive | None = None
    """n before the first step; None takes ``samples``."""
    final_samples: Positive | None = None
    """n after the last step; None takes ``samples``."""
    temperature: float = option(
        1.0,
        requires=[
            needs(key, 1, *none, when=(0.0,), because="greedy responses to a question are all alike")
            for key, none in (
                ("evaluation.samples", ()),
                ("evaluation.first_samples", (None,)),
                ("evaluation.final_samples", (None,)),
            )
        ],
        ge=0,
        le=MOST_TEMPERATURE,
    )
    """Sampling temperature, 0.01 to 2; 0 is greedy: the most probable token each time."""
    seed: int = Field(0, ge=0)
    """Seed of the evaluation's samples; use the same in runs that you compare."""


class CollectionConfig(SamplingConfig):
    """``rlep collect``: verified responses of the trained policy enter the pool."""

    samples: Positive = 64
    """Candidates per question."""
    temperature: float = Field(0.7, gt=0, le=MOST_TEMPERATURE)
    """Sampling temperature, 0.01 to 2."""
    top_p: float = Field(0.95, gt=0, le=1)
    """Nucleus: smallest set of tokens with this much probability; 1 keeps all."""
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
    accept: tuple[Literal["data", "tokenizer", "pool", "template", "update", "grader"], ...] = ()
    """Inputs and settings that may differ from the run that is continued; everything else is refused."""
