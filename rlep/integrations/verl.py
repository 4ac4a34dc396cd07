"""Replay in verl's V1 trainers, as the replay buffer that they are told to use.

    trainer.v1.sampler.custom_sampler.path = pkg://rlep.integrations.verl
    trainer.v1.sampler.custom_sampler.name = RlepReplayBuffer            (RlepReplayBufferAsync for the asynchronous trainers)
    trainer.v1.sampler.sampler_kwargs = {pool: {url: grpc://HOST:PORT, name: countdown}, count: 2}

verl's own buffer gives a step's prompts with their n responses. Stored responses of the same prompts join their groups in
TransferQueue, and successes among the n are stored. What follows is verl's: it takes old log-probs of all rows under the policy
at the start of the step, and advantages of groups by uid. An episode (rows whose ``response_mask`` leaves out tokens of tools) is
stored and replayed with that mask. Where nothing is drawn, the batch is verl's, and so is the step.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import transfer_queue as tq
from verl.trainer.ppo.padding_utils import build_padding_position_ids, upsample_batch_to_divisible_size
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.tensordict_utils import list_of_dict_to_tensordict, unwrap_non_tensor_data

from rlep.algorithms.loss_values import Scoring, incomparable
from rlep.config.roles import PoolConfig
from rlep.config.schema import ModelConfig
from rlep.config.settings import section_of
from rlep.core.errors import ConfigError
from rlep.core.types import Sampling, Trajectory, prompt_id_of, question_text
from rlep.engines.tokenizer import Tokenizer, reads_variable
from rlep.integrations.checkpoints import oldest_checkpoint
from rlep.integrations.mini_batches import cut, padded, shared
from rlep.integrations.repeats import warn_unless_repeated
from rlep.integrations.replayer import Origin, Replayer, Row
from rlep.integrations.rewards import check_finite, stored_reward
from rlep.integrations.rule import replay_rule
from rlep.services.pool.rpc.client import PoolClient
from rlep.services.pool.rpc.places import connected, on_server
from rlep.services.pool.values import PoolPlace

KWARGS = "trainer.v1.sampler.sampler_kwargs"
READ = ("raw_prompt", "reward_model", "responses", "response_mask", "rm_scores", "rollout_log_probs")
"""Fields of verl's rows that this reads."""
OF_MODELS = ("routed_experts", "teacher_ids", "teacher_logprobs")
"""Fields with values of each token that a stored response does not have."""
NOT_TEXT = "prompts with images, video or audio have no replays: take rlep out of this run"
_log = logging.getLogger(__name__)


class Fresh(NamedTuple):
    """A row that verl's trainer generated."""

    key: str
    uid: str
    row: Row


