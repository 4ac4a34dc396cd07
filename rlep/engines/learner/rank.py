"""One rank of the learner. Every public method is collective: all ranks call it at the same time with equal arguments."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from rlep.algorithms.corrections import importance
from rlep.algorithms.loss import LossSums, packed_policy_loss, packed_tokens
from rlep.algorithms.loss_values import high_entropy_mask, normalizers, regulariser_normalizers
from rlep.algorithms.packing import Budget, pack, take
from rlep.config.schema import Config
from rlep.config.training import LossConfig
from rlep.core.errors import UpdateError
from rlep.core.types import BoolArray, Float32Array, Int32Array, SequenceBatch, UpdateCost, UpdateOutcome
from rlep.engines.learner.background import BackgroundWriter
from rlep.engines.learner.device_state import current_device, join_ranks, random_state, rank_mesh, set_random_state
from rlep.engines.learner.full_weights import FullWeights
from rlep.engines.learner.lora import adapters_of, base_model, write_adapter
from rlep.engines.learner.offload import OffloadedState
from rlep.engines.learner.optimizer import ShardedAdamW
from rlep.engines.learner.packed_row import PackedRow, largest_update, pack_row
from rlep.engines.learner.policy import build_policy, named_shards, reshard
from rlep.engines.learner.start_weights import StartWeights
from rlep.engines.learner.trainer_state import Position, read_trainer, write_model, write_trainer
from rlep.engines.learner.update_cost import model_flops, peak_flops, peak_memory, reset_peak_memory
from rlep.engines.learner.weight_sender import (
    ChangeCheck,
    WeightSender,
    scored_probes,
    send_weights,
    weight_update,
    write_weights,
)
from rlep.engines.weights.shared_memory import SharedMemoryWriter
from rlep.engines.weights.weight_update import BroadcastGroup, WeightDtype, WeightUpdate

RowLoss = Callable[[PackedRow, Tensor, Tensor], tuple[Tensor, LossSums]]
"""Row, log-probs ``[R]`` and entropies of its response tokens -> its share of the batch's loss, and what is counted."""
Reference = Callable[[PackedRow], Tensor]
"""Row -> log-probs ``[R]`` of the reference policy, without gradients."""


