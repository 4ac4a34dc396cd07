"""Group assembly: the only place that joins fresh and replayed trajectories, and the only on-policy G + M check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rlep.core.episodes import played_in
from rlep.core.errors import MixingError, StaleRolloutError
from rlep.core.types import Group, Prompt, Trajectory, beyond_vocabulary


def mix(
    prompt: Prompt,
    fresh: Sequence[Trajectory],
    replays: Sequence[Trajectory],
    *,
    policy_version: int,
    fresh_count: int,
    max_replays: int,
    tokenizer_digest: str,
    template_digest: str = "",
    environment_digest: str = "",
    max_staleness: int = 0,
    allow_failed_replays: bool = False,
    require_replays: bool = False,
    vocabulary: int | None = None,
    max_tokens: int | None = None,
) -> Group:
    """Join exactly G fresh and at most M replayed trajectories of one prompt (RLEP, arXiv 2507.07451, section 3.2).

    A short pool gives a smaller group and is never padded; ``require_replays`` refuses it instead.
    Every token id is below ``vocabulary``, the rows of the model's embedding (None: not known). No replay is longer than
    ``max_tokens``, as no fresh rollout is: batches, memory and the model's context are planned by it (None: any length).
    No replay's prompt was made otherwise than by ``template_digest``, so far as that is known (empty: it may have been).
    All are episodes of the environment ``environment_digest`` (empty: of none).
    Fresh ones may have equal tokens but not equal sample ids; replays are distinct by content.

    Raises:
        StaleRolloutError: a token of a fresh one sampled more than ``max_staleness`` versions before
            ``policy_version``, or after it.
        MixingError: wrong counts, another prompt, tokenizer or environment, a token beyond the vocabulary, a mask of sampled
            tokens that does not fit, duplicates, an unverified, truncated or overlong replay, or one to a prompt made otherwise.
    """
    _check_counts(prompt.id, fresh, replays, fresh_count, max_replays)
    for trajectory in fresh:
        _check_member(prompt.id, trajectory, tokenizer_digest, environment_digest, vocabulary)
        _check_version(prompt.id, trajectory, policy_version, max_staleness)
    _check_distinct(prompt.id, "fresh rollouts with sample id", (t.sample_id for t in fresh))
    check_replays(
        prompt.id,
        replays,
        tokenizer_digest=tokenizer_digest,
        vocabulary=vocabulary,
        max_tokens=max_tokens,
        template_digest=template_digest,
        environment_digest=environment_digest,
        allow_failed=allow_failed_replays,
        required=max_replays if require_replays else 0,
    )
    return Group(prompt, policy_version, tuple(fresh), tuple(replays))


def check_replays(
    prompt_id: str,
    replays: Sequence[Trajectory],
    *,
    tokenizer_digest: str,
    vocabulary: int | None = None,
    max_tokens: int | None = None,
    limit: str = "rollout.max_tokens",
    template_digest: str = "",
    environment_digest: str = "",
    allow_failed: bool = False,
    required: int = 0,
) -> None:
    """Refuse replays that may not join a group of a prompt, as ``mix`` does, or fewer than ``required``. Raises ``MixingError``.

    ``limit`` is what the trainer calls ``max_tokens``.
    """
    if len(replays) < required:
        raise MixingError(
            f"prompt {prompt_id}: {len(replays)} replays where {required} are required;"
            f" lower the replay count to {len(replays)}, collect more responses, or stop requiring replays"
        )
    for trajectory in replays:
        _check_member(prompt_id, trajectory, tokenizer_digest, environment_digest, vocabulary)
        if max_tokens is not None and len(trajectory.tokens) > max_tokens:
            raise MixingError(
                f"prompt {prompt_id}: replay {trajectory.content_id} has {len(trajectory.tokens)} tokens, and {limit} is "
                f"{max_tokens}; raise it, or fill a pool with shorter responses"
            )
        _check_replay(prompt_id, trajectory, allow_failed, template_digest)
    _check_distinct(prompt_id, "replays with content id", (t.content_id for t in replays))


def fitting(prompt_id: str, replays: Sequence[Trajectory], **rules: Any) -> tuple[list[Trajectory], list[str]]:
    """Return the replays that ``check_replays`` takes by these rules, and why it does not take the others.

    A pool may be filled by many: what one of them put in must not end the runs of the others.
    """
    taken, reasons = [], []
    for replay in replays:
        try:
            check_replays(prompt_id, [replay], **rules)
        except MixingError as error:
            reasons.append(str(error))
        else:
            taken.append(replay)
    return taken, reasons


def _check_counts(
    prompt_id: str, fresh: Sequence[Trajectory], replays: Sequence[Trajectory], fresh_count: int, max_replays: int
) -> None:
    if len(fresh) != fresh_count:
        raise MixingError(f"prompt {prompt_id}: {len(fresh)} fresh rollouts, the group needs exactly {fresh_count}")
    if len(replays) > max_replays:
        raise MixingError(f"prompt {prompt_id}: {len(replays)} replays, the group takes at most {max_replays}")


def _check_member(
    prompt_id: str, trajectory: Trajectory, tokenizer_digest: str, environment_digest: str, vocabulary: int | None
) -> None:
    if trajectory.prompt_id != prompt_id:
        raise MixingError(f"prompt {prompt_id}: trajectory {trajectory.sample_id!r} answers {trajectory.prompt_id}")
    if len(trajectory.tokens) == 0:
        raise MixingError(f"prompt {prompt_id}: trajectory {trajectory.sample_id!r} has no tokens")
    if trajectory.logprobs is not None and len(trajectory.logprobs) != len(trajectory.tokens):
        raise MixingError(
            f"prompt {prompt_id}: trajectory {trajectory.sample_id!r} has {len(trajectory.tokens)} tokens"
            f" and {len(trajectory.logprobs)} log-probs"
        )
    if trajectory.token_versions is not None and len(trajectory.token_versions) != len(trajectory.tokens):
        raise MixingError(
            f"prompt {prompt_id}: trajectory {trajectory.sample_id!r} has {len(trajectory.tokens)} tokens"
            f" and {len(trajectory.token_versions)} policy versions"
        )
    if wrong := trajectory.badly_sampled:
        raise MixingError(f"prompt {prompt_id}: trajectory {trajectory.sample_id!r} {wrong}")
    if trajectory.provenance.environment_digest != environment_digest:
        raise MixingError(
            f"prompt {prompt_id}: trajectory {trajectory.content_id} is from "
            f"{played_in(trajectory.provenance.environment_digest)}, this run's are {played_in(environment_digest)}"
        )
    if trajectory.provenance.tokenizer_digest != tokenizer_digest:
        raise MixingError(
            f"prompt {prompt_id}: trajectory {trajectory.sample_id!r} was generated with tokenizer"
            f" {trajectory.provenance.tokenizer_digest!r}, the policy reads {tokenizer_digest!r}"
        )
    if wrong := beyond_vocabulary(trajectory.tokens, vocabulary):
        raise MixingError(f"prompt {prompt_id}: trajectory {trajectory.content_id}: {wrong}")


def _check_version(prompt_id: str, trajectory: Trajectory, policy_version: int, max_staleness: int) -> None:
    versions = {trajectory.provenance.policy_version}
    if trajectory.token_versions is not None:
        versions.update(trajectory.at_sampled(trajectory.token_versions).tolist())
    for version in sorted(versions):
        if not 0 <= policy_version - version <= max_staleness:
            bound = f" with staleness of at most {max_staleness}" if max_staleness else ""
            raise StaleRolloutError(
                f"prompt {prompt_id}: rollout from policy {version}, step trains {policy_version}{bound}"
            )


def _check_replay(prompt_id: str, trajectory: Trajectory, allow_failed: bool, template_digest: str) -> None:
    if trajectory.provenance.prompted_otherwise(template_digest):
        raise MixingError(
            f"prompt {prompt_id}: replay {trajectory.content_id} answers a prompt made by template "
            f"{trajectory.provenance.template_digest}, this run's are by {template_digest}: set [model] as when it was sampled, "
            'or replay.other_template = "render" to train it after this run\'s prompt'
        )
    if trajectory.finish_reason != "stop":
        raise MixingError(f"prompt {prompt_id}: replay {trajectory.content_id} is truncated")
    if not (trajectory.correct or (allow_failed and trajectory.verdict.status == "wrong")):
        rule = "only correct and wrong ones are replayed"
        if not allow_failed:
            rule = "only verified-correct responses are replayed unless failed replays are allowed"
        raise MixingError(
            f"prompt {prompt_id}: replay {trajectory.content_id} has verdict {trajectory.verdict.status!r}, {rule}"
        )


def _check_distinct(prompt_id: str, what: str, ids: Iterable[str]) -> None:
    for identity, count in Counter(ids).items():
        if count > 1:
            raise MixingError(f"prompt {prompt_id}: {count} {what} {identity!r}")
