"""The generator on a real vLLM: what it samples, how it takes weights, what it refuses, how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import pytest_asyncio
import torch
from transformers import Qwen2ForCausalLM

from rlep.core.errors import ActorLost, ModelError, WeightSyncError
from rlep.core.types import Completion, Request, Sampling
from rlep.engines.sampler.engine import Sampler
from rlep.engines.sampler.setup import prepare_environment
from rlep.engines.weights.checksums import checksum
from rlep.engines.weights.shared_memory import SharedMemoryWriter
from rlep.engines.weights.weight_update import Probe, SharedMemoryWeights, TensorSpec, WeightUpdate
from tests.engines.sampler.sampler_cases import (
    BLOCK,
    CONTEXT,
    EOS,
    PAD,
    SMALL_BLOCKS,
    VOCABULARY,
    build_model,
    config_of,
    perturb,
    requests,
    sequence,
    true_logprobs,
    worst_difference,
)
from tests.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

BLOCKS = 48
BLOCK_BYTES = BLOCK * 2 * 2 * 2 * 32 * 4  # 2 layers, keys and values, 2 heads of 32 float32
# Blocks that some prompts share, fewer than requests; steps that cannot take all prompts at once.
CONFIG = config_of(
    kv_cache_gib=BLOCKS * BLOCK_BYTES / 2**30, max_sequences=64, max_batched_tokens=CONTEXT, engine=SMALL_BLOCKS
)
FULL = Sampling(max_tokens=24)


@dataclass
class Rig:
    """A started sampler beside the transformers model that its weights come from."""

    sampler: Sampler
    model: Qwen2ForCausalLM
    directory: Path
    runtime: Path
    writer: SharedMemoryWriter
    version: int = 0

    def publish(self, *, leave_out: str = "", tolerance: float = 1e-4) -> WeightUpdate:
        """The model's present weights as the next version."""
        self.version += 1
        weights = [(name, weight) for name, weight in self.model.named_parameters() if name != leave_out]
        layout = tuple(TensorSpec(name, "float32", tuple(weight.shape)) for name, weight in weights)
        shared = self.writer.write(layout, weights, self.version)
        probes = tuple(
            Probe(prompt, response, true_logprobs(self.model, prompt, response))
            for prompt, response in (sequence(5, 20, 1), sequence(9, 30, 2))
        )
        checksums = tuple(int(checksum(weight)) for _, weight in weights)
        return WeightUpdate(self.version, layout, shared, probes, tolerance, checksums)

    async def update(self, scale: float) -> float:
        """Change the weights, push them, and confirm; the largest log-prob difference."""
        perturb(self.model, scale)
        weight_update = self.publish()
        await self.sampler.load_weights(weight_update)
        return await self.sampler.confirm(weight_update)


def file_of(weight_update: WeightUpdate) -> Path:
    assert isinstance(weight_update.source, SharedMemoryWeights)
    return weight_update.source.path


async def collect(sampler: Sampler, wanted: list[Request], sampling: Sampling = FULL) -> dict[str, Completion]:
    found = [completion async for batch in sampler.generate(wanted, sampling) for completion in batch]
    assert sorted(completion.request_id for completion in found) == sorted(request.id for request in wanted)
    return {completion.request_id: completion for completion in found}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["tied", "untied"])
async def rig(
    request: pytest.FixtureRequest, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rig]:
    directory = tmp_path_factory.mktemp(request.param)
    model = build_model(directory, tied=request.param == "tied")
    runtime = prepare_environment(CONFIG)
    sampler = Sampler(directory, CONFIG)
    with pytest.raises(ActorLost, match="not started"):
        await sampler.health()
    await sampler.start(deadline_s=500)
    yield Rig(sampler, model, directory, runtime, SharedMemoryWriter(directory))
    await sampler.close()
    await sampler.close()
    assert not runtime.exists()


async def test_serves_nothing_until_told_and_then_only_what_was_told(rig: Rig) -> None:
    with pytest.raises(WeightSyncError, match="serves no policy version"):
        await collect(rig.sampler, requests(1))
    rig.sampler.serve_base(version=0)
    found = await collect(rig.sampler, requests(4))
    assert {completion.policy_version for completion in found.values()} == {0}
    assert not rig.sampler._samples


async def test_logprobs_are_those_of_a_plain_forward_pass(rig: Rig) -> None:
    wanted = requests(32)
    found = await collect(rig.sampler, wanted)
    assert worst_difference(rig.model, wanted, found) <= 1e-4
    assert max(float(-completion.logprobs.min()) for completion in found.values()) > 1.0  # not all near certainty