class VerlReplay:
    """Replays for one trainer of verl. Raises ``ConfigError`` where they would be something else than they seem."""

    def __init__(
        self,
        trainer: Any,
        *,
        pool: Mapping[str, Any] | None = None,
        count: int = 2,
        run: str | None = None,
        success: float = 1.0,
        reward: float = 1.0,
        by_question: bool = False,
        seed: int = 0,
        stored_logprobs: bool = False,
        away: Literal["continue", "stop"] = "continue",
        restart: bool = False,
        **replay: Any,
    ) -> None:
        """Nothing is asked of the pool before the first step. The arguments after ``trainer`` are ``sampler_kwargs``.

        Args:
            trainer: verl's.
            pool: keys of ``[pool]``: ``url`` of a pool server, ``name``, ``token_file``, ``ca_file``, ``deadline_s``.
            count: M, replays that join a group.
            run: names the run in the pool; None: ``trainer.project_name``/``trainer.experiment_name``.
            success: least reward of a response that is stored.
            reward: of replays that the pool has no reward of this run's reward function for.
            by_question: name prompts by the question alone, as ``TrlReplay`` does; else with ``reward_model.ground_truth``.
            seed: of the draws.
            stored_logprobs: the pool's log-probs are comparable, and stand for the sampler's in ``rollout_log_probs``.
            away: go on without replays while the pool's server does not answer, or stop.
            restart: at the first step remove what an earlier start of this run left in the pool.
            replay: other keys of ``[replay]``, e.g. ``selection: newest``: see ``replay_rule``.
        """
        self._trainer, self._rule = trainer, replay_rule(count, **replay)
        self._pool, self._run, self._seed = _client(pool), run, seed
        self._success, self._reward, self._by_question = success, check_finite("reward", reward), by_question
        self._stored, self._away, self._restart = stored_logprobs, away, restart
        self._size = int(trainer.config.actor_rollout_ref.actor.ppo_mini_batch_size)
        _check(trainer, stored_logprobs)

    def joined(self, batch: Any, global_steps: int, prompts: int) -> tuple[Any, dict[str, float]]:
        """A step's batch with the replays of its prompts, and the metrics; its successes are stored.

        Args:
            batch: verl's ``KVBatchMeta``.
            global_steps: verl's number of the step, which counts from 1.
            prompts: of the batch.
        """
        step, replayer = global_steps - 1, self._replayer
        fresh = self._fresh(batch)
        groups: dict[str, list[Fresh]] = {}
        for member in fresh:
            groups.setdefault(member.uid, []).append(member)
        names = {uid: members[0].row.prompt_id for uid, members in groups.items()}
        drawn = replayer.draw(step, [*names.values()])
        replays = {
            uid: drawn[names[uid]]
            for uid, members in groups.items()
            if names[uid] in drawn
            and (not replayer.decides_late or replayer.accepts([member.row for member in members]))
        }
        folder = Path(self._trainer.config.trainer.default_local_dir)
        replayer.trim(oldest_checkpoint(folder, "global_step_", step, part="actor"))
        replayer.keep(step, [member.row for member in fresh])
        actor, rows = self._trainer.config.actor_rollout_ref.actor, len(batch)
        actor.ppo_mini_batch_size = self._size
        if replays:
            batch = self._with_replays(batch, groups, replays)
            rows = len(batch)
            batch = self._in_updates(batch, prompts // self._size)
            _log.info(
                "%d rows: ppo_mini_batch_size = %d in place of %d", len(batch), actor.ppo_mini_batch_size, self._size
            )
        counts = replayer.take_counts().of(step, [member for members in replays.values() for member in members])
        found = asdict(counts) | {"padding": len(batch) - rows}
        return batch, {f"replay/{name}": float(value) for name, value in found.items() if value is not None}

    def _in_updates(self, batch: Any, updates: int) -> Any:
        """Order and pad a batch so that verl's updates have their groups whole, and set verl's size of an update."""
        groups: dict[str, list[int]] = {}
        for place, key in enumerate(batch.keys):
            groups.setdefault(key.split("_")[0], []).append(place)
        shares = shared([*groups.values()], updates)
        config = self._trainer.config.actor_rollout_ref
        n, ranks, actor = int(config.rollout.n), int(self._trainer.actor_rollout_wg.world_size), config.actor
        micro = 1 if actor.use_dynamic_bsz else int(actor.ppo_micro_batch_size_per_gpu or 1)
        scored = [
            1 if part.log_prob_use_dynamic_bsz else int(part.log_prob_micro_batch_size_per_gpu or 1)
            for part in (config.rollout, config.ref)
        ]
        actor.ppo_mini_batch_size = cut(
            max(map(len, shares)),
            len(shares),
            size=self._size,
            n=n,
            multiple=ranks * micro,
            whole=ranks * math.lcm(*scored),
        )
        rows = actor.ppo_mini_batch_size * n
        batch = upsample_batch_to_divisible_size(batch, len(shares) * rows, self._trainer.tokenizer.eos_token_id)
        batch.reorder(padded(shares, rows))  # verl cuts in this order, but for rows that its balance of ranks exchanges
        return batch

    def _fresh(self, batch: Any) -> list[Fresh]:
        """Read verl's rows. Raises ``ConfigError`` for sessions of several, episodes of nothing named, and missing rewards."""
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=[*READ])
        if "rm_scores" not in data:
            raise ConfigError(
                "rows have no rm_scores when they are sampled: reward.reward_model.enable_resource_pool = True, or a reward "
                "function, rewards them in time"
            )
        columns = {name: list(data[name]) if name in data else [None] * len(batch) for name in READ}
        found = []
        for place, key in enumerate(batch.keys):
            prompt, truth, tokens, mask, scores, logprobs = (
                unwrap_non_tensor_data(columns[name][place]) for name in READ
            )
            uid, _, index = key.split("_")
            sampled = mask.numpy().astype(bool)
            self._check_turns(key, int(index), int((~sampled).sum()))
            ids = tokens.numpy().astype(np.int32)
            row = Row(
                self._prompt_id(prompt, truth),
                ids,
                float(scores.sum()),
                finished=bool(len(ids)) and int(ids[-1]) in self._ends and bool(sampled[-1]),
                logprobs=None if logprobs is None else logprobs.float().numpy(),
                sampled=None if sampled.all() else sampled,
            )
            found.append(Fresh(key, uid, row))
        return found

    def _check_turns(self, key: str, index: int, unsampled: int) -> None:
        """Refuse what a pool cannot keep as one response, or would not know again. Raises ``ConfigError``."""
        if index:
            raise ConfigError(
                f"row {key} is one of several of its session: an agent loop that writes its context anew has no single response "
                "that could be stored; use one that keeps it, e.g. tool_agent, or leave rlep out"
            )
        if unsampled and not self._origin.environment_digest:
            raise ConfigError(
                f"row {key} is an episode (response_mask leaves out {unsampled} tokens), and nothing names the tools by which a "
                "pool would know it again: set actor_rollout_ref.rollout.agent.default_agent_loop, or multi_turn.tool_config_path"
            )

    def _prompt_id(self, prompt: Any, reward_model: Any) -> str:
        messages = list(prompt)
        if any(not isinstance(message["content"], str) for message in messages):
            raise ConfigError(NOT_TEXT)
        truth = None if self._by_question or reward_model is None else reward_model.get("ground_truth")
        return prompt_id_of(question_text(messages), "" if truth is None else str(truth))

    def _with_replays(
        self, batch: Any, groups: Mapping[str, Sequence[Fresh]], replays: Mapping[str, Sequence[Trajectory]]
    ) -> Any:
        """Put replays into TransferQueue under keys of their groups, and append those."""
        tag_of = dict(zip(batch.keys, batch.tags, strict=True))
        firsts = [groups[uid][0].key for uid in replays]
        templates = tq.kv_batch_get(keys=firsts, partition_id=batch.partition_id)
        keys, fields, tags = [], [], []
        for place, (uid, members) in enumerate(replays.items()):
            template = {name: templates[place][name] for name in [*templates.keys()]}
            last = max(int(member.key.split("_")[1]) for member in groups[uid])
            for number, member in enumerate(members, last + 1):
                keys.append(f"{uid}_{number}_0")
                fields.append(self._fields(template, member, number))
                lengths = len(fields[-1]["prompts"]), len(member.tokens)
                sizes = {"prompt_len": lengths[0], "response_len": lengths[1], "seq_len": sum(lengths)}
                tags.append({**tag_of[firsts[place]], **sizes, "replay": True})
        tq.kv_batch_put(
            keys=keys, partition_id=batch.partition_id, fields=list_of_dict_to_tensordict(fields), tags=tags
        )
        return type(batch)(
            partition_id=batch.partition_id,
            keys=[*batch.keys, *keys],
            tags=[*batch.tags, *tags],
            fields=batch.fields,
            extra_info=batch.extra_info,
        )

    def _fields(self, template: Mapping[str, Any], member: Trajectory, number: int) -> dict[str, Any]:
        """A replay's row, like the fresh one of its group but for its tokens, reward and log-probs."""
        for name in OF_MODELS:
            if template.get(name) is not None:
                raise ConfigError(f"rows have {name}, which a stored response does not: turn off what asks for it")
        if template.get("multi_modal_inputs"):
            raise ConfigError(NOT_TEXT)
        prompt, tokens = template["prompts"], torch.as_tensor(member.tokens.astype(np.int64))
        ids, mask, scores = torch.cat([prompt, tokens]), torch.ones_like(tokens), torch.zeros(len(tokens))
        seen, turns = torch.ones_like(ids), 1
        if member.sampled is not None:
            mask = torch.as_tensor(member.sampled.astype(np.int64))
            turns += int((np.diff(member.sampled.astype(np.int8)) > 0).sum())
        scores[-1] = self._rewarded(member)
        values = {
            "responses": tokens,
            "response_mask": mask,
            "loss_mask": mask,
            "input_ids": ids,
            "position_ids": build_padding_position_ids(template.get("position_ids"), seen),  # of the axes of its group
            "attention_mask": seen,
            "rm_scores": scores,
            "session_id": number,
            "num_turns": 2 * turns,  # as verl counts: of the policy, and before each of them one of another
        }
        fields = {name: values.get(name, value) for name, value in template.items()}
        if "rollout_log_probs" in template:
            if reason := incomparable(member, self._scoring):
                raise ConfigError(
                    f"stored_logprobs: pool {self._pool.name} has a response whose log-probs are not comparable ({reason}); set "
                    "actor_rollout_ref.rollout.calculate_log_probs = False and leave stored_logprobs out"
                )
            fields["rollout_log_probs"] = torch.as_tensor(np.asarray(member.logprobs, np.float32))
        return fields

    def _rewarded(self, member: Trajectory) -> float:
        """The reward that this run's reward function gave it, else the option's."""
        stored = stored_reward(member) if member.verdict.verifier == self._origin.verifier else None
        return self._reward if stored is None else stored

    @cached_property
    def _model(self) -> Any:
        """verl's description of the model."""
        return omega_conf_to_dataclass(self._trainer.config.actor_rollout_ref.model)

    @cached_property
    def _ends(self) -> frozenset[int]:
        """Ids of the tokens that end a response."""
        ends = getattr(self._model.generation_config, "eos_token_id", None)
        also = ends if isinstance(ends, list) else [] if ends is None else [ends]
        return frozenset([int(self._trainer.tokenizer.eos_token_id), *map(int, also)])

    @cached_property
    def _origin(self) -> Origin:
        """The run, as its records name it."""
        config = self._trainer.config
        rollout, function = config.actor_rollout_ref.rollout, config.reward.custom_reward_function
        given, template = (
            config.data.get("apply_chat_template_kwargs", None) or {},
            str(self._trainer.tokenizer.chat_template),
        )
        variables = {name: value for name, value in given.items() if reads_variable(template, name)}
        tokenizer = Tokenizer(self._trainer.tokenizer, ModelConfig(template=variables))
        return Origin(
            self._run or f"{config.trainer.project_name}/{config.trainer.experiment_name}",
            tokenizer.digest,
            tokenizer.template_digest,
            _environment_digest(rollout),
            vocabulary=int(self._model.hf_config.get_text_config().vocab_size),
            max_tokens=int(config.data.max_response_length),
            limit="data.max_response_length",
            sampling=Sampling(
                temperature=float(rollout.temperature),
                top_p=float(rollout.top_p),
                top_k=max(0, int(rollout.top_k)),
                max_tokens=int(config.data.max_response_length),
            ),
            logprobs_mode="processed" if rollout.logprobs_mode == "processed_logprobs" else "raw",
            logprobs_dtype=str(rollout.dtype),
            verifier=str(function.name if function.path else config.reward.reward_manager.name),
        )

    @cached_property
    def _scoring(self) -> Scoring:
        """How verl's log-probs come about: at the rollout's temperature."""
        origin = self._origin
        return Scoring(origin.tokenizer_digest, origin.template_digest, origin.sampling.temperature)

    def _check_repeats(self) -> None:
        """Warn where no question comes back before the data set ends; ask no data set that is not verl's own."""
        trainer, data = self._trainer, self._trainer.config.data
        rows = getattr(getattr(trainer, "train_dataset", None), "dataframe", None)
        steps = int(trainer.total_training_steps)
        if rows is None or steps * int(data.train_batch_size) > len(rows):
            return
        truths = rows["reward_model"] if "reward_model" in rows.column_names else itertools.repeat(None)
        names = ([self._prompt_id(*row)] for row in zip(rows[data.prompt_key], truths, strict=False))
        warn_unless_repeated(names, steps, self._rule, self._pool.name)

    @cached_property
    def _replayer(self) -> Replayer:
        self._check_repeats()
        return Replayer(
            self._pool,
            self._origin,
            self._rule,
            seed=self._seed,
            steps=int(self._trainer.total_training_steps),
            success=self._success,
            away=self._away,
            restart=self._restart,
        )


