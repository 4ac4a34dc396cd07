"""A program for verl's environment: the trainings of ``verl_scene``, and rlep's buffers alone in a real TransferQueue.

python -m tests.services.integrations.verl_program DIRECTORY ADDRESS
"""

from __future__ import annotations

import logging
import re
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transfer_queue as tq

from rlep.core.errors import RlepError
from tests.services.integrations.verl_scene import (
    SAMPLER,
    OnCpu,
    Scripted,
    configured,
    main,
    mini_batches,
    replaying,
    trainings,
)

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
REFUSED = {
    "divided": ["data.train_batch_size=6", f"{ACTOR}.ppo_mini_batch_size=4"],
    "critic": ["algorithm.adv_estimator=gae"],
    "filtered": ["algorithm.filter_groups.enable=True"],
    "refilled": [f"{SAMPLER}.sync_refill_failed_groups=True"],
    "compared": [f"{ROLLOUT}.calculate_log_probs=True"],
    "stood for nothing": [f"+{SAMPLER}.sampler_kwargs.stored_logprobs=True"],
    "rewarded later": ["reward.reward_model.enable=True"],
    "asynchronous": ["trainer.v1.trainer_mode=colocate_async"],
    "nothing": [f"+{SAMPLER}.sampler_kwargs.count=0"],
    "unknown": [f"+{SAMPLER}.sampler_kwargs.cuont=3"],
    "luffy": [f"+{SAMPLER}.sampler_kwargs.method=luffy"],
    "redis": [f"{SAMPLER}.sampler_kwargs.pool.url=redis://127.0.0.1:1/0"],
}
"""Overrides that rlep's buffer refuses."""


PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "replay-in-verl.md"


def settings_of_page() -> list[str]:
    """The overrides of the page's command."""
    (block,) = re.findall(r"```sh\n(python -m verl\.trainer\.main_ppo .*?)```", PAGE.read_text(), re.DOTALL)
    return [word for word in block.split() if "=" in word]


class Buffer:
    """The buffer of a trainer of verl's that is not started, and groups for it."""

    def __init__(self, home: Path, overrides: Sequence[str], *others: str) -> None:
        self._trainer = OnCpu(configured(home, 4, *overrides, *others))
        self._trainer._init_tokenizer()
        self._trainer.total_training_steps = 3
        self._trainer.actor_rollout_wg = SimpleNamespace(world_size=2)
        self._writer = Scripted(self._trainer.tokenizer, 4)

    def warnings(self, steps: int) -> list[str]:
        """What the log warns of at the first step of so many on verl's data set of four questions, four a step."""
        lines: list[str] = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("rlep").addHandler(handler)
        self._trainer._init_dataloader()
        self._trainer.total_training_steps = steps
        self.sample(1)
        logging.getLogger("rlep").removeHandler(handler)
        return lines

    def described(self) -> list[Any]:
        """Its class, and what it was told."""
        buffer = self._trainer.replay_buffer
        return [type(buffer).__name__, buffer._replay._rule.count, buffer._replay._pool.name, self.size]

    @property
    def size(self) -> int:
        """``ppo_mini_batch_size`` as it is now."""
        return int(self._trainer.config.actor_rollout_ref.actor.ppo_mini_batch_size)

    def close(self) -> None:
        """End the client, whose lease ends with it."""
        self._trainer.replay_buffer._replay._pool.close()

    def write(
        self, step: int, answers: Sequence[int], sessions: Sequence[int], partition: str = "train", **fields: Any
    ) -> list[str]:
        """A group of each answer's question."""
        uids = []
        for answer in answers:
            given = {
                "uid": uuid.uuid4().hex,
                "raw_prompt": [{"role": "user", "content": f"Ann has {answer // 3} bags of 3 pens. How many?"}],
                "reward_model": {"style": "rule", "ground_truth": str(answer)},
                "global_steps": step,
            }
            tag = {"is_prompt": True, "status": "pending", "global_steps": step}
            tq.kv_put(key=given["uid"], partition_id=partition, tag=tag)
            uids.append(self._writer.write(given, partition, sessions, **fields))
        return uids

    def sample(
        self,
        step: int,
        answers: Sequence[int] = (6, 9, 12, 15),
        *,
        sessions: Sequence[int] = range(4),
        partition: str = "train",
        also: Callable[[], list[str]] = list,
        **fields: Any,
    ) -> dict[str, Any]:
        """What a step's sample has, its groups by their place; nothing stays in TransferQueue."""
        uids = [*self.write(step, answers, sessions, partition, **fields), *also()]
        keys: list[str] = []
        try:
            batch, metrics = self._trainer.replay_buffer.sample(
                global_steps=step, partition_id=partition, batch_size=len(uids)
            )
            keys = batch.keys
            wanted = [
                "responses",
                "rm_scores",
                "response_mask",
                "loss_mask",
                *(["rollout_log_probs"] if "rollout_log_probs" in fields else []),
                *(["position_ids"] if "axes" in fields else []),
            ]
            data = tq.kv_batch_get(keys=keys, partition_id=partition, select_fields=wanted)
            columns = {name: [part.tolist() for part in data[name]] for name in wanted}
        finally:
            tq.kv_clear(keys=[*(tq.kv_list(partition) or {}).get(partition, {})], partition_id=partition)
        places = {uid: place for place, uid in enumerate(uids)}
        replays: dict[int, list[Any]] = {}
        for at, (key, tag) in enumerate(zip(keys, batch.tags, strict=True)):
            if tag.get("replay"):
                uid, session, _ = key.split("_")
                replays.setdefault(places[uid], []).append(
                    [int(session), columns["responses"][at], columns["rm_scores"][at]]
                    + ([columns["rollout_log_probs"][at]] if "rollout_log_probs" in columns else [])
                    + ([columns["response_mask"][at], columns["loss_mask"][at]] if "response_mask" in fields else [])
                    + ([columns["position_ids"][at]] if "axes" in fields else [])
                )
        return {
            "rows": len(keys),
            "padding": sum(tag.get("is_padding", False) for tag in batch.tags),
            "updates": [
                sum(not batch.tags[at].get("is_padding", False) for at in part)
                for part in (mini_batches(len(keys), self.size * 4) if metrics.get("replay/rows") else [])
            ],
            "replays": [replays.get(place, []) for place in range(len(uids))],
            "size": self.size,
            "metrics": {name: value for name, value in metrics.items() if name.startswith("replay/")},
        }