async def test_logprobs_are_raw_whatever_the_temperature_and_top_p(rig: Rig) -> None:
    wanted = requests(8)
    found = await collect(rig.sampler, wanted, Sampling(temperature=0.7, top_p=0.5, top_k=10, max_tokens=12))
    assert worst_difference(rig.model, wanted, found) <= 1e-4


async def test_finish_reasons_tokens_and_text_agree(rig: Rig) -> None:
    found = await collect(rig.sampler, requests(64))
    by_reason: dict[str, list[Completion]] = {"stop": [], "length": []}
    for completion in found.values():
        by_reason[completion.finish_reason].append(completion)
        assert len(completion.logprobs) == len(completion.tokens)
        assert completion.text == " ".join(f"w{token}" for token in completion.tokens if token > EOS)
    assert all(c.tokens[-1] == EOS and EOS not in c.tokens[:-1] for c in by_reason["stop"])
    assert all(len(c.tokens) == 24 and EOS not in c.tokens for c in by_reason["length"])
    assert by_reason["stop"]
    assert by_reason["length"]


async def test_a_response_ends_at_a_stop_token_and_keeps_it(rig: Rig) -> None:
    plain = await collect(rig.sampler, requests(32))
    stopped = await collect(rig.sampler, requests(32), replace(FULL, stop_tokens=(7, 20)))
    for request_id, completion in stopped.items():
        ends = np.flatnonzero(np.isin(plain[request_id].tokens, (7, 20)))
        whole = plain[request_id].tokens[: ends[0] + 1] if len(ends) else plain[request_id].tokens
        assert completion.tokens.tolist() == whole.tolist()
        assert completion.finish_reason == ("stop" if len(ends) else plain[request_id].finish_reason)
    assert worst_difference(rig.model, requests(32), stopped) <= 1e-4
    assert 4 < sum(bool(completion.tokens[-1] in (7, 20)) for completion in stopped.values()) < 32


async def test_a_response_ends_with_the_token_that_completes_a_stop_text_and_all_its_text_is_graded(rig: Rig) -> None:
    """Of the responses that it would have had, cut by hand: vLLM cuts text, not tokens, and its text is not used."""
    plain = await collect(rig.sampler, requests(64))
    pairs = [
        (int(a), int(b))
        for c in plain.values()
        for a, b in zip(c.tokens, c.tokens[1:], strict=False)
        if min(a, b) > EOS
    ]
    first, second = max(set(pairs), key=pairs.count)
    stop = f"w{first} w{second} "[:-1]
    stopped = await collect(rig.sampler, requests(64), replace(FULL, stop=(stop, "nothing says this")))
    for request_id, completion in stopped.items():
        tokens = plain[request_id].tokens
        # "w4 w1" is in "w14 w17" too: the texts decide, not the ids.
        texts = [" ".join(f"w{token}" for token in tokens[: count + 1] if token > EOS) for count in range(len(tokens))]
        ends = [count for count, text in enumerate(texts) if stop in text]
        whole = tokens[: ends[0] + 1] if ends else tokens
        assert completion.tokens.tolist() == whole.tolist()
        assert completion.finish_reason == ("stop" if ends else plain[request_id].finish_reason)
        assert completion.text == texts[len(whole) - 1]  # the stop text is in it
        assert len(completion.logprobs) == len(completion.tokens)
    assert sum(stop in completion.text for completion in stopped.values()) >= pairs.count((first, second)) / 24
    assert worst_difference(rig.model, requests(64), stopped) <= 1e-4


async def test_a_special_token_can_be_a_stop_text(rig: Rig) -> None:
    """The padding token is special: decoded text leaves it out, and a stop finds it nevertheless."""
    plain = await collect(rig.sampler, requests(64))
    assert sum(bool((completion.tokens == PAD).any()) for completion in plain.values()) > 4
    stopped = await collect(rig.sampler, requests(64), replace(FULL, stop=("<pad>",)))
    for request_id, completion in stopped.items():
        ends = np.flatnonzero(plain[request_id].tokens == PAD)
        assert len(completion.tokens) == (ends[0] + 1 if len(ends) else len(plain[request_id].tokens))
        assert "<pad>" not in completion.text