class LearnerRank:
    """The policy's shards, their optimizer, and the process group of one rank; one per process."""

    def __init__(
        self,
        model: Path,
        config: Config,
        *,
        rank: int,
        world_size: int,
        meeting_point: str,
        listening: socket.socket | None = None,
        teacher: Path | None = None,
    ) -> None:
        """Join the group and load the base weights; blocks until all ranks are there.

        Args:
            model: Hugging Face directory of a causal LM.
            config: equal on all ranks.
            rank: 0 … world_size - 1.
            world_size: number of ranks.
            meeting_point: where ranks meet: ``file:///new/file`` on a file system all share, or ``tcp://host:port``.
            listening: rank 0's socket at that host and port, from ``rendezvous.listen``.
            teacher: Hugging Face directory of ``loss.teacher``.

        Raises:
            ModelError: the model cannot be used.
        """
        self.config = config
        self._source, self._teacher, self._rank, self._world = model, teacher, rank, world_size
        # A start that fails must leave the group: the process may be asked to start again.
        with ExitStack() as undo:
            join_ranks(config, rank, world_size, meeting_point, listening)
            undo.callback(dist.destroy_process_group)
            self._writer = BackgroundWriter(config.learner.collective_timeout_s)
            self._build()
            undo.pop_all()

    def _build(self) -> None:
        config, learner = self.config, self.config.learner
        mesh = rank_mesh(learner, self._world)
        self._policy, lora = build_policy(self._source, learner, mesh, seed=config.run.seed), learner.lora_rank > 0
        # With adapters the base model is the policy without them.
        source = self._teacher or (None if lora else self._source)
        held = config.loss.kl_coef > 0 and source
        self._reference = build_policy(held, learner, mesh, frozen=True) if held else None
        shards: tuple[tuple[str, DTensor], ...] = tuple(named_shards(self._policy))
        self._trained = tuple((name, shard) for name, shard in shards if shard.requires_grad)
        served = [shard for shard in shards if not shard[1].requires_grad] if lora else shards
        self._weights = FullWeights(served, adapters_of(self._trained, learner.lora_scale) if lora else None)
        self._optimizer = ShardedAdamW(self._trained, config.update, config.schedule_end)
        self._start, self._offloaded, self._change = StartWeights(self._trained), OffloadedState(), ChangeCheck()
        self._updates, self._temperature = 0, config.loss_temperature
        self._rollout: int | None = 0  # the last one that was updated on; None: not known
        self._moved = False  # the reference is no longer the model that it was built from
        self._budget = Budget(learner.micro_batch_tokens, attention_length=6 * self._policy.model.config.hidden_size)
        self._device = current_device(learner.device)

    def score(self, batch: SequenceBatch, *, rollout: int | None = None) -> Float32Array:
        """Log-probs ``[R]`` of all response tokens at the loss's temperature, on every rank.

        Under the present weights; with ``rollout`` under those before its first update, which
        ``Config.keeps_start_weights`` keeps.
        """
        with self._start.at_start_of(rollout):
            return self._no_grad_pass(batch, temperature=self._temperature)

    def update(self, batch: SequenceBatch, *, rollout: int) -> UpdateOutcome:
        """One optimizer update on whole groups with their old log-probs.

        Args:
            batch: the whole update; ranks take their parts of it themselves.
            rollout: number of the training step (from 0), which warm-up and schedule may count.

        Raises:
            UpdateError: the batch has no old log-probs.
        """
        if batch.old_logprobs is None:
            raise UpdateError(f"an update of {len(batch)} sequences without old log-probs: score the batch first")
        # Before anything changes the weights: later mini-batches of this rollout are scored under the present ones.
        self._start.updating(rollout, keep=self.config.keeps_start_weights)
        self._reset_reference(rollout)
        loss = self._policy_loss(batch)
        return self._step(batch, rollout, loss, entropy=True, temperature=self._temperature)

    def rehearse(self) -> None:
        """Compute the gradients of the largest update that the configuration allows, and drop them; all state stays to the bit.

        Before the first rollout a GPU that is too small for it fails here, and not hours later at the longest responses.
        """
        batch = largest_update(self._world, self.config.learner.micro_batch_tokens, self.config.context)
        self._start.updating(-1, keep=self.config.keeps_start_weights)
        self._accumulate(batch, self._policy_loss(batch), entropy=True, temperature=self._temperature)
        self._optimizer.drop_gradients()
        self._start.forget()
        reset_peak_memory(self._device)

    def _policy_loss(self, batch: SequenceBatch) -> RowLoss:
        fraction, high_entropy = self.config.loss.high_entropy_fraction, None
        if fraction < 1:
            # The threshold is one of the whole update, so all entropies are known before the first micro-batch.
            mask = np.repeat(batch.trained, batch.sampled_lengths)
            entropies = self._no_grad_pass(batch, entropy=True, temperature=self._temperature)
            high_entropy = high_entropy_mask(entropies, mask, fraction)
        reference = self._reference_logprobs if self.config.loss.kl_coef else None
        return policy_loss(batch, self.config, high_entropy, reference)

    def _reset_reference(self, rollout: int) -> None:
        """Make the present policy the reference, where that has been due since the last rollout that was updated on."""
        every, before = self.config.loss.kl_reset, rollout - 1 if self._rollout is None else self._rollout
        self._rollout = rollout
        # Not only in the very step: dynamic sampling may have left that without a mini-batch.
        if every and rollout // every > before // every and self._reference is not None:
            self._moved = True
            with torch.no_grad():
                for (_, kept), (_, present) in zip(
                    named_shards(self._reference), named_shards(self._policy), strict=True
                ):
                    kept.to_local().copy_(present.to_local())

    def _reference_logprobs(self, row: PackedRow) -> Tensor:
        if self._reference is not None:
            return self._reference(row, False, self._temperature)[0]
        with base_model(self._policy):
            return self._policy(row, False, self._temperature)[0]

    def sft_update(self, batch: SequenceBatch, *, rollout: int) -> UpdateOutcome:
        """One update of supervised fine-tuning: mean cross-entropy over all trained response tokens of the batch."""
        return self._step(batch, rollout, cross_entropy(batch))

    def send(self, sender: WeightSender | None, dtype: WeightDtype) -> None:
        """Broadcast the weights to the generators, which must take them at the same time; rank 0 has the sender.

        Raises:
            WeightSyncError: a generator is gone, did not come, or did not keep up.
        """
        send_weights(self._weights, sender, dtype)

    def publish(
        self,
        target: SharedMemoryWriter | BroadcastGroup | None,
        version: int,
        probes: Sequence[tuple[Int32Array, Int32Array]],
        dtype: WeightDtype,
    ) -> WeightUpdate | None:
        """The weights as policy ``version``, with this learner's log-probs of ``probes`` to check them by.

        Args:
            target: on rank 0 the writer to shared memory, which writes now; or, on all ranks, the group that ``send`` serves.
            version: the policy version.
            probes: (prompt ``[P]``, response ``[T]``) token ids, at least one; compared at temperature 1.
            dtype: of the generators.

        Returns:
            The weight update on rank 0, None on ranks without a target.

        Raises:
            UpdateError: updates that were applied changed no weight.
            WeightSyncError: the weights cannot be written.
        """
        masters = self._change.check(self._weights, version)
        checks = scored_probes(probes, self._no_grad_pass)
        sums = masters if dtype == "float32" else self._weights.checksums(dtype)
        source = target if isinstance(target, BroadcastGroup) else write_weights(self._weights, target, version, dtype)
        return None if source is None else weight_update(self._weights, source, version, checks, dtype, checksums=sums)

    def save(self, directory: Path) -> None:
        """Copy the present state and begin to write it; training may go on at once. ``written`` says when it is complete.

        ``model/`` is a Hugging Face directory in the compute type; ``trainer/`` has the trained weights in float32, moments, RNG,
        position and, where it was reset, the reference; with LoRA ``model/`` is merged, and ``adapter/`` is the adapter as peft
        loads it.

        Raises:
            CheckpointError: the one before is still being written.
        """
        # Before anything is copied: two snapshots would need the host memory of both.
        self._writer.check_free()
        dtype, source, rank = self.config.learner.compute_dtype, self._source, self._rank
        weights, learner = self._weights.on_host(dtype), self.config.learner
        adapter = FullWeights(self._trained).on_host("float32") if learner.lora_rank else {}
        taken = self._state() | (self._reference_state() if self._moved else {}) | random_state(rank, self._device)
        state = {name: tensor.to("cpu", copy=True) for name, tensor in taken.items()}
        position = Position(updates=self._updates, applied=self._optimizer.steps, rollout=self._rollout)

        def write() -> None:
            write_trainer(state, position, directory / "trainer", self._writer.group)
            if rank == 0:  # last: nobody waits for rank 0 any more if this fails
                if learner.lora_rank:
                    write_adapter(adapter, learner, source, directory / "adapter")
                write_model(weights, source, directory / "model", dtype)

        self._writer.begin(write)

    def written(self, wait_s: float = 0.0) -> bool:
        """Return True once this rank's part of the last ``save`` is complete; not collective.

        Args:
            wait_s: longest wait for it; 0 only looks.

        Raises:
            CheckpointError: it cannot be written.
            DeadlineExceeded: it took longer than ``wait_s``.
        """
        if wait_s:
            self._writer.wait(wait_s)
        return self._writer.done()

    def load(self, directory: Path) -> None:
        """Go on from what ``save`` wrote, on any number of ranks; to the bit on the same number.

        Raises:
            CheckpointError: missing, torn, or of another model. The learner is then in no usable state.
        """
        # What these two remember is of the weights that are replaced now.
        self._start.forget()
        self._change.forget()
        found, reference = random_state(self._rank, self._device), self._reference_state()
        # A run that has reset nothing so far has its first reference; one that resets no more keeps the last.
        optional = frozenset(found) | reference.keys()
        position, absent = read_trainer(self._state() | reference | found, optional, directory / "trainer")
        self._optimizer.set_steps(position.applied)
        self._updates, self._rollout = position.updates, position.rollout
        self._moved = not reference.keys() <= absent
        if not absent & found.keys():
            set_random_state(found, self._rank, self._device)

    def sleep(self) -> None:
        """Release the device's memory until ``wake``: all state is offloaded to the host. Not collective."""
        reference = () if self._reference is None else named_shards(self._reference)
        held = [parameter.to_local() for _, parameter in (*named_shards(self._policy), *reference)]
        moments = [moment.to_local() for moment in self._optimizer.moments().values()]
        self._offloaded.offload([*held, *moments, *self._start.copies], self._device)

    def wake(self) -> None:
        """Bring the state back, to the bit. Not collective."""
        self._offloaded.fetch()

    def close(self) -> None:
        """Leave the group, after a checkpoint that is being written."""
        self._writer.close()
        dist.destroy_process_group()

    def _no_grad_pass(self, batch: SequenceBatch, *, entropy: bool = False, temperature: float = 1.0) -> Float32Array:
        result = torch.zeros(int(batch.sampled_lengths.sum()), dtype=torch.float32)
        with torch.no_grad():
            for sequences in pack(batch, self._world, self._budget)[self._rank]:
                row = pack_row(batch, sequences, self._device)
                values = self._policy(row, entropy, temperature)[1 if entropy else 0]
                result[torch.from_numpy(row.responses)] = values[: len(row.responses)].cpu()
            reshard(self._policy)
            if self._world > 1:
                # Every token is scored by one rank and zero on the others, so the sum is exact.
                shared = result.to(self._device)
                dist.all_reduce(shared)
                result = shared.cpu()
        return result.numpy()

    def _step(
        self,
        batch: SequenceBatch,
        rollout: int,
        row_loss: RowLoss,
        *,
        entropy: bool = False,
        temperature: float = 1.0,
    ) -> UpdateOutcome:
        started = time.perf_counter()
        index = rollout if self.config.update.unit == "rollouts" else self._updates
        # Counted even if it is skipped below, so that a continued run is at the same place of its schedule.
        self._updates += 1
        if not batch.sampled_lengths[batch.computed].any():
            return UpdateOutcome(0.0, 0.0, self._optimizer.lr_at(index), "no tokens", {})
        loss, sums = self._accumulate(batch, row_loss, entropy=entropy, temperature=temperature)
        step = self._optimizer.step(index)
        self._change.note(step)
        return UpdateOutcome(
            loss=loss,
            grad_norm=step.grad_norm,
            learning_rate=step.lr,
            skipped="" if step.applied else "non-finite gradient",
            cost=self._cost(batch, time.perf_counter() - started),
            sources=sums.metrics() if sums.sums.any() else {},
        )

    def _cost(self, batch: SequenceBatch, seconds: float) -> UpdateCost:
        frozen = self.config.learner.lora_rank > 0
        weights = sum(math.prod(spec.shape) for spec in self._weights.layout("float32"))
        # Sequences out of the loss are not computed, so they cost nothing.
        batch = take(batch, np.flatnonzero(batch.computed))
        return UpdateCost(
            tokens=len(batch.tokens),
            seconds=seconds,
            model_flops=model_flops(self._policy.model.config, weights, batch, frozen=frozen),
            peak_flops=peak_flops(self._device, self.config.learner.compute_dtype, self._world),
            peak_memory_bytes=peak_memory(self._device),
        )

    def _accumulate(
        self, batch: SequenceBatch, row_loss: RowLoss, *, entropy: bool, temperature: float
    ) -> tuple[float, LossSums]:
        """Gradients of the whole update into the shards; its loss and sums over all ranks.

        Each micro-batch's are reduce-scattered and added up in the shards, unless ``learner.unsharded_gradients``; replicas
        exchange theirs once, with the last.
        """
        # On the device: a number read from it after each micro-batch would make the host wait for its end.
        loss, sums = torch.zeros((), dtype=torch.float64, device=self._device), LossSums.zeros(self._device)
        plan = pack(batch, self._world, self._budget, batch.computed)[self._rank]  # the others have no gradient
        for number, sequences in enumerate(plan, start=1):
            last = number == len(plan)
            # The last one reduces, whatever the options: without it the shards would have no gradient.
            self._policy.set_requires_gradient_sync(last or not self.config.learner.unsharded_gradients)
            self._policy.set_requires_all_reduce(last)
            self._policy.set_reshard_after_backward(last or self.config.learner.reshard_after_forward)
            row = pack_row(batch, sequences, self._device)
            part, part_sums = row_loss(row, *self._policy(row, entropy, temperature))
            part.backward()
            loss, sums = loss + part.detach(), sums + part_sums
        # It is used outside of a backward pass, after which FSDP would free its gathered weights.
        if self._reference is not None:
            reshard(self._reference)
        if self._world > 1:
            # One message for all that is added up; a maximum cannot travel with it.
            shared = torch.cat([loss.view(1), sums.sums.view(-1)])
            largest = sums.ratio_max.clone()
            dist.all_reduce(shared)
            dist.all_reduce(largest, dist.ReduceOp.MAX)
            loss, sums = shared[0], LossSums(shared[1:].view_as(sums.sums), largest)
        return float(loss.item()), sums

    def _state(self) -> dict[str, Tensor]:
        weights: dict[str, Tensor] = {f"weight.{name}": parameter.detach() for name, parameter in self._trained}
        return weights | self._optimizer.moments()

    def _reference_state(self) -> dict[str, Tensor]:
        """The weights of a reference that is not the teacher."""
        if self._reference is None or self._teacher is not None:
            return {}
        return {f"reference.{name}": shard.detach() for name, shard in named_shards(self._reference)}


