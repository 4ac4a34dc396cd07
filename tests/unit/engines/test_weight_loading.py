"""Which published sets of weights an engine takes, by what it holds and what the model directory's files hold."""

from __future__ import annotations

import pytest

from rlep.config.roles import GeneratorConfig
from rlep.core.errors import ModelError
from rlep.engines.sampler.weight_loading import WeightLoading
from rlep.engines.weights.held_weights import HeldWeight
from rlep.engines.weights.weight_update import BroadcastGroup, TensorSpec, WeightUpdate

pytestmark = pytest.mark.asyncio
HEAD, EMBEDDING, BUFFER = "lm_head.weight", "model.embed_tokens.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"
SHAPES: dict[str, tuple[int, ...]] = {EMBEDDING: (8, 4), "model.norm.weight": (4,), HEAD: (8, 4), BUFFER: (2,)}


def specs(*names: str) -> dict[str, TensorSpec]:
    return {name: TensorSpec(name, "float32", SHAPES[name]) for name in names}


async def take(held: tuple[str, ...], files: tuple[str, ...], offered: tuple[str, ...]) -> None:
    """Check an update of ``offered`` before anything is touched."""
    worker = {name: HeldWeight({name: 1}, 32, 0) for name in held}
    group = BroadcastGroup("gloo", "::1", 1, "token", 1, 2, 5.0)
    update = WeightUpdate(1, tuple(specs(*offered).values()), group, (), 1e-4, (0,) * len(offered))
    await WeightLoading(worker, specs(*files), GeneratorConfig(transfer="gloo")).check(update)


TIED = (EMBEDDING, "model.norm.weight")


@pytest.mark.parametrize("files", [TIED, (*TIED, HEAD), (*TIED, BUFFER)])
async def test_files_may_hold_more_than_engine_and_learner_do(files: tuple[str, ...]) -> None:
    """A tied head once more (Qwen3-0.6B), or the rotary frequencies (Llama 2)."""
    await take(TIED, files, TIED)


async def test_a_head_that_only_the_engine_keeps_apart_is_missed_by_name() -> None:
    with pytest.raises(ModelError) as caught:
        await take((*TIED, HEAD), (*TIED, HEAD), TIED)
    assert str(caught.value) == "the learner offers 2 weights, the generator takes 3; 1 missing: lm_head.weight"


async def test_a_head_that_only_the_learner_keeps_apart_is_unexpected_by_name() -> None:
    with pytest.raises(ModelError, match=r"offers 3 weights, the generator takes 2; 1 unexpected: lm_head\.weight$"):
        await take(TIED, (*TIED, HEAD), (*TIED, HEAD))


async def test_what_no_file_explains_is_refused_before_anything_is_touched() -> None:
    with pytest.raises(ModelError, match=r"holds 1 weight that no published weight explains.*: model\.experts$"):
        await take((*TIED, "model.experts"), TIED, TIED)