def told(call: Callable[[], object]) -> str:
    """What a call is refused with."""
    try:
        call()
    except RlepError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def buffers(home: Path, address: str) -> Mapping[str, Any]:
    """What the buffers do with groups of all kinds."""

    def made(pool: str, *others: str, **kwargs: object) -> Buffer:
        return Buffer(home, replaying(address, pool, **{"count": 2, "run": "run", **kwargs}), *others)  # type: ignore[arg-type]

    seen: dict[str, Any] = {
        name: told(lambda given=overrides: made("refused", *given))  # type: ignore[misc]
        for name, overrides in REFUSED.items()
        if name not in ("nothing", "redis")
    }
    seen["nothing"] = told(lambda: made("refused", count=0))
    seen["redis"] = told(lambda: made("refused", **{"pool.url": "redis://127.0.0.1:1/0"}))

    seen["page"] = Buffer(home, [], *settings_of_page()).described()

    first = made("groups", count=3)
    seen["first"] = first.sample(1)
    seen["second"] = first.sample(2, (6, 6, 9, 21))
    seen["partial"] = first.sample(3, (6, 9), sessions=(1, 3), also=lambda: first.write(3, (12,), ()))
    seen["shared"] = told(lambda: made("groups", run="another").sample(1))
    seen["validation"] = first.sample(3, partition="val")
    seen |= episodes(made, first, home / "tools.yaml")
    seen["unrewarded"] = told(lambda: unrewarded(first))

    many = made("many", count=6, success=0)
    many.sample(1)
    seen["many"] = many.sample(2, sessions=range(4, 8))
    many.close()
    again = made("many", success=0)
    seen["again"] = told(lambda: again.sample(1))
    again.close()
    seen["resumed"] = made("many", count=6, success=0).sample(2, sessions=range(4, 8))

    seen["trimmed"] = trimmed(made, home / "checkpoints")
    asynchronous = made(
        "twin", "trainer.v1.trainer_mode=colocate_async", name="RlepReplayBufferAsync", success=0, count=6
    )
    asynchronous.sample(1)
    seen["asynchronous batch"] = asynchronous.sample(2)

    seen["once"], seen["twice"] = (made(f"passes-{steps}").warnings(steps) for steps in (1, 2))

    gone = {"pool.url": "grpc://127.0.0.1:1", "pool.deadline_s": 0.5}
    seen["away"] = made("away", **gone).sample(1)
    seen["stopped"] = told(lambda: made("away", away="stop", **gone).sample(1))
    seen["stopped validation"] = made("away", away="stop", **gone).sample(1, partition="val")["rows"]

    late = made("late", only_below=0.2, count=1)
    late.sample(1)
    seen["late"] = late.sample(2, also=lambda: late.write(2, (6,), (1, 2)))

    # verl hands a chat template every argument, also those that it does not read.
    rope = made("rope", "+data.apply_chat_template_kwargs.unread=True", count=1)
    rope.sample(1, (6, 9), axes=4)
    seen["rope"] = rope.sample(2, (6, 9), axes=4)

    return seen | compared(made)


