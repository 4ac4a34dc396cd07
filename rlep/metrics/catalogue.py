"""Every number a run records: one table of names, units and meanings.

``METRICS`` and ``EVENTS`` are the only homes of metric and event names; a name that is not there is refused.
``docs/reference/metrics.md`` shows the same tables and describes the files.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

from rlep.core.scores import PART_NAME
from rlep.core.types import STATUSES

Number = float | int
MetricValue = Number | Sequence[Number]
Recorded = Number | Sequence[Number | None] | None
"""A value as read back: None stands where it was NaN or infinite."""

PLACEHOLDERS: dict[str, str] = {
    "source": "fresh|replay",
    "status": "|".join(STATUSES),
    "role": "generator|verifier|environment|pool|learner",
    "data_source": r"\S(?:.*\S)?",
    "k": "[1-9][0-9]*",
    "part": PART_NAME,
}
"""Values of ``<source>``, ``<status>``, … in a name: a regular expression each."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table: a name (with ``<placeholders>``), its unit, and what it means for one training step."""

    name: str
    unit: str
    help: str
    kind: Literal["number", "list"] = "number"


METRICS: tuple[Metric, ...] = (
    Metric("rollout/prompts", "prompts", "Prompts sampled in the step: P, or more with dynamic sampling"),
    Metric("rollout/samples", "trajectories", "Fresh rollouts of the step: P x G, or all that dynamic sampling took"),
    Metric("rollout/tokens", "tokens", "Tokens of the fresh rollouts that the policy sampled"),
    Metric("rollout/tokens_per_second", "tokens/s", "Fresh response tokens over the time generation was running"),
    Metric("rollout/accuracy", "share", "Fresh rollouts that the verifier found correct, before any shaping"),
    Metric("rollout/reward", "reward", "Mean shaped reward of the fresh rollouts (verdict plus overlong penalty)"),
    Metric("rollout/score", "score", "Mean score of the fresh rollouts before shaping, where a verifier gives scores"),
    Metric(
        "rollout/part/<part>", "as given", "Mean of a named part of the scores, over the fresh rollouts that have it"
    ),
    Metric("rollout/length_mean", "tokens", "Mean length of the fresh rollouts in sampled tokens, EOS included"),
    Metric("rollout/length_max", "tokens", "Longest fresh rollout"),
    Metric("rollout/truncated", "share", "Fresh rollouts cut at the token limit"),
    Metric("rollout/retried", "requests", "Requests re-dispatched: their generator was lost, drained or too slow"),
    Metric("rollout/dropped", "trajectories", "Completions thrown away: late duplicates, or their rollout had ended"),
    Metric(
        "episode/turns", "turns", "Mean number of the policy's turns in an episode that ended since the step before"
    ),
    Metric("episode/observation_tokens", "tokens", "Mean number of tokens in those that the environment wrote"),
    Metric("episode/cut", "texts", "Texts of observations that were longer than environment.observation_tokens"),
    Metric(
        "episode/tool_errors",
        "calls",
        "Calls of tools that could not be read, or were answered by an error: the policy is told",
    ),
    Metric("episode/failed", "episodes", "Episodes whose environment failed: crashed, out of time or of memory"),
    Metric("prompts/epoch", "epochs", "Passes over the prompts when the step began"),
    Metric("prompts/solved", "prompts", "Prompts with a correct fresh rollout in this step or an earlier one"),
    Metric(
        "prompts/lost", "prompts", "Prompts of the step that had a correct one in an earlier step and have none now"
    ),
    Metric("compute/generated_tokens", "tokens", "Generated so far in the run; each response counts with its prompt"),
    Metric(
        "compute/scored_tokens",
        "tokens",
        "Scored so far without gradient: old and reference log-probs, entropies, candidates",
    ),
    Metric("compute/trained_tokens", "tokens", "Trained on so far, prompts and replays included"),
    Metric("selection/rounds", "rounds", "Dynamic sampling: rounds of generation the step needed"),
    Metric(
        "selection/discarded",
        "groups",
        "Dynamic sampling: groups dropped because all their verdicts (and scores) were equal",
    ),
    Metric(
        "selection/accuracy",
        "share",
        "Dynamic sampling: correct ones among the fresh rollouts that the step trains on; rollout/accuracy is of all",
    ),
    Metric("group/fresh_successes", "groups", "Groups with 0, 1, … G correct fresh rollouts", "list"),
    Metric("group/replays", "groups", "Groups with 0, 1, … M replays, failed ones included", "list"),
    Metric("group/informative", "share", "Groups whose advantages are not all zero"),
    Metric("group/solved_by_replay", "share", "Groups without a fresh success that a replay gave one"),
    Metric("replay/trajectories", "trajectories", "Replays drawn from the pool and mixed into groups"),
    Metric("replay/tokens", "tokens", "Tokens of those replays that a policy sampled"),
    Metric("replay/reward", "reward", "Mean shaped reward of those replays"),
    Metric("replay/failed", "trajectories", "Wrong ones among them (replay.failed)"),
    Metric("replay/distinct", "trajectories", "Different replays among them"),
    Metric("replay/length_mean", "tokens", "Mean length of the replays in sampled tokens, EOS included"),
    Metric("replay/unfit", "trajectories", "Drawn responses left out: this run cannot train on them, as its log says"),
    Metric("replay/live", "trajectories", "Replays among them that this run generated itself (replay.source)"),
    Metric("replay/age", "steps", "Mean age of those: steps since they were generated"),
    Metric("live/inserted", "trajectories", "Live replay: new responses that the step added"),
    Metric("live/responses", "trajectories", "Live replay: responses that the next step may replay"),
    Metric("live/questions", "prompts", "Live replay: prompts with at least replay.minimum of them"),
    Metric("live/retired", "prompts", "Prompts that get no replays any more (replay.method = exgrpo)"),
    Metric("loss/policy", "loss", "Policy loss, mean over the updates of the step"),
    Metric("loss/part/<source>", "loss", "Part of the policy loss that the tokens of this source contribute"),
    Metric(
        "loss/trajectories/<source>",
        "trajectories",
        "Trajectories of this source that reached the policy's loss, counted again in each pass of update.epochs",
    ),
    Metric("loss/tokens/<source>", "tokens", "Their sampled tokens, counted again in each pass of update.epochs"),
    Metric("loss/sft", "nats/token", "Supervised fine-tuning: mean negative log-prob of the target tokens"),
    Metric("update/count", "updates", "Optimizer updates applied in the step"),
    Metric("update/skipped", "updates", "Updates not applied: no token to train on, or a non-finite gradient"),
    Metric("update/grad_norm", "norm", "Gradient norm before clipping, mean over the updates"),
    Metric("update/grad_norm_max", "norm", "Gradient norm before clipping, largest of the updates"),
    Metric("update/learning_rate", "rate", "Learning rate of the last update"),
    Metric("update/tokens_per_second", "tokens/s", "Prompt and response tokens over the time of the optimizer updates"),
    Metric("update/flops_per_second", "operations/s", "Operations the model asks for over that time, on all ranks"),
    Metric(
        "update/flop_utilization", "share", "Those of what the GPUs can do in bfloat16; absent where that is not known"
    ),
    Metric("update/peak_memory", "bytes", "Peak of learner rank 0 so far: GPU memory, or resident memory on CPU"),
    Metric("update/clip_fraction_low/<source>", "share", "Tokens of this source whose loss is clipped at 1 - low"),
    Metric("update/clip_fraction_high/<source>", "share", "Tokens of this source whose loss is clipped at 1 + high"),
    Metric("update/clip_fraction_dual/<source>", "share", "Tokens of this source stopped by the dual clip"),
    Metric("update/entropy/<source>", "nats/token", "Mean entropy of the policy on this source's trained tokens"),
    Metric("update/approx_kl/<source>", "nats/token", "Estimated divergence from the step's policy"),
    Metric(
        "update/reference_kl/<source>",
        "nats/token",
        "Estimated divergence from the base model or the teacher, over the tokens on which the KL acts",
    ),
    Metric("ratio/mean/<source>", "ratio", "Mean importance ratio of the tokens of this source"),
    Metric("ratio/max/<source>", "ratio", "Largest importance ratio of the tokens of this source"),
    Metric(
        "advantage/mass/<source>",
        "advantage x tokens",
        "Sum of absolute advantages over the trained tokens of this source, in all passes of update.epochs",
    ),
    Metric("advantage/mean/<source>", "advantage", "Mean advantage of the trajectories of this source"),
    Metric("logprob/fresh", "nats/token", "Mean log-prob of the fresh tokens under the step's policy"),
    Metric("logprob/replay", "nats/token", "Mean log-prob of the replayed tokens under the step's policy"),
    Metric("logprob/replay_behaviour", "nats/token", "Mean stored log-prob of the replayed tokens (their own sampler)"),
    Metric("staleness/mean", "versions", "Mean policy lag of the fresh tokens (rollout.max_staleness)"),
    Metric("staleness/max", "versions", "Largest policy lag of a fresh token"),
    Metric("staleness/stale", "share", "Fresh tokens with a policy lag"),
    Metric(
        "correction/weight/<source>",
        "ratio",
        "Mean weight of the trained tokens of this source (loss.correction, replay.correction); 0 for masked ones",
    ),
    Metric("correction/truncated/<source>", "share", "Tokens of this source whose weight was cut to cap"),
    Metric("correction/masked/<source>", "share", "Tokens of this source that were left out, outside low and high"),
    Metric(
        "correction/effective/<source>", "share", "Effective sample size of these weights over the number of tokens"
    ),
    Metric("correction/chi2/<source>", "chi2", "Chi-squared divergence of the learner from the sampler, over tokens"),
    Metric("correction/chi2_sequence/<source>", "chi2", "The same, over whole sequences"),
    Metric("weights/version", "version", "Policy version the step trains; its rollouts' too, unless they are stale"),
    Metric("weights/logprob_difference", "nats", "Largest of the generators' mean log-prob differences to the learner"),
    Metric("weights/logprob_tolerance", "nats", "Mean log-prob difference that generators accept"),
    Metric("pool/hit", "share", "Prompts of the step that got at least one replay"),
    Metric("pool/short", "prompts", "Prompts of the step that got fewer than M replays"),
    Metric("verifier/status/<status>", "trajectories", "Fresh rollouts with this verdict"),
    Metric("verifier/fast", "share", "Verdicts decided without the full grader"),
    Metric("verifier/seconds", "s", "Mean time of one verdict"),
    Metric(
        "verifier/latency",
        "trajectories",
        "Verdicts by their time: up to 10 us, 100 us, 1 ms, 3 ms, 10 ms, 30 ms, 0.1 s, 0.3 s, 1 s, 3 s, and above",
        "list",
    ),
    Metric("actors/alive/<role>", "actors", "Actors of this role at work; each learner rank is one"),
    Metric("actors/restarts/<role>", "restarts", "Restarts in this role since the run was started or continued"),
    Metric(
        "generator/kv_use",
        "share",
        "Largest share of a generator's KV cache in use by the heartbeats of the step; absent in a step without one (10 s)",
    ),
    Metric(
        "generator/preempted",
        "requests",
        "Requests that generators set back for lack of KV cache, and computed again, since the run was started or continued",
    ),
    Metric("time/generate", "s", "From the first request (if stale, before the step) to the last fresh completion"),
    Metric("time/verify", "s", "Waiting for verdicts after the last completion"),
    Metric("time/replay", "s", "Waiting for replays after the last verdict"),
    Metric("time/score", "s", "Old log-probs by the learner"),
    Metric("time/update", "s", "Optimizer updates"),
    Metric("time/publish", "s", "New weights to every generator, and the log-prob check"),
    Metric("time/checkpoint", "s", "What a checkpoint held training up; its files are written meanwhile"),
    Metric("time/evaluate", "s", "Evaluation on held-out prompts"),
    Metric(
        "time/step",
        "s",
        "The whole step without evaluation and checkpoint; what its parts leave is waiting (with update.stream they overlap)",
    ),
    Metric(
        "evaluation/<data_source>/part/<part>",
        "as given",
        "Mean of a named part of the scores, over samples that have it",
    ),
    Metric("evaluation/<data_source>/score", "share", "Mean score, where a verifier gives scores; mean over questions"),
    Metric("evaluation/<data_source>/questions", "questions", "Questions evaluated"),
    Metric("evaluation/<data_source>/samples", "samples/question", "Samples of each question (n)"),
    Metric("evaluation/<data_source>/avg", "share", "avg@n: correct samples, mean over questions"),
    Metric("evaluation/<data_source>/ci_low", "share", "Lower end of the 95 % interval of avg@n over questions"),
    Metric("evaluation/<data_source>/ci_high", "share", "Upper end of the 95 % interval of avg@n over questions"),
    Metric("evaluation/<data_source>/maj", "share", "maj@n: questions whose most frequent answer is correct"),
    Metric("evaluation/<data_source>/best", "share", "best@n: questions with at least one correct sample"),
    Metric("evaluation/<data_source>/pass/<k>", "share", "pass@k, unbiased, mean over questions"),
    Metric(
        "tracking/dropped",
        "steps",
        "Steps so far that a tracker refused or did not take in time; only if there are any",
    ),
    Metric("metrics/nonfinite", "values", "Values of this line that were NaN or infinite and are written as null"),
)

