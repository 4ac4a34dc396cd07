"""A console over run directories that the driver wrote, with fakes behind its ports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from starlette.testclient import TestClient

from rlep.core.types import Int32Array
from rlep.driver.context import Step
from rlep.driver.run_directory import Facts, RunDirectory
from rlep.driver.wings.rollout_files import RolloutFiles
from rlep.services.pool.values import PoolPlace
from rlep.view.app import console_app
from tests.unit.driver.driver_fakes import World, filled_pool, scene_of
from tests.unit.driver.driver_values import TOKENIZER, config_of, prompt_set, prompts_of

TOKEN = "canary-7f3a91"
ATTACKS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg/onload=alert(1)>',
    "{{ 7 * 7 }}",
    "[link](javascript:alert(1))",
    "abc\u202egnp.exe \u2066\u200b\ufeff\x1b[2J\x00",
    "<script>window.ran = 1</script>",
    "<img src='//evil.example/a.png' onerror='window.ran = 2'>",
    "<a href='javascript:window.ran=3' autofocus onfocus='window.ran=3'>more</a>",
    "</pre></td></table><iframe srcdoc='<script>parent.ran = 4</script>'></iframe>",
    "<style>@import '//evil.example/a.css'; body { display: none }</style><link rel=prefetch href=//evil.example/b>",
    "<base href='//evil.example/'><meta http-equiv=refresh content='0;url=//evil.example/'>",
    "{% for one in ().__class__.__base__.__subclasses__() %}{{ one }}{% endfor %}",
    "{{ 1331 * 7919 }} ${1331 * 7919} <%= 1331 * 7919 %> #{1331 * 7919}",
    "</textarea></title></script><details open ontoggle=window.ran=5><form action=//evil.example/><button>",
)
"""``window.ran`` is set where a browser takes one of them for code."""
ATTACK = "\n".join(ATTACKS)


def hostile(tokens: Int32Array) -> str:
    return ATTACK


async def write_run(directory: Path, seed: int = 5, error: str | None = ATTACK) -> None:
    """Four steps of four groups; every text that a model could have written is ``ATTACK``. Without ``error`` it is finished."""
    config = config_of(run={"directory": str(directory), "seed": seed})
    train, held_out = prompt_set(10, prefix=ATTACK), prompts_of(3, prefix=f"held {ATTACK}", source="aime")
    scene = scene_of(config, pool=filled_pool(World(), train.prompts))
    store = RunDirectory(directory, config, Facts("train", "model", TOKENIZER, train.digest))
    try:
        async with RolloutFiles(config, hostile, store.events) as files:

            async def wait(_: Step) -> None:
                await files.finished()  # a step of fakes takes less time than a file

            before = [wait, files.begin_step]
            await scene.training(train, held_out, store, before=before, after=[files.write_step]).run()
        if error is not None:
            store.events.log("run_failed", error=error)
    finally:
        store.close()


def client_of(*directories: Path, logged_in: bool = True, pools: Sequence[PoolPlace] = ()) -> TestClient:
    """A browser's requests to a console; redirects are not followed."""
    app = console_app(directories, TOKEN, pools)
    client = TestClient(app, base_url="http://127.0.0.1:7272", follow_redirects=False)
    if logged_in:
        assert client.get(f"/?token={TOKEN}").status_code == 303
    return client
