"""A program for verl's environment: verl's own trainer on CPUs beside a pool server; prints what it saw as one line of JSON.

The actor is verl's FSDP2 worker on Ray, over gloo, rows go through a real TransferQueue. ``Scripted`` writes the responses, an
agent loop manager as verl lets its users have, in place of vLLM. The first response to each question is right.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import torch
import transfer_queue as tq
import verl
from hydra import compose, initialize_config_dir
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.tensordict_utils import list_of_dict_to_tensordict, make_iterator
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

from rlep.integrations import verl as adapter

MODEL = Path(adapter.__file__).parents[1] / "quickstart" / "model"
PLUGIN = {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "tests.services.integrations.verl_cpu"}
SAMPLER = "trainer.v1.sampler"
FSDP = {"VERL_ENGINE_DEVICE": "cuda", "VERL_ENGINE_VENDOR": "nvidia"}
"""verl registers its FSDP engine for this device, and for no CPU."""


RolloutReplicaRegistry.register("scripted", lambda: RolloutReplica)  # none is made


def written(home: Path, questions: int) -> Path:
    """A file of verl's with so many questions."""
    rows = [
        {
            "prompt": [{"role": "user", "content": f"Ann has {2 + at} bags of 3 pens. How many?"}],
            "data_source": "bags",
            "reward_model": {"style": "rule", "ground_truth": str(3 * (2 + at))},
        }
        for at in range(questions)
    ]
    pq.write_table(pa.Table.from_pylist(rows), home / f"{questions}.parquet")
    return home / f"{questions}.parquet"


def configured(home: Path, questions: int, *others: str) -> Any:
    """verl's configuration of a small run: all questions in each step, groups of four, a quarter of them in an update."""
    data = written(home, questions)
    values = (
        f"data.train_files={data}",
        f"data.val_files={data}",
        f"data.train_batch_size={questions}",
        "data.max_response_length=16",
        "data.dataloader_num_workers=0",
        "data.shuffle=False",
        f"actor_rollout_ref.model.path={MODEL}",
        "actor_rollout_ref.model.use_remove_padding=False",
        "+actor_rollout_ref.model.override_config.attn_implementation=eager",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={questions // 4}",
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        "actor_rollout_ref.actor.use_torch_compile=False",
        "actor_rollout_ref.actor.strategy=fsdp2",
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
        "actor_rollout_ref.actor.fsdp_config.dtype=float32",
        "actor_rollout_ref.actor.fsdp_config.model_dtype=float32",
        "actor_rollout_ref.actor.optim.lr=0.001",
        "actor_rollout_ref.rollout.name=scripted",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.rollout.nnodes=1",
        "actor_rollout_ref.rollout.n_gpus_per_node=1",
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True",
        "actor_rollout_ref.rollout.calculate_log_probs=False",
        "actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True",
        "algorithm.adv_estimator=grpo",
        "trainer.device=cpu",
        "trainer.n_gpus_per_node=1",
        "trainer.logger=[console]",
        "trainer.total_training_steps=3",
        "trainer.total_epochs=9",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        "trainer.resume_mode=disable",
        "reward.num_workers=0",
        "transfer_queue.enable=True",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        *others,
    )
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        return compose("ppo_trainer", [*values])


def replaying(address: str, pool: str, name: str = "RlepReplayBuffer", **kwargs: object) -> list[str]:
    """The overrides that bring rlep's buffer in."""
    given = {"pool.url": f"grpc://{address}", "pool.name": pool, **kwargs}
    return [
        f"{SAMPLER}.custom_sampler.path=pkg://rlep.integrations.verl",
        f"{SAMPLER}.custom_sampler.name={name}",
        *(f"+{SAMPLER}.sampler_kwargs.{key}={value}" for key, value in given.items()),
    ]


class Scripted:
    """Writes the same responses to a question in each step: the first one is right."""

    def __init__(self, tokenizer: Any, n: int) -> None:
        self._tokenizer, self._n = tokenizer, n

    def generate_sequences(self, batch: Any) -> None:
        """Into TransferQueue, as verl's agent loop does."""
        for at in range(len(batch)):
            given = {name: getattr(batch[at][name], "data", batch[at][name]) for name in [*batch.keys()]}
            given["dummy_tensor"] = batch["dummy_tensor"][at]
            self.write(given, "train", range(self._n))

    def write(
        self, given: Mapping[str, Any], partition: str, sessions: Sequence[int], axes: int = 0, **fields: Any
    ) -> str:
        """One prompt's group, of a processor with so many axes of positions where it has them; returns its uid."""
        ends = self._tokenizer.eos_token_id
        prompt = self._tokenizer.apply_chat_template(
            list(given["raw_prompt"]), add_generation_prompt=True, tokenize=True, return_dict=False
        )
        uid, step, answer = given["uid"], int(given["global_steps"]), given["reward_model"]["ground_truth"]
        keys, rows, tags = [], [], []
        for session in sessions:
            wrong = np.random.default_rng([int(answer), session]).integers(5, 20, size=3 + session)
            text = self._tokenizer.encode(answer, add_special_tokens=False)
            response = torch.tensor([*(text if session == 0 else wrong.tolist()), ends])
            scores = torch.zeros(len(response))
            scores[-1] = float(session == 0)
            sizes = {"prompt_len": len(prompt), "response_len": len(response), "seq_len": len(prompt) + len(response)}
            versions = {"min_global_steps": step - 1, "max_global_steps": step - 1}
            ids = torch.cat([torch.tensor(prompt), response])
            places = torch.arange(len(ids))
            keys.append(f"{uid}_{session}_0")
            tags.append({"status": "success", **sizes, "global_steps": step, **versions})
            rows.append(
                {
                    **given,
                    "session_id": session,
                    "prompts": torch.tensor(prompt),
                    "responses": response,
                    "response_mask": torch.ones_like(response),
                    "loss_mask": torch.ones_like(response),
                    "input_ids": ids,
                    "position_ids": places.expand(axes, -1).clone() if axes else places,
                    "multi_modal_inputs": {},
                    "rm_scores": scores,
                    "num_turns": 2,
                    "metrics": {},
                    "extra_fields": versions,
                    **fields,
                }
            )
        if keys:
            tq.kv_batch_put(keys=keys, fields=list_of_dict_to_tensordict(rows), tags=tags, partition_id=partition)
        tq.kv_put(key=uid, partition_id=partition, tag={"status": "finished"})
        return str(uid)


class OnCpu(PPOTrainer):
    """verl's trainer without rollout servers; keeps what each step trained on."""

    _enable_hybrid_replicas = False

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.replay_buffer.poll_interval = 0.05
        self.steps: list[dict[str, Any]] = []

    def on_sample_end(self) -> None:
        """No server sleeps."""

    def on_step_end(self) -> None:
        """No server gets weights."""

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """verl's, with the norms of its updates' gradients that its worker reports."""
        fields = ["uid", "responses", "advantages", "old_log_probs", "rm_scores"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        columns = {name: [part.tolist() for part in data[name]] for name in fields[1:]}
        group, update = self.actor_rollout_wg, self.actor_rollout_wg.update_actor

        def counted(given: Any) -> Any:
            output = update(given)
            step["norms"] = [float(norm) for norm in output["metrics"]["grad_norm"]]
            return output

        size = int(self.config.actor_rollout_ref.actor.ppo_mini_batch_size)
        step: dict[str, Any] = {
            "cut": [[batch.keys[at] for at in part] for part in mini_batches(len(batch), size * 4)],
            "rows": {
                key: {"replay": tag.get("replay", False), "padding": tag.get("is_padding", False)}
                | {name: column[at] for name, column in columns.items()}
                for at, (key, tag) in enumerate(zip(batch.keys, batch.tags, strict=True))
            },
            "size": size,
        }
        self.steps.append(step)
        group.update_actor = counted
        try:
            return super()._update_actor(batch, metrics)
        finally:
            group.update_actor = update

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], *given: Any, **named: Any) -> None:
        super()._compute_metrics(batch, metrics, *given, **named)
        kept = ("actor/", "replay/")
        self.steps[-1]["metrics"] = {name: float(value) for name, value in metrics.items() if name.startswith(kept)}