EVENTS: dict[str, str] = {
    "run_started": "The run began in an empty run directory",
    "run_resumed": "The run continues from a checkpoint",
    "run_finished": "The last step is done",
    "run_interrupted": "The run was asked to stop and did, resumable",
    "run_failed": "The run ended with an error",
    "settings_changed": "A continued run has other settings by `checkpoint.accept`; key → before and now",
    "data_loaded": "Prompts were read; how many were filtered or merged",
    "pool_opened": "The experience pool is open; where, and what it holds",
    "collection_finished": "Candidates of every question are sampled and judged",
    "actor_started": "An actor answers for the first time",
    "actor_lost": "An actor died or stopped answering",
    "actor_restarted": "An actor was started again in place of a lost one",
    "actor_drained": "An actor was drained on request; what it handed back",
    "head_lost": "Ray's head process has not answered for `cluster.head_deadline_s`; the run ends",
    "logs_lost": "Ray's logs of a failed run were not kept in `logs/`, and why",
    "update_skipped": "An optimizer update was not applied",
    "checkpoint_saved": "A checkpoint is complete on disk",
    "checkpoint_refused": "A checkpoint was torn or corrupt and was passed over",
    "evaluation_finished": "Held-out prompts were evaluated",
    "grading_failed": "The reward function crashed on a response, the first of its kind; which, and the log with the traceback",
    "rollouts_skipped": "Files of `rollouts/` for a step were not written, and why",
    "metrics_truncated": "Lines of steps after the checkpoint were dropped before the run continued",
}