class RlepReplayBuffer(ReplayBuffer):
    """The buffer of verl's ``sync`` trainer, with replays. ``sampler_kwargs`` are the arguments of ``VerlReplay``."""

    synchronous = True

    def __init__(self, *, trainer_mode: str, sampler_kwargs: Any, refill_fn: Any, **verl: Any) -> None:
        super().__init__(trainer_mode=trainer_mode, sampler_kwargs=sampler_kwargs, refill_fn=refill_fn, **verl)
        if (trainer_mode == "sync") is not self.synchronous:
            name = (RlepReplayBuffer if trainer_mode == "sync" else RlepReplayBufferAsync).__name__
            raise ConfigError(
                f"trainer.v1.trainer_mode = {trainer_mode}: set trainer.v1.sampler.custom_sampler.name = {name}"
            )
        self._replay = _replay_of(refill_fn, sampler_kwargs)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """verl's batch of a step and what the pool has for it; a validation's is verl's."""
        batch, metrics = super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)
        if partition_id != "train":
            return batch, metrics
        batch, counts = self._replay.joined(batch, global_steps, batch_size)
        return batch, metrics | counts


class RlepReplayBufferAsync(RlepReplayBuffer, ReplayBufferAsync):
    """The buffer of verl's asynchronous trainers, with replays; a step may have several batches."""

    synchronous = False


