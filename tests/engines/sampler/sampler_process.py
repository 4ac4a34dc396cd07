"""A process that owns a sampler and waits to be killed: ``python -m tests.engines.sampler.sampler_process MODEL RUNTIME``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from rlep.config.schema import Config
from rlep.engines.sampler.engine import Sampler
from rlep.engines.sampler.setup import prepare_environment
from tests.engines.sampler.sampler_cases import config_of


async def own(model: Path, config: Config) -> None:
    sampler = Sampler(model, config)
    await sampler.start(deadline_s=500)
    sys.stdout.write("\nready\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    chosen = config_of(64)
    prepare_environment(chosen, Path(sys.argv[2]))
    asyncio.run(own(Path(sys.argv[1]), chosen))
