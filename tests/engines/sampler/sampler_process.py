"""A process that owns a sampler and waits to be killed: ``python -m tests.engines.sampler.sampler_process MODEL RUNTIME``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from rlep.engines.sampler.engine import Sampler, SamplerOptions, prepare_environment


async def own(model: Path, options: SamplerOptions) -> None:
    sampler = Sampler(model, options)
    await sampler.start(deadline_s=500)
    sys.stdout.write("\nready\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    chosen = SamplerOptions(max_model_len=64, kv_cache_gib=0.0625)
    prepare_environment(chosen, Path(sys.argv[2]))
    asyncio.run(own(Path(sys.argv[1]), chosen))