async def test_min_p_keeps_only_tokens_of_that_share_of_the_most_probable_one(rig: Rig) -> None:
    prompt, _ = sequence(6, 0, 3)
    wanted = [Request(f"m{i}", "p", prompt, i, i) for i in range(400)]
    every = np.arange(VOCABULARY, dtype=np.int32)
    truth = np.exp([true_logprobs(rig.model, prompt, every[token : token + 1])[0] for token in every])
    for min_p in (0.3, 1.0):
        found = await collect(rig.sampler, wanted, Sampling(min_p=min_p, max_tokens=1))
        seen = {int(completion.tokens[0]) for completion in found.values()}
        assert seen <= set(np.flatnonzero(truth >= min_p * truth.max() * 0.999).tolist())
    assert len({int(c.tokens[0]) for c in (await collect(rig.sampler, wanted, Sampling(max_tokens=1))).values()}) > 5


async def test_greedy_with_a_repetition_penalty_is_the_largest_logit_of_which_those_seen_are_divided(rig: Rig) -> None:
    """By hand (Keskar et al., arXiv 1909.05858): logits of tokens that were there are divided by it, negative ones multiplied."""
    penalty, wanted = 1.5, requests(8)
    found = await collect(rig.sampler, wanted, Sampling(temperature=0.0, max_tokens=12, repetition_penalty=penalty))
    for request in wanted:
        tokens = request.tokens.tolist()
        for token in found[request.id].tokens.tolist():
            with torch.no_grad():
                logits = rig.model(torch.tensor([tokens])).logits[0, -1].double()
            seen = torch.tensor(sorted(set(tokens)))
            logits[seen] = torch.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
            assert logits[token] >= logits.max() - 1e-4
            tokens.append(token)
    plain = await collect(rig.sampler, wanted, Sampling(temperature=0.0, max_tokens=12))
    assert any(plain[key].tokens.tolist() != found[key].tokens.tolist() for key in found)
    assert worst_difference(rig.model, wanted, found) <= 1e-4  # log-probs stay raw


async def test_a_seed_gives_the_same_response_in_any_company(rig: Rig) -> None:
    wanted = requests(32)
    first = await collect(rig.sampler, wanted)
    second = await collect(rig.sampler, wanted[::-1][:12])
    for request_id, completion in second.items():
        np.testing.assert_array_equal(completion.tokens, first[request_id].tokens)
    reseeded = await collect(rig.sampler, [replace(request, seed=request.seed + 1) for request in wanted])
    changed = [not np.array_equal(reseeded[key].tokens, first[key].tokens) for key in first]
    assert sum(changed) >= 24


async def test_requests_that_lose_their_cache_to_others_get_the_responses_that_they_get_alone(rig: Rig) -> None:
    """One block each at first, and waiting requests take every free one: whoever needs its second displaces another."""
    prompt, long = sequence(20, 0, 4)[0], Sampling(max_tokens=60)
    wanted = [Request(f"k{i}", "p", prompt, i, 500 + i) for i in range(64)]
    await rig.sampler.health()  # takes what was told of the tests before
    found = await collect(rig.sampler, wanted, long)
    full = await rig.sampler.health()
    assert full.preempted > 0
    assert full.kv_use > 0.9
    assert sum(len(one.tokens) + len(prompt) > BLOCK for one in found.values()) > 32
    for few in (wanted[0:12], wanted[26:38], wanted[52:64]):  # 12 of at most 3 blocks fit
        for request_id, alone in (await collect(rig.sampler, few, long)).items():
            assert alone.tokens.tolist() == found[request_id].tokens.tolist()
    roomy = await rig.sampler.health()
    assert roomy.preempted == 0
    assert 0.1 < roomy.kv_use <= 12 * 3 / (BLOCKS - 1)
    assert worst_difference(rig.model, wanted, found) <= 1e-4


async def test_samples_are_drawn_from_the_models_distribution(rig: Rig) -> None:
    prompt, _ = sequence(6, 0, 3)
    count = 4000
    wanted = [Request(f"d{i}", "p", prompt, i, i) for i in range(count)]
    found = await collect(rig.sampler, wanted, Sampling(max_tokens=1))
    seen = np.bincount([int(completion.tokens[0]) for completion in found.values()], minlength=VOCABULARY)
    every = np.arange(VOCABULARY, dtype=np.int32)
    truth = np.exp([true_logprobs(rig.model, prompt, every[token : token + 1])[0] for token in every])
    chi_squared = float((((seen - count * truth) ** 2) / (count * truth)).sum())
    assert chi_squared < 85.0  # 41 degrees of freedom: P(> 85) < 1e-4