def compared(made: Callable[..., Buffer]) -> dict[str, Any]:
    """Stored log-probs: of a sampler in float32, and in the type that verl takes by default."""
    logprobs = {"rollout_log_probs": torch.tensor([-0.25, -0.5])}
    comparing = [f"{ROLLOUT}.calculate_log_probs=True", f"{ROLLOUT}.dtype=float32"]
    stored = made("stored", *comparing, stored_logprobs=True, count=1)
    stored.sample(1, (6,), sessions=(0,), **logprobs)
    seen: dict[str, Any] = {"stored": stored.sample(2, (6,), sessions=(0,), **logprobs)}
    halved = made("halved", comparing[0], stored_logprobs=True, count=1)
    halved.sample(1, (6,), sessions=(0,), **logprobs)
    seen["halved"] = told(lambda: halved.sample(2, (6,), sessions=(0,), **logprobs))
    return seen


def episodes(made: Callable[..., Buffer], plain: Buffer, declared: Path) -> dict[str, Any]:
    """Rows of two turns: of nothing named, twice of a tool's, and a pool of theirs where the tools are others."""
    turns: dict[str, Any] = {
        "response_mask": torch.tensor([1, 1, 0, 0, 1]),
        "responses": torch.tensor([7, 1, 8, 2, 1]),
        "rm_scores": torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0]),
    }
    seen: dict[str, Any] = {"turns": told(lambda: plain.sample(4, sessions=(0,), **turns))}
    agent = f"{ROLLOUT}.agent.default_agent_loop=tool_agent"
    declared.write_text("tools: []")
    loop = made("episodes", agent, f"{ROLLOUT}.multi_turn.tool_config_path={declared}", count=1)
    loop.sample(1, (6,), sessions=(0,), **turns)
    seen["episodes"] = loop.sample(2, (6,), sessions=(0,), **turns)
    loop.close()
    other = made("episodes", agent, count=1, run="other")
    return seen | {"other tools": told(lambda: other.sample(1, (6,), sessions=(0,)))}


def trimmed(made: Callable[..., Buffer], folder: Path) -> list[dict[str, Any]]:
    """Three steps after one that stored: without a checkpoint, with one, and with another for which verl removed its model."""
    buffer, checkpoint = (
        made("few", f"trainer.default_local_dir={folder}", per_question=2, success=0),
        folder / "global_step_1",
    )
    buffer.sample(1)
    steps = [buffer.sample(2, sessions=range(4, 8))]
    (checkpoint / "actor").mkdir(parents=True)
    (checkpoint / "data.pt").touch()
    steps.append(buffer.sample(3, sessions=range(8, 12)))
    (folder / "global_step_3" / "actor").mkdir(parents=True)
    (checkpoint / "actor").rmdir()
    return [*steps, buffer.sample(4, sessions=range(12, 16))]


def unrewarded(buffer: Buffer) -> None:
    """A group without rewards."""
    put = tq.kv_batch_put

    def without(*, fields: Any, **given: Any) -> Any:
        return put(fields=fields.exclude("rm_scores"), **given)

    tq.kv_batch_put = without
    try:
        buffer.sample(5)
    finally:
        tq.kv_batch_put = put


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], lambda home, address: {**trainings(home, address), **buffers(home, address)})
