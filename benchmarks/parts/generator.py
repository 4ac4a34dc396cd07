"""Tokens per second of 512 responses through actor, queue and stream, against vLLM's own ``LLM.generate`` on one thread each.

Both have the same model, engine arguments, sampling parameters and seeds, so they generate the same responses. The medians of
five alternating rounds count, after one to warm up. The bare engine lives in its own process beside the actor and is idle while
the other works. The last line is JSON:

* ``generator_over_bare_vllm``, ``generator_tokens_per_s``, ``bare_vllm_tokens_per_s``;
* ``same_tokens``: tokens of all rounds over those of the bare engine.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rlep.check.inputs import Subject
from rlep.config.schema import Config
from rlep.config.settings import load_config
from rlep.core.types import Int32Array, Request, Sampling
from rlep.engines.sampler.setup import engine_arguments, prepare_environment
from rlep.launch.roles import run_actors
from rlep.quickstart.task import build_task

BASE = Path(__file__).resolve().parents[2] / "rlep" / "quickstart" / "base.toml"
SAMPLES, ROUNDS = 512, 5


def bare(config: Config, prompts: list[list[int]], pipe: Connection) -> None:
    """vLLM alone: sends (tokens, seconds) for each round's seed offset."""
    prepare_environment(config, config.run.directory.parent)  # removed with it
    from vllm import LLM, EngineArgs, SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    arguments = engine_arguments(config.model.path, config)
    names = {one.name for one in fields(EngineArgs)} - {"disable_log_stats"}  # set by LLM
    engine = LLM(**{name: getattr(arguments, name) for name in names})
    pipe.send("ready")
    while (offset := pipe.recv()) is not None:
        parameters = [
            SamplingParams(
                max_tokens=config.rollout.max_tokens,
                seed=offset + number,
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            for number in range(SAMPLES)
        ]
        inputs = [TokensPrompt(prompt_token_ids=prompts[number // 8]) for number in range(SAMPLES)]
        begun = time.perf_counter()
        outputs = engine.generate(inputs, parameters, use_tqdm=False)
        seconds = time.perf_counter() - begun
        pipe.send((sum(len(one.outputs[0].token_ids) for one in outputs), seconds))


def received(pipe: Connection) -> Any:
    """What the other process says within five minutes; EOFError when it has died."""
    if not pipe.poll(300):
        raise TimeoutError("bare vLLM said nothing for 300 s")
    return pipe.recv()


async def measure(config: Config) -> dict[str, Any]:
    """Figures of the generator and of the bare engine."""
    inputs = Subject(config).inputs()
    assert inputs.train is not None
    prompts = [prompt.tokens for prompt in inputs.train.prompts[: SAMPLES // 8]]
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=bare, args=(config, [tokens.tolist() for tokens in prompts], there), daemon=True
    )
    process.start()
    there.close()
    await asyncio.to_thread(received, here)
    found = await compared(config, prompts, here)
    here.send(None)
    process.join()
    return {
        "generator_over_bare_vllm": round(found.through / found.alone, 3),
        "generator_tokens_per_s": round(found.through),
        "bare_vllm_tokens_per_s": round(found.alone),
        "same_tokens": round(found.tokens / found.tokens_alone, 6),
    }


@dataclass(frozen=True)
class Compared:
    """Medians of tokens per second, and tokens of all rounds."""

    through: float
    alone: float
    tokens: int
    tokens_alone: int


async def compared(config: Config, prompts: list[Int32Array], pipe: Connection) -> Compared:
    """Rounds in turn; ``pipe`` leads to the bare engine."""
    through: list[float] = []
    alone: list[float] = []
    counts: list[tuple[int, int]] = []
    sampling = Sampling(max_tokens=config.rollout.max_tokens)
    async with run_actors(config) as actors:
        generators = actors.generators(base_version=0)
        await actors.started()
        for number in range(ROUNDS + 1):
            offset = 1000 * number
            requests = [
                Request(f"bench/{offset + n}", f"{n // 8:032x}", prompts[n // 8], n % 8, offset + n)
                for n in range(SAMPLES)
            ]
            begun, tokens = time.perf_counter(), 0
            async for one in generators.generate(requests, sampling, deadline_s=600):
                tokens += len(one.tokens)
            through.append(tokens / (time.perf_counter() - begun))
            pipe.send(offset)
            tokens_alone, seconds = await asyncio.to_thread(received, pipe)
            alone.append(tokens_alone / seconds)
            counts.append((tokens, tokens_alone))
    ours, theirs = (sum(column) for column in zip(*counts, strict=True))
    return Compared(statistics.median(through[1:]), statistics.median(alone[1:]), ours, theirs)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="rlep-bench-") as home:
        task = build_task(Path(home) / "task")
        config = load_config(
            [BASE],
            [
                *(f'model.path="{task.model_dir}"', f'data.train="{task.train}"', "data.evaluation=[]"),
                *(f'run.directory="{home}/run"', "run.name=bench-generator", "cluster.cpus=4"),
            ],
        )
        print(json.dumps(asyncio.run(measure(config))))


if __name__ == "__main__":
    main()
