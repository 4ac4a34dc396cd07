"""Tokens per second of 512 answers through actor, queue and stream, against vLLM's own ``LLM.generate`` on one thread each.

Both have the same model, engine arguments, sampling parameters and seeds, so they write the same answers; the bare one has
vLLM's own scheduler and sampler. The medians of five alternating rounds count, after one to warm up. The bare engine lives in a
process of its own beside the actor and is idle while the other works. ``same_tokens``: tokens of all rounds over the bare one's.
The last line is JSON.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from dataclasses import fields
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from rlep.config.schema import Config
from rlep.config.settings import load_config
from rlep.core.types import Request, Sampling
from rlep.engines.sampler.setup import engine_arguments, prepare_environment
from rlep.launch.compose import read_inputs, stage
from rlep.launch.engine_options import sampler_options
from rlep.quickstart.task import build_task

BASE = Path(__file__).resolve().parents[2] / "rlep" / "quickstart" / "base.toml"
SAMPLES, ROUNDS = 512, 5


def bare(config: Config, prompts: list[list[int]], pipe: Connection) -> None:
    """vLLM alone: answers each round's seed offset with (tokens, seconds)."""
    options = sampler_options(config)
    prepare_environment(options, config.run.directory.parent)  # removed with it
    from vllm import LLM, EngineArgs, SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    arguments = engine_arguments(config.model.path, options)
    own = {"disable_log_stats", "scheduler_cls"}  # set by LLM; rlep's
    engine = LLM(**{name: getattr(arguments, name) for name in {one.name for one in fields(EngineArgs)} - own})
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
    """Rounds in turn."""
    inputs = read_inputs(config)
    assert inputs.train is not None
    prompts = [prompt.tokens for prompt in inputs.train.prompts[: SAMPLES // 8]]
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=bare, args=(config, [tokens.tolist() for tokens in prompts], there), daemon=True
    )
    process.start()
    there.close()
    ours: list[float] = []
    theirs: list[float] = []
    counted = np.zeros(2)
    async with stage(config) as actors:
        generators = actors.generators(base_version=0)
        await actors.started()
        await asyncio.to_thread(received, here)
        for number in range(ROUNDS + 1):
            offset = 1000 * number
            requests = [
                Request(f"bench/{offset + n}", f"{n // 8:032x}", prompts[n // 8], n % 8, offset + n)
                for n in range(SAMPLES)
            ]
            begun, tokens = time.perf_counter(), 0
            sampling = Sampling(max_tokens=config.rollout.max_tokens)
            async for one in generators.generate(requests, sampling, deadline_s=600):
                tokens += len(one.tokens)
            ours.append(tokens / (time.perf_counter() - begun))
            here.send(offset)
            written, seconds = await asyncio.to_thread(received, here)
            theirs.append(written / seconds)
            counted += (tokens, written)
    here.send(None)
    process.join()
    through, alone = statistics.median(ours[1:]), statistics.median(theirs[1:])
    return {
        "generator_over_bare_vllm": round(through / alone, 3),
        "generator_tokens_per_s": round(through),
        "bare_vllm_tokens_per_s": round(alone),
        "same_tokens": round(counted[0] / counted[1], 6),
    }


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