class Tracker(Protocol):
    """A second home for metrics (TensorBoard, W&B, MLflow, …); the JSONL file is always written too."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record finite numbers of one step; lists arrive flattened (``flatten``)."""

    def close(self, *, failed: bool = False) -> None:
        """Write out what is buffered; ``failed``: the run broke off."""


@lru_cache(maxsize=4096)
def metric_for(name: str) -> Metric:
    """The table's row for a name such as ``verifier/status/timeout``; ValueError with the nearest names if none."""
    for metric, pattern in patterns():
        if pattern.fullmatch(name):
            return metric
    near = difflib.get_close_matches(name, [metric.name for metric in METRICS], n=2)
    raise ValueError(f"unknown metric {name!r}" + (f"; did you mean {' or '.join(near)}?" if near else ""))


@lru_cache(maxsize=1)
def patterns() -> tuple[tuple[Metric, re.Pattern[str]], ...]:
    """Each row with an expression for its names; what stands for ``<source>`` is its group ``source``."""

    def pattern(name: str) -> str:
        parts = re.split(r"<(\w+)>", name)
        return "".join(f"(?P<{p}>{PLACEHOLDERS[p]})" if i % 2 else re.escape(p) for i, p in enumerate(parts))

    return tuple((metric, re.compile(pattern(metric.name))) for metric in METRICS)


