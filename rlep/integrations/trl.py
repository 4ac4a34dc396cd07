"""Replay in TRL's ``GRPOTrainer``, by its own hooks: no subclass, no copied code.

    replay = TrlReplay(PoolClient(address, pool="countdown"), count=2)  # printed by `rlep pool serve`
    GRPOTrainer(…, rollout_func=replay.rollout, reward_funcs=[replay.reward(correct)])

A group always has ``num_generations`` responses. Its last places are those of replays, at most ``count`` of them; where the pool
has fewer, the current policy fills the places. So ``num_generations`` = G + M adds M replays to G fresh responses, as in the
paper, and one that stays G replaces M of them.

Old log-probs of replays are the paper's, those of the policy at the start of the step: TRL computes them for every response.
With vLLM it also corrects for the sampler by min(π0/μ, cap); a replay's μ is NaN, which makes that factor 1, or, with
``stored_logprobs``, what the pool has.

With ``tools`` or ``environment_factory`` a response is an episode, stored with TRL's mask of tokens that the policy did not
sample. A replayed one gets its mask in the batch, and its tools are not called again: of TRL's loop of tool calls such a row sees
nothing. Its environment was not played, so that the reward of an environment is the stored one.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlep.algorithms.loss_values import Scoring, incomparable
from rlep.core.errors import ConfigError
from rlep.core.types import BoolArray, Float32Array, Trajectory, prompt_id_of
from rlep.integrations.checkpoints import oldest_checkpoint
from rlep.integrations.conversation import conversation
from rlep.integrations.repeats import warn_unless_repeated
from rlep.integrations.replayer import Origin, Replayer, Row
from rlep.integrations.rewards import is_finite, stored_reward
from rlep.integrations.rule import replay_rule
from rlep.integrations.trl_settings import check_version, logprobs_mode_of, sampled_in, sampling_of, tokenizer_of
from rlep.services.environment.contract import score_range
from rlep.services.environment.digest import class_digest, tools_digest, verifier_name
from rlep.services.pool.rpc.client import PoolClient

if TYPE_CHECKING:
    from rlep.integrations.trl_log import ReplayLog

Rewards = Callable[..., Any]
"""A reward function of TRL: (prompts, completions, completion_ids, **columns) → a reward, or None, for each."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """The responses of one rollout in one process, until their rewards are there."""

    step: int
    prompt_ids: Sequence[str]
    """``[R]``"""
    replays: Sequence[Trajectory | None]
    """``[R]``: None where the current policy generated the response."""
    ends: frozenset[int]
    """Ids of the tokens that end a response."""
    logprobs: list[Sequence[float | None]] = field(default_factory=list)
    """``[R]``: of the sampler, where TRL returns them; empty where it does not."""
    masks: list[Sequence[int]] = field(default_factory=list)
    """``[R]``: 0 for tokens that tools wrote, else 1; empty without tools."""


class TrlReplay:
    """Replays for one ``GRPOTrainer``; one object in each of its processes."""

    def __init__(
        self,
        pool: PoolClient,
        *,
        count: int = 2,
        run: str | None = None,
        reference: str | None = None,
        seed: int | None = None,
        stored_logprobs: bool = False,
        away: Literal["continue", "stop"] = "continue",
        restart: bool = False,
        **replay: Any,
    ) -> None:
        """Check TRL's version; nothing is asked of pool or trainer before the first rollout.

        Args:
            pool: a client with the pool's name; the pool is made where there is none.
            count: M, replays of a group.
            run: names the run in the pool; None: ``run_name`` of ``GRPOConfig``, else the last part of ``output_dir``.
            reference: column of the reference answer, for a pool that ``rlep collect`` filled: its prompts are named by question
                and reference. None: by the question alone.
            seed: of the draws; None: ``seed`` of ``GRPOConfig``.
            stored_logprobs: importance weights of replays by the log-probs that the pool has, where they are comparable.
            away: go on without replays while the pool's server does not answer, or stop.
            restart: at step 0 remove what an earlier start of this run left in the pool.
            replay: other keys of ``[replay]``, e.g. ``selection="newest"``, ``max_age=50``: see ``replay_rule``.

        Raises ``ConfigError``.
        """
        check_version()
        self._pool, self._rule = pool, replay_rule(count, **replay)
        self._run, self._reference, self._seed = run, reference, seed
        self._stored, self._away, self._restart = stored_logprobs, away, restart
        self._wrapper: Rewards | None = None
        self._function, self._success = "", 1.0
        self._environment: type | None = None
        """The class whose ``get_reward`` decides what is stored, in place of ``reward``'s function."""
        self._played = False
        """Rewards may come from environments, which a replay has not played."""
        self._replayer: Replayer | None = None
        self._of: Callable[[], Any] = lambda: None
        """The trainer that the replayer is made for, while it lives."""
        self._references: dict[str, str] = {}
        self._scoring = Scoring("")
        self._batch: _Batch | None = None
        self._log: ReplayLog
        """Of the trainer that the replayer is made for."""
        self._asked = False

    def reward(self, function: Rewards, *, success: float = 1.0) -> Rewards:
        """Wrap the reward function that decides what is stored: a whole response with a reward of ``success`` or more."""
        if self._wrapper is not None and self._environment is None:
            raise ConfigError(f"replay.reward has {self._function} already: one function says what a success is")
        if not callable(function) or hasattr(function, "forward"):
            raise ConfigError(f"replay.reward({function!r:.80}): give it a function, which may call a reward model")
        inner = function
        while isinstance(inner, functools.partial):
            inner = inner.func
        self._function, self._success = str(getattr(inner, "__name__", type(inner).__name__)), success
        self._wrapper, self._environment = self._wrapped(function, inner), None
        return self._wrapper

    def _wrapped(self, function: Rewards, inner: Rewards) -> Rewards:
        if inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__):

            async def rewarded_later(**given: Any) -> list[Any]:
                return self._rewarded([*await function(**self._asked_of(given))], given)

            return self._named(rewarded_later, function)

        def rewarded(**given: Any) -> list[Any]:
            return self._rewarded([*function(**self._asked_of(given))], given)

        return self._named(rewarded, function)

    def _named(self, wrapper: Rewards, function: Rewards) -> Rewards:
        functools.update_wrapper(wrapper, function)
        wrapper.__name__ = self._function  # TRL's metrics rewards/NAME/mean
        return wrapper

    def _asked_of(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a function is given; an environment's own is asked for no episode that was not played."""
        if self._batch is None or self._environment is None:
            return given
        rows = zip(given["environments"], self._batch.replays, strict=True)
        return {**given, "environments": [environment for environment, replay in rows if replay is None]}

    def rollout(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Generate as TRL does, but in the places that the pool fills: TRL's ``rollout_func``. An evaluation has no replays."""
        self._batch, self._asked = None, True
        rows, size = [*range(len(prompts))], trainer.num_generations_eval
        if trainer.model.training:
            self._batch = batch = self._places(prompts, trainer)
            rows, size = _rows_to_generate(trainer, batch.replays), trainer.num_generations
        prompt_ids, images, fields = trainer._tokenize_prompts(prompts)
        if len(rows) < len(prompts):
            fields, size = {name: [values[row] for row in rows] for name, values in fields.items()}, 1
        generated, logprobs = trainer._generate_single_turn([prompt_ids[row] for row in rows], images, fields, size)
        result = {"prompt_ids": prompt_ids, "completion_ids": generated, "logprobs": logprobs}
        return result if self._batch is None else result | self._joined(self._batch, rows, result)

    def _joined(self, batch: _Batch, rows: Sequence[int], generated: Mapping[str, Any]) -> dict[str, Any]:
        """Tokens and log-probs of all rows: of the replays, and of the ``rows`` that were generated."""
        tokens = dict(zip(rows, generated["completion_ids"], strict=True))
        sampled = None if generated["logprobs"] is None else dict(zip(rows, generated["logprobs"], strict=True))
        for row, replay in enumerate(batch.replays):
            if replay is not None:
                tokens[row] = replay.tokens.tolist()
                if sampled is not None:
                    sampled[row] = self._logprobs(replay)
        order = range(len(batch.replays))
        batch.logprobs.extend(() if sampled is None else (sampled[row] for row in order))
        return {"completion_ids": [tokens[row] for row in order], "logprobs": [*batch.logprobs] or None}

    def _looped(self, loop: Callable[..., Any]) -> Callable[..., Any]:
        """TRL's loop of tool calls, which leaves out the replays of a rollout: they get the masks that they are stored with."""

        @functools.wraps(loop)
        def beside_replays(prompts: Any, prompt_ids: Any, tokens: Any, completions: Any, *rest: Any) -> Any:
            batch = self._batch
            if batch is None:
                return loop(prompts, prompt_ids, tokens, completions, *rest)
            replays = [(row, replay) for row, replay in enumerate(batch.replays) if replay is not None]
            tokenizer, tools = self._of()._tokenizer, self._of().tools
            for row, _ in replays:
                completions[row] = [{"role": "assistant", "content": ""}]  # calls no tool
            mask, completions, tokens, logprobs, *others = loop(prompts, prompt_ids, tokens, completions, *rest)
            for row, replay in replays:
                completions[row] = conversation(tokenizer, list(prompt_ids[row]), replay, tools)
                if replay.sampled is not None:
                    mask[row] = replay.sampled.astype(int).tolist()
            batch.masks.extend(mask)
            if logprobs is not None:
                batch.logprobs[:] = logprobs
            return mask, completions, tokens, logprobs, *others

        return beside_replays

    def _places(self, prompts: Sequence[Any], trainer: Any) -> _Batch:
        """The rows of a rollout, the last places of each group with replays."""
        if self._replayer is None or self._of() is not trainer:
            self._replayer, self._of = self._made(trainer, prompts[0]), weakref.ref(trainer)
        size, start = trainer.num_generations, trainer.accelerator.process_index * len(prompts)
        names = [self._name(prompt) for prompt in prompts]
        step = int(trainer.state.global_step)
        replays = self._replayer.fill(step, names, size, start)
        oldest, begun = _of_main(trainer, step, self._replayer.begun)
        if begun:
            self._replayer.trim(oldest)
        else:  # what the pool holds may be of a lost future
            self._replayer.begun, replays = False, [None] * len(prompts)
        return _Batch(step, names, replays, frozenset(trainer.eos_token_ids))

    def _name(self, prompt: Any) -> str:
        question = _question(prompt)
        if self._reference is None:
            return prompt_id_of(question, "")
        if question not in self._references:
            raise ConfigError(f"train_dataset has no prompt {question!r:.80} with a column {self._reference}")
        return prompt_id_of(question, self._references[question])

    def _logprobs(self, replay: Trajectory) -> list[float]:
        if not self._stored or replay.logprobs is None or incomparable(replay, self._scoring):
            unknown = np.full(replay.sampled_length, np.nan, np.float32)
            return list(map(float, replay.over_tokens(unknown)))
        return list(map(float, replay.logprobs))

    def _rewarded(self, rewards: list[Any], given: Mapping[str, Any]) -> list[Any]:
        """Keep the successes among a rollout's rows, and log the counts; in an evaluation nothing."""
        batch, self._batch = self._batch, None
        if not self._asked:
            raise ConfigError("GRPOTrainer has replay.reward and not rollout_func=replay.rollout: give it both")
        if batch is None or self._replayer is None:
            return rewards
        ids, rewards = given["completion_ids"], self._with_stored(rewards, batch)
        if not len(rewards) == len(ids) == len(batch.prompt_ids):
            raise ConfigError(
                f"reward_funcs: {self._function} returned {len(rewards)} rewards for {len(ids)} completions of "
                f"{len(batch.prompt_ids)} prompts: one for each is needed, in their order"
            )
        for row, replay in enumerate(batch.replays):
            if replay is not None and rewards[row] is not None and not is_finite(float(rewards[row])):
                rewards[row] = None  # TRL leaves it out of its group's mean, which it would spoil
        self._replayer.keep(
            batch.step,
            [
                Row(
                    name,
                    np.asarray(tokens, np.int32),
                    None if reward is None else float(reward),
                    bool(tokens) and tokens[-1] in batch.ends and (not batch.masks or bool(batch.masks[row][-1])),
                    _known(batch.logprobs[row] if batch.logprobs else None),
                    _sampled(batch.masks[row] if batch.masks else ()),
                )
                for row, (name, tokens, reward) in enumerate(zip(batch.prompt_ids, ids, rewards, strict=True))
                if batch.replays[row] is None
            ],
        )
        placed = [replay for replay in batch.replays if replay is not None]
        self._log.add(self._replayer.take_counts().of(batch.step, placed))
        return rewards

    def _with_stored(self, rewards: list[Any], batch: _Batch) -> list[Any]:
        """The rewards of all rows: of an episode that was not played here the stored one."""
        if self._environment is not None:
            played, high = iter(rewards), score_range(self._environment)
            return [
                next(played)
                if replay is None
                else self._stored_reward(replay, high[0] + replay.verdict.credit * (high[1] - high[0]))
                for replay in batch.replays
            ]
        episodes = self._played or batch.masks
        if not episodes or len(rewards) != len(batch.replays):
            return rewards
        return [
            reward if replay is None else self._stored_reward(replay, reward)
            for reward, replay in zip(rewards, batch.replays, strict=True)
        ]

    def _stored_reward(self, replay: Trajectory, otherwise: Any) -> Any:
        """What the function of this run gave a stored response; ``otherwise`` where another graded it."""
        stored = stored_reward(replay) if replay.verdict.verifier == self._function else None
        return otherwise if stored is None else stored

    def _made(self, trainer: Any, prompt: Any) -> Replayer:
        """The replayer of a trainer, whose settings are known at its first rollout. Raises ``ConfigError``."""
        self._adopt(trainer)
        self._check(trainer)
        settings, tokenizer = trainer.args, tokenizer_of(trainer, prompt)
        if self._reference is not None:
            self._references = _references(trainer.train_dataset, self._reference)
        self._scoring = Scoring(tokenizer.digest, tokenizer.template_digest, float(trainer.temperature), bfloat16=True)
        origin = Origin(
            self._run or settings.run_name or Path(settings.output_dir).name,
            tokenizer.digest,
            tokenizer.template_digest,
            _environment_digest(trainer),
            vocabulary=trainer.model.config.get_text_config().vocab_size,
            max_tokens=trainer.max_completion_length,
            limit="max_completion_length",
            group="num_generations",
            sampling=sampling_of(trainer),
            logprobs_mode=logprobs_mode_of(trainer),
            logprobs_dtype=sampled_in(trainer),
            verifier=self._function,
            main=trainer.accelerator.is_main_process,
        )
        made = Replayer(
            self._pool,
            origin,
            self._rule,
            seed=settings.seed if self._seed is None else self._seed,
            steps=trainer.state.max_steps,
            success=self._success,
            away=self._away,
            restart=self._restart,
        )
        if trainer.accelerator.is_main_process and hasattr(
            trainer.train_dataset, "__len__"
        ):  # a stream has no end to see
            warn_unless_repeated(_questions_by_step(trainer), trainer.state.max_steps, self._rule, self._pool.name)
        from rlep.integrations.trl_log import ReplayLog

        self._log = ReplayLog(trainer)
        trainer.add_callback(self._log)
        if trainer.tools:
            trainer._tool_call_loop = self._looped(trainer._tool_call_loop)
        return made

    def _adopt(self, trainer: Any) -> None:
        """Let the environment's ``get_reward``, if it has one, say what a success is: TRL has made a reward function of it."""
        self._played = bool(trainer.environment_factories)
        kinds = _environments(trainer)
        if len(kinds) != 1 or not inspect.isfunction(getattr(kinds[0], "get_reward", None)):
            return
        (kind,) = kinds
        if self._wrapper is not None and self._environment is None:
            raise ConfigError(
                f"{kind.__name__} has get_reward, and replay.reward has {self._function}: one says what a success is; leave "
                "replay.reward out, or get_reward"
            )
        own = trainer.reward_funcs[-1]  # the last, as TRL adds it to the user's
        own = getattr(own, "__wrapped__", own)
        self._environment, self._success = kind, score_range(kind)[1]
        self._function = verifier_name(f"{kind.__module__}:{kind.__qualname__}")
        self._wrapper = trainer.reward_funcs[-1] = self._wrapped(own, own)

    def _check(self, trainer: Any) -> None:
        """Refuse settings under which replays would be something else than they seem. Raises ``ConfigError``."""
        if not any(function is self._wrapper for function in trainer.reward_funcs):
            raise ConfigError(
                "GRPOTrainer has rollout_func=replay.rollout and no replay.reward: give it reward_funcs=[replay.reward(f)]"
                + (", or the environment get_reward" if self._played else "")
            )
        if len(trainer.environment_factories or ()) > 1:
            raise ConfigError(
                "environment_factory has several environments, and a pool's episodes are of one: give it one class"
            )
        if self._stored and not (trainer.use_vllm and trainer.vllm_importance_sampling_correction):
            raise ConfigError(
                "stored_logprobs needs use_vllm and vllm_importance_sampling_correction: without them TRL has no weight that "
                "they would enter"
            )


def _rows_to_generate(trainer: Any, replays: Sequence[Trajectory | None]) -> list[int]:
    """The rows without a replay, and so many others that every process has as many as vLLM needs, one at least.

    TRL cuts what vLLM generated for all processes into equal parts; FSDP and DeepSpeed generate in all processes together.
    """
    fresh = [row for row, replay in enumerate(replays) if replay is None]
    most = max(1, len(fresh))
    if trainer.use_vllm and trainer.accelerator.num_processes > 1:
        from accelerate.utils import gather_object

        most = max(gather_object([most]))
    others = [row for row, replay in enumerate(replays) if replay is not None]
    return sorted(fresh + others[: most - len(fresh)])


def _questions_by_step(trainer: Any) -> Iterator[list[str]]:
    """Yield the questions of a training's steps, in the order of its sampler; those of a rollout if it lasts longer."""
    settings, dataset, sampler = trainer.args, trainer.train_dataset, trainer._get_train_sampler()
    uses = settings.steps_per_generation * trainer.num_iterations  # of a rollout, in batches
    rollouts = max(1, settings.gradient_accumulation_steps // uses)  # in a step, which draws what earlier steps stored
    batches = trainer.state.max_steps * settings.gradient_accumulation_steps
    places = itertools.chain.from_iterable(sampler for _ in itertools.count())  # one pass after the other
    for _ in range(-(-batches // (uses * rollouts))):
        rows = dict.fromkeys(itertools.islice(places, uses * rollouts * settings.generation_batch_size))
        yield [_question(dataset[row]["prompt"]) for row in rows]


def _environments(trainer: Any) -> list[type]:
    """The classes of a trainer's environments."""
    return [type(trainer._environment_pool[name][0]) for name in trainer.environment_factories or ()]


def _environment_digest(trainer: Any) -> str:
    """Names the environment of a trainer's episodes and its tools; empty where responses are no episodes."""
    named = [class_digest(kind) for kind in _environments(trainer)]
    return "+".join([*named, *([tools_digest(trainer._standalone_tools)] if trainer._standalone_tools else [])])


def _of_main(trainer: Any, step: int, begun: bool) -> tuple[int, bool]:
    """The oldest step at which this training may go on, and ``begun``, of the main process; all processes wait for that one."""
    from accelerate.utils import broadcast_object_list

    oldest = oldest_checkpoint(Path(trainer.args.output_dir), "checkpoint-", step)
    oldest, begun = broadcast_object_list([oldest, begun])
    return oldest, begun


def _question(prompt: Any) -> str:
    """A prompt's text, as rlep names it. Raises ``ConfigError`` where parts of it are no text."""
    if isinstance(prompt, str):
        return prompt
    contents = [
        [message["content"]] if isinstance(message["content"], str) else message["content"] for message in prompt
    ]
    texts = [[part if isinstance(part, str) else part.get("text") for part in content or [{}]] for content in contents]
    if any(None in parts for parts in texts):
        raise ConfigError(
            "prompts with images, or with other parts that are no text, have no replays: take rlep out of this run"
        )
    return "\n\n".join("".join(parts) for parts in texts)


def _sampled(mask: Sequence[int]) -> BoolArray | None:
    """A response's mask, if tools wrote any of its tokens."""
    sampled = np.asarray(mask, dtype=bool)
    return None if sampled.all() else sampled


def _known(logprobs: Sequence[float | None] | None) -> Float32Array | None:
    """The log-probs of a response, if all of them are known."""
    if logprobs is None or None in logprobs:
        return None
    values = np.asarray(logprobs, np.float32)
    return values if np.isfinite(values).all() else None


def _references(dataset: Any, column: str) -> dict[str, str]:
    """Question → its reference. Raises ``ConfigError`` where a question has two, or the column is not there."""
    if not hasattr(dataset, "__len__"):
        raise ConfigError(
            f"reference = {column!r}: train_dataset is a stream, which would be read to its end before the first step; give a "
            "Dataset, or leave reference out"
        )
    if column not in dataset.column_names:
        raise ConfigError(f"reference = {column!r}: train_dataset has no such column; it has {dataset.column_names}")
    found: dict[str, str] = {}
    for row in dataset.select_columns(["prompt", column]):
        question, reference = _question(row["prompt"]), str(row[column])
        if found.setdefault(question, reference) != reference:
            raise ConfigError(
                f"reference = {column!r}: prompt {question!r:.80} has both {found[question]!r:.40} and "
                f"{reference!r:.40}; a pool's prompts have one"
            )
    return found