def _replay_of(refill_fn: Any, sampler_kwargs: Any) -> VerlReplay:
    """The replays of the trainer whose method verl gives its buffer as ``refill_fn``. Raises ``ConfigError``."""
    trainer = getattr(refill_fn, "__self__", None)
    if not hasattr(trainer, "config"):
        raise ConfigError(
            "RlepReplayBuffer is made by verl's V1 trainers (0.9.1), whose refill_fn is a method of theirs"
        )
    given = {str(name): _contained(value) for name, value in dict(sampler_kwargs or {}).items()}
    return VerlReplay(trainer, **given)


def _contained(value: Any) -> Any:
    """A value of omegaconf as plain Python."""
    if hasattr(value, "items"):
        return {str(name): _contained(part) for name, part in value.items()}
    return value


def _environment_digest(rollout: Any) -> str:
    """Names the agent loop of a run's episodes, its tools by the files that declare them; empty where responses are of one turn.

    Raises ``ConfigError`` where a file cannot be read.
    """
    turns, agent = rollout.multi_turn, rollout.agent
    files = (turns.tool_config_path, turns.function_tool_path, agent.agent_loop_config_path)
    if agent.default_agent_loop == "single_turn_agent" and not any(files):
        return ""
    digest = hashlib.blake2b(str(turns.format).encode(), digest_size=4)
    for file in files:
        try:
            content = Path(file).read_bytes() if file else b""
        except OSError as error:
            raise ConfigError(f"{file}, which declares tools or agent loops, cannot be read: {error}") from error
        digest.update(f"{len(content)}:".encode() + content)
    return f"verl:{agent.default_agent_loop}:{digest.hexdigest()}"