async def test_scores_are_those_of_a_plain_forward_pass(rig: Rig) -> None:
    given = [sequence(1, 30, 5), sequence(20, 1, 6), sequence(8, CONTEXT - 9, 7)]
    for (prompt, response), scores in zip(given, await rig.sampler.score(given), strict=True):
        np.testing.assert_allclose(scores, true_logprobs(rig.model, prompt, response), atol=1e-4)
    assert await rig.sampler.score([]) == []


async def test_responses_go_on_from_given_tokens_which_count_toward_the_limit(rig: Rig) -> None:
    whole = await collect(rig.sampler, requests(32))
    wanted = [
        replace(request, tokens=np.concatenate([request.tokens, found.tokens[:10]]), given=10)
        for request in requests(32)
        if len((found := whole[request.id]).tokens) > 10
    ]
    more = await collect(rig.sampler, wanted)
    assert worst_difference(rig.model, wanted, more) <= 1e-4
    assert {len(completion.tokens) for completion in more.values() if completion.finish_reason == "length"} == {14}
    prompt, _ = sequence(CONTEXT - 24 + 10, 0, 1)  # as long as a prompt may be, and ten tokens of a response
    [full] = (await collect(rig.sampler, [Request("full", "p", prompt, 0, 7, given=10)])).values()
    assert len(full.tokens) <= 14


async def test_a_prompt_without_room_for_its_answer_is_refused(rig: Rig) -> None:
    with pytest.raises(ModelError, match="prompt of 4 tokens and 93 new ones do not fit into max_model_len 96"):
        await collect(rig.sampler, requests(1), Sampling(max_tokens=93))


async def test_new_weights_are_sampled_from_after_every_update(rig: Rig) -> None:
    wanted = requests(16)
    for _ in range(3):
        before = await collect(rig.sampler, wanted)
        assert await rig.update(0.05) <= 1e-4
        found = await collect(rig.sampler, wanted)
        assert {completion.policy_version for completion in found.values()} == {rig.version}
        assert worst_difference(rig.model, wanted, found) <= 1e-4
        assert worst_difference(rig.model, wanted, before) > 0.05


async def test_the_base_is_not_served_under_other_weights(rig: Rig) -> None:
    with pytest.raises(WeightSyncError, match="other weights were loaded"):
        rig.sampler.serve_base()


@pytest.mark.parametrize("name", ["model.layers.1.mlp.down_proj.weight", "model.norm.weight"])
async def test_a_partial_set_is_refused_and_the_old_version_still_served(rig: Rig, name: str) -> None:
    served = rig.sampler.policy_version
    with pytest.raises(ModelError, match=f"1 missing: {name}"):
        await rig.sampler.load_weights(rig.publish(leave_out=name))
    assert rig.sampler.policy_version == served
    wanted = requests(8)
    assert worst_difference(rig.model, wanted, await collect(rig.sampler, wanted)) <= 1e-4


async def test_a_torn_or_foreign_file_is_refused_and_the_old_version_still_served(rig: Rig) -> None:
    served = rig.sampler.policy_version
    overwritten = rig.publish()
    rig.publish()
    other = rig.publish()  # the third goes where the first was
    with pytest.raises(WeightSyncError, match=f"holds policy version {other.version}, not {overwritten.version}"):
        await rig.sampler.load_weights(overwritten)
    with pytest.raises(WeightSyncError, match="holds policy version"):
        await rig.sampler.load_weights(replace(other, version=other.version + 7))
    file_of(other).unlink()
    with pytest.raises(WeightSyncError, match="cannot read"):
        await rig.sampler.load_weights(other)
    assert rig.sampler.policy_version == served


async def test_weights_that_are_overwritten_while_they_load_are_not_served(rig: Rig) -> None:
    """The learner begins its second next weight update when the file has been checked and is being copied."""
    weight_update = rig.publish()
    loading = asyncio.create_task(rig.sampler.load_weights(weight_update))
    while rig.sampler.policy_version is not None:  # noqa: ASYNC110 - until the file has been checked
        await asyncio.sleep(0)
    with file_of(weight_update).open("r+b") as file:
        file.write(bytes(8))
    with pytest.raises(WeightSyncError, match="failed and must be repeated"):
        await loading
    with pytest.raises(WeightSyncError, match="loaded is None"):
        await rig.sampler.confirm(weight_update)
    weight_update = rig.publish()
    await rig.sampler.load_weights(weight_update)
    assert await rig.sampler.confirm(weight_update) <= 1e-4


