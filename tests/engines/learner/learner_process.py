"""Learners for tests: one rank in this process, or gangs of ranks as real processes that carry out a list of commands.

The gangs are forked from a server that has imported torch once; nothing but files passes between them and a test.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlep.config.schema import Config
from rlep.config.settings import parse_config
from rlep.core.types import SequenceBatch
from rlep.engines.learner.rank import LearnerRank

Command = tuple[Any, ...]
NO_CLIP = 1e9
PLAIN: dict[str, Any] = {"lr": 1e-3, "warmup": 0, "clip_norm": NO_CLIP}


@dataclass(frozen=True)
class Spec:
    """What every rank of a gang does, one after the other."""

    model: str
    world_size: int
    meeting: str
    commands: list[Command]
    results: str
    micro_batch_tokens: int = 16384
    collective_timeout_s: float = 60.0
    lr: float = 1e-3
    clip_norm: float = 1.0
    replicas: int = 1
    keep: bool = False
    """Whether the weights before a rollout's first update are kept."""
    learner: dict[str, Any] = field(default_factory=dict)
    """More of ``[learner]``."""
    loss: dict[str, Any] = field(default_factory=dict)
    """``[loss]``."""


def save_batch(path: Path, batch: SequenceBatch) -> str:
    """Write a batch where a rank can read it."""
    arrays = {field.name: getattr(batch, field.name) for field in fields(batch)}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return str(path)


def load_batch(path: str) -> SequenceBatch:
    """What ``save_batch`` wrote."""
    with np.load(path) as arrays:
        return SequenceBatch(**{name: arrays[name] for name in arrays.files})


def gradients_of_first_update(learner: LearnerRank) -> dict[str, torch.Tensor]:
    """After one update from zero moments AdamW's first moment is (1 - beta1) times the clipped gradient."""
    moments = learner._optimizer.moments()
    return {
        name.removeprefix("exp_avg."): moment.full_tensor() / 0.1
        for name, moment in moments.items()
        if name.startswith("exp_avg.")
    }


def config_of(*, learner: Mapping[str, Any], **sections: Mapping[str, Any]) -> Config:
    """The configuration of learners on one thread each."""
    return parse_config({"learner": {"threads": 1, **learner}, **sections})


@contextmanager
def single_ranks(directory: Path, model: Path) -> Iterator[Callable[..., LearnerRank]]:
    """Starts learners of one rank in this process, which can hold one at a time: starting one closes the one before."""
    living: list[LearnerRank] = []
    started = 0

    def start(
        base: Path = model, *, keep: bool = False, micro_batch_tokens: int = 16384, **sections: Mapping[str, Any]
    ) -> LearnerRank:
        nonlocal started
        close_all()
        update = {**sections.pop("update", PLAIN), "stream": keep}
        learner = {"micro_batch_tokens": micro_batch_tokens, **sections.pop("learner", {})}
        settings = config_of(update=update, learner=learner, **sections)
        started += 1
        meeting = f"file://{directory}/meeting-{started}"
        teacher = settings.loss.teacher
        living.append(LearnerRank(base, settings, rank=0, world_size=1, meeting_point=meeting, teacher=teacher))
        return living[-1]

    def close_all() -> None:
        while living:
            living.pop().close()

    yield start
    close_all()


def weights_of(learner: LearnerRank) -> dict[str, torch.Tensor]:
    """Every full weight, copied."""
    return {name: weight.clone() for name, weight in learner._weights.gathered("float32")}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    """Whether both hold the same tensors, to the bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def start_ranks(directory: Path, spec: Spec) -> list[BaseProcess]:
    """One process per rank; what it says goes to ``rank-<n>.log``."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    processes: list[BaseProcess] = []
    for rank in range(spec.world_size):
        process = context.Process(target=run_rank, args=(spec, rank, log_of(directory, rank)), daemon=True)
        process.start()
        processes.append(process)
    return processes


def log_of(directory: Path, rank: int) -> Path:
    """Where a rank's output goes."""
    return directory / f"rank-{rank}.log"


def run_ranks(directory: Path, model: Path, world_size: int, commands: list[Command], **settings: object) -> list[Any]:
    """Run a gang to its end; the results of rank 0, one per command."""
    number = len(list(directory.glob("results-*")))
    results = directory / f"results-{number}.json"
    meeting = f"file://{directory}/meeting-{number}"
    spec = replace(Spec(str(model), world_size, meeting, commands, str(results)), **settings)  # type: ignore[arg-type]
    processes = start_ranks(directory, spec)
    for process in processes:
        process.join()
    for rank, process in enumerate(processes):
        assert process.exitcode == 0, log_of(directory, rank).read_text()[-3000:]
        process.close()
    loaded: list[Any] = json.loads(results.read_text())
    return loaded


def carry_out(learner: LearnerRank, rank: int, command: Command) -> Any:
    """One command; what it returns goes into the results."""
    name, *arguments = command
    if name == "score":
        return learner.score(load_batch(arguments[0]), rollout=arguments[1] if arguments[1:] else None).tolist()
    if name == "update":
        report = learner.update(load_batch(arguments[0]), rollout=arguments[1])
        return {
            "loss": report.loss,
            "grad_norm": report.grad_norm,
            "skipped": report.skipped,
            "sources": report.sources,
        }
    if name == "gradients":
        gradients = gradients_of_first_update(learner)
        torch.save(gradients, arguments[0]) if rank == 0 else None
    elif name == "gathered":
        found = {dtype: dict(learner._weights.gathered(dtype)) for dtype in ("float32", "bfloat16")}
        torch.save(found, arguments[0]) if rank == 0 else None
    elif name == "save":
        learner.save(Path(arguments[0]))
    elif name == "written":
        learner.written(60.0)
    elif name == "load":
        learner.load(Path(arguments[0]))
    elif name == "checksums":
        return list(learner._weights.checksums("bfloat16"))
    elif name == "random":
        return torch.rand(4).tolist()
    elif name == "die" and rank == arguments[0]:
        os._exit(17)
    elif name == "sleep" and rank == arguments[0]:
        time.sleep(arguments[1])  # until it is killed
    return None


def run_rank(spec: Spec, rank: int, log: Path) -> None:
    """Carry out the spec as one rank; the body of its process."""
    with log.open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    learner_section = {
        "ranks": spec.world_size,
        "replicas": spec.replicas,
        "micro_batch_tokens": spec.micro_batch_tokens,
        "collective_timeout_s": spec.collective_timeout_s,
        **spec.learner,
    }
    update = {"lr": spec.lr, "clip_norm": spec.clip_norm, "warmup": 0, "stream": spec.keep}
    config = config_of(learner=learner_section, update=update, loss=spec.loss)
    learner = LearnerRank(
        Path(spec.model),
        config,
        rank=rank,
        world_size=spec.world_size,
        meeting_point=spec.meeting,
        teacher=config.loss.teacher,
    )
    results = [carry_out(learner, rank, command) for command in spec.commands]
    if rank == 0:
        Path(spec.results).write_text(json.dumps(results))
    learner.close()