def policy_loss(
    batch: SequenceBatch, config: Config, high_entropy: BoolArray | None, reference: Reference | None
) -> RowLoss:
    """Equation 4 of a row of ``batch``; ``high_entropy`` ``[R]`` chooses tokens, None takes all."""
    limit = config.rollout.max_tokens
    weights = normalizers(batch, config.loss, fixed_length=limit)  # [S]
    kept = regulariser_normalizers(batch, config.loss, fixed_length=limit)  # [S]
    factors = importance(batch, config.loss, config.replay)  # [R]

    def loss(row: PackedRow, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, LossSums]:
        with torch.no_grad():
            base = None if reference is None else reference(row)
        chosen = None if high_entropy is None else torch.from_numpy(row.of_responses(high_entropy)).to(logprobs.device)
        values = {"reference_logprobs": base, "entropy": entropy, "high_entropy": chosen}
        values["importance"] = None if factors is None else row.of_responses(factors)
        values["regulariser_weights"] = None if batch.regularised is None else row.of_sequences(kept)
        part = packed_tokens(row.part, logprobs, row.of_sequences(weights), **values)
        return packed_policy_loss(part, config.loss, config.replay)

    return loss


def cross_entropy(batch: SequenceBatch) -> RowLoss:
    """The mean over all trained response tokens of ``batch``."""
    weights = normalizers(batch, LossConfig())

    def loss(row: PackedRow, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, LossSums]:
        per_token = np.repeat(row.of_sequences(weights), row.part.sampled_lengths)
        total = -(logprobs.double() * torch.from_numpy(per_token).to(logprobs.device)).sum()
        return total, LossSums.zeros(logprobs.device)

    return loss
