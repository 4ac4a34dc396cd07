"""Several ranks are one learner: same gradients, same weights, checkpoints of any width, and failure as one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlep.algorithms.packing import take
from tests.engines.learner.learner_cases import (
    padded_gradients,
    padded_logprobs,
    ragged_batch,
    relative_error,
    with_observations,
)
from tests.engines.learner.learner_process import (
    NO_CLIP,
    Command,
    Spec,
    log_of,
    run_ranks,
    same,
    save_batch,
    start_ranks,
)
from tests.small import contents


@pytest.mark.parametrize("setting", [{}, {"learner": {"unsharded_gradients": True}}], ids=["plain", "unsharded"])
def test_two_ranks_with_tiny_micro_batches_give_the_gradient_of_the_padded_reference(
    setting: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    """However its micro-batches are added up, the gradient is within 1e-6 (L2, relative) of one sum in float64."""
    batch = ragged_batch()
    path = save_batch(tmp_path / "batch.npz", batch)
    # 40 tokens: most micro-batches hold two sequences.
    files = [str(tmp_path / name) for name in ("gradients.pt", "weights.pt")]
    commands = [("update", path, 0), ("gradients", files[0]), ("gathered", files[1])]
    settings = {"micro_batch_tokens": 40, "clip_norm": NO_CLIP, **setting}
    report, *_ = run_ranks(tmp_path, model, 2, commands, **settings)
    loss, gradients = padded_gradients(model, batch)
    assert report["loss"] == pytest.approx(loss, rel=1e-6)
    assert relative_error(torch.load(tmp_path / "gradients.pt", weights_only=True), gradients) < 1e-6
    wanted = float(sum(gradient.square().sum() for gradient in gradients.values())) ** 0.5
    assert report["grad_norm"] == pytest.approx(wanted, rel=1e-6)
    trained = batch.trained & ~batch.replayed
    assert report["sources"]["fresh/tokens"] == batch.sampled_lengths[trained].sum()
    weights = torch.load(files[1], weights_only=True)
    rounded = {name: weight.bfloat16() for name, weight in weights["float32"].items()}
    assert same(weights["bfloat16"], rounded)


def test_two_ranks_train_an_episode_where_the_policy_sampled_and_nowhere_else(model: Path, tmp_path: Path) -> None:
    """Scores, loss and gradient are those of the padded reference over sampled tokens."""
    batch = with_observations(ragged_batch())
    assert batch.sampled is not None
    assert int(batch.sampled_lengths.sum()) == int(batch.sampled.sum()) < ragged_batch().sampled_lengths.sum()
    path, file = save_batch(tmp_path / "batch.npz", batch), tmp_path / "gradients.pt"
    commands = [("score", path), ("update", path, 0), ("gradients", str(file))]
    scored, report, _ = run_ranks(tmp_path, model, 2, commands, micro_batch_tokens=40, clip_norm=NO_CLIP)
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64, attn_implementation="eager").eval()
    wanted = torch.cat(padded_logprobs(reference, batch)[0]).detach().numpy()
    np.testing.assert_allclose(scored, wanted, atol=1e-5)
    loss, gradients = padded_gradients(model, batch)
    assert report["loss"] == pytest.approx(loss, rel=1e-6)
    assert relative_error(torch.load(file, weights_only=True), gradients) < 1e-6
    counted = report["sources"]["fresh/tokens"] + report["sources"]["replay/tokens"]
    assert counted == batch.sampled_lengths[batch.trained].sum()


def test_two_ranks_do_the_same_to_the_bit_with_a_mask_that_leaves_nothing_out(model: Path, tmp_path: Path) -> None:
    plain = ragged_batch()
    whole = np.concatenate(
        [
            np.arange(length) >= prompt
            for prompt, length in zip(plain.prompt_lengths, np.diff(plain.offsets), strict=True)
        ]
    )
    found = []
    for name, batch in (("plain", plain), ("masked", replace(plain, sampled=whole))):
        path = save_batch(tmp_path / f"{name}.npz", batch)
        scored, report, checksums = run_ranks(
            tmp_path, model, 2, [("score", path), ("update", path, 0), ("checksums",)], micro_batch_tokens=40
        )
        found.append((scored, report["loss"], report["grad_norm"], report["sources"], checksums))
    assert found[0] == found[1]


def test_a_rank_without_sequences_changes_nothing_and_holds_nobody_up(model: Path, tmp_path: Path) -> None:
    batch = take(ragged_batch(), [5])
    path = save_batch(tmp_path / "batch.npz", batch)
    commands = [("score", path), ("update", path, 0), ("gradients", str(tmp_path / "gradients.pt"))]
    scored, report, _ = run_ranks(tmp_path, model, 3, commands, clip_norm=NO_CLIP)
    assert len(scored) == batch.sampled_lengths.sum()
    loss, gradients = padded_gradients(model, batch)
    assert report["loss"] == pytest.approx(loss, rel=1e-6)
    assert relative_error(torch.load(tmp_path / "gradients.pt", weights_only=True), gradients) < 1e-6


def test_a_killed_run_goes_on_to_the_bit_and_other_widths_go_on_within_rounding(model: Path, tmp_path: Path) -> None:
    paths = [save_batch(tmp_path / f"batch-{seed}.npz", ragged_batch(seed=seed)) for seed in range(4)]
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    rest = [("random",), ("update", paths[2], 2), ("update", paths[3], 3), ("score", paths[0])]
    # The state of the save is what is written, though the ranks train on before they ask for it.
    begun = [("update", paths[0], 0), ("update", paths[1], 1), ("save", str(checkpoint))]
    undisturbed = run_ranks(tmp_path, model, 2, [*begun, *rest, ("written",)])[:-1]
    resumed = run_ranks(tmp_path, model, 2, [("load", str(checkpoint)), *rest])
    assert resumed[1:] == undisturbed[3:]
    for world_size in (1, 4):
        other = run_ranks(tmp_path, model, world_size, [("load", str(checkpoint)), *rest])
        np.testing.assert_allclose(other[-1], undisturbed[-1], atol=1e-4)
        assert other[2]["grad_norm"] == pytest.approx(undisturbed[4]["grad_norm"], rel=1e-5)


@pytest.mark.parametrize("ranks", [2, 4], ids=["2x1", "2x2"])
def test_two_replicas_are_the_learner_that_as_many_plain_shards_are(ranks: int, model: Path, tmp_path: Path) -> None:
    # A replica adds up its micro-batches before it exchanges them: other sums of the same terms, rounded in float32.
    path = save_batch(tmp_path / "batch.npz", ragged_batch())

    def run(name: str, world_size: int, *first: Command, replicas: int = 1) -> list[Any]:
        commands = [*first, ("checksums",), ("gradients", str(tmp_path / f"{name}.pt")), ("score", path)]
        commands += [("save", str(tmp_path / name)), ("written",)]
        return run_ranks(
            tmp_path, model, world_size, commands, clip_norm=NO_CLIP, replicas=replicas, micro_batch_tokens=40
        )

    def gradients(name: str) -> dict[str, torch.Tensor]:
        loaded: dict[str, torch.Tensor] = torch.load(tmp_path / f"{name}.pt", weights_only=True)
        return loaded

    flat = run("flat", ranks, ("update", path, 0))
    mesh = run("mesh", ranks, ("update", path, 0), replicas=2)
    assert relative_error(gradients("mesh"), gradients("flat")) <= 1e-6
    assert mesh[0]["loss"] == flat[0]["loss"]
    assert mesh[0]["grad_norm"] == pytest.approx(flat[0]["grad_norm"], rel=1e-6)
    np.testing.assert_allclose(mesh[3], flat[3], atol=1e-4)
    # What one mesh has saved another goes on from, to the bit.
    narrow = run("narrow", 1, ("load", str(tmp_path / "mesh")))
    wide = run("wide", ranks, ("load", str(tmp_path / "narrow")), replicas=2)
    assert narrow[1] == wide[1] == mesh[1]
    for name in ("narrow", "wide"):
        assert same(gradients(name), gradients("mesh"))
        assert contents(tmp_path / name / "model") == contents(tmp_path / "mesh" / "model")


def test_a_dead_rank_fails_its_peer_at_once(model: Path, tmp_path: Path) -> None:
    path = save_batch(tmp_path / "batch.npz", ragged_batch())
    commands = [("score", path), ("die", 1), ("update", path, 0)]
    spec = Spec(str(model), 2, f"file://{tmp_path}/meeting", commands, str(tmp_path / "results.json"))
    survivor, dead = start_ranks(tmp_path, spec)
    dead.join()
    survivor.join()
    errors = log_of(tmp_path, 0).read_text()
    assert (survivor.exitcode, dead.exitcode) == (1, 17)
    assert "Connection closed by peer" in errors or "Connection reset by peer" in errors
    assert "Timed out" not in errors


def test_a_silent_rank_fails_its_peer_after_the_collective_timeout(model: Path, tmp_path: Path) -> None:
    path = save_batch(tmp_path / "batch.npz", ragged_batch())
    commands = [("score", path), ("sleep", 1, 600), ("update", path, 0)]
    spec = Spec(
        str(model), 2, f"file://{tmp_path}/meeting", commands, str(tmp_path / "results.json"), collective_timeout_s=5.0
    )
    waiting, silent = start_ranks(tmp_path, spec)
    waiting.join()
    assert waiting.exitcode == 1
    assert "Timed out waiting" in log_of(tmp_path, 0).read_text()
    assert silent.is_alive()
    silent.kill()
    silent.join()