def compute_of(generated: float = 0, scored: float = 0, trained: float = 0) -> float:
    """Compute of so many tokens: a forward pass counts 1 a token, a forward and backward pass 3."""
    return generated + scored + 3 * trained


def flatten(metrics: Mapping[str, Recorded]) -> dict[str, float]:
    """The finite numbers by name; entry i of a list becomes ``name/i``. What trackers are given."""
    flat: dict[str, float] = {}
    for name, value in metrics.items():
        entries = {f"{name}/{i}": v for i, v in enumerate(value)} if isinstance(value, Sequence) else {name: value}
        flat.update((key, float(v)) for key, v in entries.items() if v is not None and math.isfinite(v))
    return flat


def evaluation_metrics(rows: Iterable[Mapping[str, object]]) -> dict[str, MetricValue]:
    """The ``evaluation/…`` metrics of rows in the shape of ``evaluations.jsonl``."""
    metrics: dict[str, MetricValue] = {}
    for row in rows:
        low, high = _numbers(row["ci"]) if row.get("ci") else (None, None)
        values = {"questions": row.get("questions"), "samples": row.get("n"), "avg": row.get("avg")}
        values |= {"ci_low": low, "ci_high": high, "maj": row.get("maj"), "best": row.get("best")}
        values["score"] = row.get("score")
        parts = row.get("parts")
        if isinstance(parts, Mapping):
            values |= {f"part/{name}": value for name, value in parts.items()}
        passes = row.get("pass")
        if isinstance(passes, Mapping):
            values |= {f"pass/{k}": value for k, value in passes.items()}
        prefix = f"evaluation/{row['data_source']}"
        metrics.update((f"{prefix}/{key}", v) for key, v in values.items() if isinstance(v, int | float))
    return metrics


def _numbers(value: object) -> list[float]:
    return [float(v) for v in value if isinstance(v, int | float)] if isinstance(value, Sequence) else []