def _client(given: Mapping[str, Any] | None) -> PoolClient:
    place = section_of(PoolConfig, "pool", dict(given or {}))
    if not on_server(place.url):
        raise ConfigError(f"{KWARGS}.pool.url = {place.url}: give the address of a pool server, grpc://HOST:PORT")
    at = PoolPlace(place.url, Path(), place.name, place.token_file, place.ca_file)
    return connected(at, deadline=place.deadline_s)


def _check(trainer: Any, stored: bool) -> None:
    """Refuse settings of verl under which replays would be something else than they seem. Raises ``ConfigError``."""
    config = trainer.config
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    prompts, size = (
        int(config.data.train_batch_size) // int(trainer.parameter_sync_step),
        int(actor.ppo_mini_batch_size),
    )
    reward, sampler = config.reward.reward_model, config.trainer.v1.sampler
    refused = {
        f"actor_rollout_ref.actor.ppo_mini_batch_size = {size} does not divide the {prompts} prompts of data.train_batch_size, "
        "so that a step has no whole number of updates, which replays would have to keep": prompts % size,
        "algorithm.adv_estimator = gae has a critic: replays join groups, whose advantages are e.g. grpo's": trainer.use_critic,
        "algorithm.filter_groups.enable: verl leaves filtering to a custom sampler, and this one would filter groups before "
        "replays reach them; set it to False": (config.algorithm.get("filter_groups", None) or {}).get("enable", False),
        "trainer.v1.sampler.sync_refill_failed_groups: verl does not give it to a custom sampler; set it to False": sampler.get(
            "sync_refill_failed_groups", False
        ),
        "reward.reward_model.enable without enable_resource_pool: rewards come after the batch is sampled, and successes could "
        "not be told; set reward.reward_model.enable_resource_pool = True": reward.enable
        and not reward.enable_resource_pool,
        "distillation has log-probs of a teacher for each token, which stored responses lack; leave one out": (
            trainer.use_teacher_policy
        ),
        "actor_rollout_ref.rollout.calculate_log_probs = True: verl compares them with its own, for "
        "algorithm.rollout_correction and its metrics, and replays have none that are comparable; set it to False, or "
        f"{KWARGS}.stored_logprobs = True for a pool that has": rollout.calculate_log_probs and not stored,
        f"{KWARGS}.stored_logprobs = True with actor_rollout_ref.rollout.calculate_log_probs = False: rows have no log-probs of "
        "the sampler, in whose place the pool's would stand; leave it out, or set the other to True": (
            stored and not rollout.calculate_log_probs
        ),
    }
    for sentence, wrong in refused.items():
        if wrong:
            raise ConfigError(sentence)