async def test_weights_that_score_differently_are_never_served(rig: Rig) -> None:
    weight_update = rig.publish()
    wrong = replace(weight_update.probes[1], logprobs=weight_update.probes[1].logprobs + np.float32(0.01))
    await rig.sampler.load_weights(weight_update)
    with pytest.raises(WeightSyncError, match=r"by 0\.01 nats on average \(0\.01 at most\); rounding explains 0\.0001"):
        await rig.sampler.confirm(replace(weight_update, probes=(wrong,)))
    not_a_number = replace(wrong, logprobs=wrong.logprobs * np.float32("nan"))
    with pytest.raises(WeightSyncError, match="differ"):
        await rig.sampler.confirm(replace(weight_update, probes=(not_a_number,)))
    with pytest.raises(WeightSyncError, match="0 probes"):
        await rig.sampler.confirm(replace(weight_update, probes=()))
    with pytest.raises(WeightSyncError, match="serves no policy version"):
        await collect(rig.sampler, requests(1))
    await rig.sampler.confirm(weight_update)
    assert rig.sampler.policy_version == weight_update.version


async def test_a_transfer_that_breaks_serves_nothing_until_it_is_repeated(rig: Rig) -> None:
    perturb(rig.model, 0.05)
    broken = rig.publish()
    unlinked_in_time = asyncio.create_task(rig.sampler.load_weights(broken))
    while rig.sampler.policy_version is not None:  # noqa: ASYNC110 - until the file has been checked
        await asyncio.sleep(0)
    file_of(broken).unlink()
    with pytest.raises(WeightSyncError, match="failed and must be repeated"):
        await unlinked_in_time
    with pytest.raises(WeightSyncError, match="loaded is None"):
        await rig.sampler.confirm(broken)
    with pytest.raises(WeightSyncError, match="serves no policy version"):
        await collect(rig.sampler, requests(1))
    weight_update = rig.publish()
    await rig.sampler.load_weights(weight_update)
    assert await rig.sampler.confirm(weight_update) <= 1e-4
    wanted = requests(8)
    assert worst_difference(rig.model, wanted, await collect(rig.sampler, wanted)) <= 1e-4


async def test_an_update_waits_for_running_samples_and_refuses_new_ones(rig: Rig) -> None:
    wanted, served = requests(48), rig.sampler.policy_version
    running = asyncio.create_task(collect(rig.sampler, wanted, Sampling(max_tokens=40)))
    await asyncio.sleep(0)
    perturb(rig.model, 0.05)
    weight_update = rig.publish()
    loading = asyncio.create_task(rig.sampler.load_weights(weight_update))
    found = await running
    assert {completion.policy_version for completion in found.values()} == {served}
    await loading
    with pytest.raises(WeightSyncError, match="serves no policy version"):
        await collect(rig.sampler, wanted)
    await rig.sampler.confirm(weight_update)


async def under_way(rig: Rig) -> None:
    """Wait until the engine works on something."""

    async def working() -> bool:
        await rig.sampler.health()  # the engine replies between two of its steps
        return len(rig.sampler._samples) > 0

    await until(working, "the engine to work on something")


async def test_an_iterator_closed_early_leaves_nothing_running(rig: Rig) -> None:
    async with aclosing(rig.sampler.generate(requests(64), Sampling(max_tokens=40))) as stream:
        async for batch in stream:
            assert batch
            break
    assert not rig.sampler._samples
    assert len(await collect(rig.sampler, requests(8))) == 8


@pytest.mark.parametrize("rig", ["tied"], indirect=True)
async def test_a_dead_engine_is_reported_as_lost(rig: Rig) -> None:
    engines = [one for one in psutil.Process().children(recursive=True) if "EngineCore" in " ".join(one.cmdline())]
    running = asyncio.create_task(collect(rig.sampler, requests(64), Sampling(max_tokens=40)))
    await under_way(rig)
    for engine in engines:
        engine.kill()
    with pytest.raises(ActorLost):
        await running
    with pytest.raises(ActorLost, match="engine died"):
        await rig.sampler.health()
    with pytest.raises(ActorLost):
        await collect(rig.sampler, requests(1))


@pytest.mark.parametrize("rig", ["untied"], indirect=True)
async def test_closing_ends_running_calls(rig: Rig) -> None:
    running = asyncio.create_task(collect(rig.sampler, requests(64), Sampling(max_tokens=40)))
    scoring = asyncio.create_task(rig.sampler.score([sequence(8, 40, 1)] * 64))
    await under_way(rig)
    await rig.sampler.close()
    for call in (running, scoring):
        with pytest.raises(ActorLost, match="closed"):
            await call
    assert not rig.runtime.exists()
    with pytest.raises(ActorLost, match="not started, or closed"):
        await rig.sampler.health()