def trained(home: Path, *others: str, questions: int = 16) -> list[dict[str, Any]]:
    """The steps of a training."""
    trainer = OnCpu(configured(home, questions, *others))
    trainer.init()
    trainer.fit(Scripted(trainer.tokenizer, 4))
    for pool in trainer.resource_pool_manager.resource_pool_dict.values():
        for group in pool.pgs:
            ray.util.remove_placement_group(group)  # and its workers: the next trainer's has the same name
    return trainer.steps


def mini_batches(rows: int, size: int) -> list[list[int]]:
    """So many rows, by their places, as verl's worker cuts them."""
    data = list_of_dict_to_tensordict([{"row": torch.tensor([at])} for at in range(rows)])
    return [part["row"].flatten().tolist() for part in make_iterator(data, mini_batch_size=size, epochs=1)]


def main(home: Path, address: str, parts: Callable[[Path, str], Mapping[str, Any]]) -> None:
    """Run the scenes."""
    environment = {**PLUGIN, **FSDP, "TRANSFER_QUEUE_ENABLE": "1"}
    ray.init(num_cpus=32, num_gpus=8, include_dashboard=False, runtime_env={"env_vars": environment})
    tq.init(configured(home, 4).transfer_queue)
    try:
        seen = parts(home, address)
        (home / "seen.json").write_text(json.dumps(seen))
    finally:
        tq.close()
        ray.shutdown()


def trainings(home: Path, address: str) -> Mapping[str, Any]:
    """Trainings: verl's, with a pool that stays empty, with one that fills, and with one in large micro-batches."""
    micro = (
        "actor_rollout_ref.actor.use_dynamic_bsz=False",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16",
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=False",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16",
    )
    return {
        "plain": trained(home),
        "empty": trained(home, *replaying(address, "empty", count=2, success=9)),
        "filled": trained(home, *replaying(address, "filled", count=1)),
        "padded": trained(home, *micro, *replaying(address, "padded", count=1)),
        "cut": [len(mini_batches(512 * 18, size * 16)) for size in (64, 72)],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], trainings)
