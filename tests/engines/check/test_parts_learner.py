"""Each check of the learner sees a part that is broken; ``tests/e2e/test_check.py`` sees them pass."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlep.check.finding import CheckSkipped
from rlep.check.parts.learner_checks import attention, gradients, longest_rows, make_rank, network, state
from rlep.check.parts.memory_check import memory
from rlep.check.parts.outcome import CheckFailed, call_all_apart
from rlep.check.parts.synthetic import LAYERS, Rig, build_model
from rlep.config.section import CorrectionConfig
from rlep.core.errors import ModelError
from rlep.core.types import SequenceBatch, UpdateOutcome
from rlep.engines.learner.attention import packed_attention
from rlep.engines.learner.rank import LearnerRank
from tests.engines.check.conftest import MODEL


def louder(*given: Any, **settings: Any) -> tuple[Tensor, None]:
    """Attention whose values are a thousandth too large."""
    return packed_attention(*given, **settings)[0] * 1.001, None


def across(module: torch.nn.Module, *given: Tensor, **settings: Any) -> tuple[Tensor, None]:
    """Attention that takes the row for one sequence."""
    query, key, value, _ = given
    found = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return found.transpose(1, 2), None


@pytest.mark.parametrize("broken", [louder, across])
def test_attention(rig: Rig, broken: Any) -> None:
    with pytest.raises(CheckFailed, match=r"output differs from float32 by|gradient of the .* differs from float32 by"):
        attention(rig, broken)


class KeepsToItself(LearnerRank):
    """A rank whose part of the update counts twice where there are two."""

    def update(self, batch: SequenceBatch, *, rollout: int) -> UpdateOutcome:
        """Half of the sequences are left out on more than one rank."""
        if self._world > 1:
            batch = dataclasses.replace(batch, trained=np.arange(len(batch)) % 4 < 2)
        return super().update(batch, rollout=rollout)


def test_gradients(rig: Rig) -> None:
    with pytest.raises(CheckFailed, match=r"from several on 2 rank\(s\): they differ by"):
        gradients(rig, KeepsToItself)


@pytest.mark.parametrize(
    "loss",
    [
        {"correction": CorrectionConfig(weight="token", cap=2.0)},
        {"reward_coef": 0.0, "kl_coef": 1.0, "teacher": Path("org/strong")},
    ],
)
def test_settings_that_need_more_than_the_parts_have_do_not_fail_them(rig: Rig, loss: dict[str, Any]) -> None:
    """As of machines/2x8x80gb.toml, and of distillation."""
    gradients(dataclasses.replace(rig, config=rig.config.with_values(loss=loss)))


class WakesDifferent(LearnerRank):
    """A rank that loses a little in its sleep."""

    def wake(self) -> None:
        """One weight more than before."""
        super().wake()
        with torch.no_grad():
            self._trained[0][1].to_local().add_(1e-3)


class LoadsAnother(LearnerRank):
    """A rank that stays with the base model."""

    def load(self, directory: Path) -> None:
        """Nothing."""


@pytest.mark.parametrize(("broken", "what"), [(WakesDifferent, "sleep and wake"), (LoadsAnother, "save and load")])
def test_state(rig: Rig, broken: type[LearnerRank], what: str) -> None:
    with pytest.raises(CheckFailed, match=f"{what} changed 1?[0-9]+ of 110 log-probs"):
        state(rig, broken)


class TooLarge(LearnerRank):
    """A rank without room for an update."""

    def update(self, batch: SequenceBatch, *, rollout: int) -> UpdateOutcome:
        """Raise what torch raises."""
        raise torch.OutOfMemoryError("tried to allocate 20 GiB")


def test_longest_rows(rig: Rig) -> None:
    with pytest.raises(CheckFailed, match=r"two layers do not fit with rows of .* tokens: tried to allocate 20 GiB"):
        longest_rows(rig, TooLarge)


class Hoards(LearnerRank):
    """A rank that takes 200 MiB more in an update than it needs."""

    def update(self, batch: SequenceBatch, *, rollout: int) -> UpdateOutcome:
        """Keep them to the end."""
        self._hoard = torch.ones(200 * 2**18)
        return super().update(batch, rollout=rollout)


def test_memory(rig: Rig) -> None:
    with pytest.raises(CheckFailed, match=r"MiB planned for two layers, ratio \d\.\d+, allowed 1\.25"):
        call_all_apart(memory, [(rig, Hoards)], deadline_s=240.0)


def alone(_: Tensor) -> None:
    """An all-reduce that reaches nobody."""


def test_network(rig: Rig) -> None:
    with pytest.raises(CheckFailed, match=r"an all-reduce of 1 and 2 gave [12] and [12], not 3"):
        network(rig, alone)


def test_one_gpu_has_no_network(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    learner = rig.config.learner.model_copy(update={"gpus": 1.0})
    with pytest.raises(CheckSkipped, match="there is one GPU"):
        network(dataclasses.replace(rig, config=rig.config.model_copy(update={"learner": learner})))


class Looks(LearnerRank):
    """A rank that says what allocator it would have."""

    def __init__(self, *_: object, **__: object) -> None:
        raise CheckFailed(os.environ["PYTORCH_ALLOC_CONF"])


def test_a_rank_has_the_allocator_of_a_run_and_an_engine_beside_it_has_not(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    with pytest.raises(CheckFailed, match="expandable_segments:True,pinned_max_cached_size_mb:1"):
        make_rank(rig, Looks, "looks")
    assert "PYTORCH_ALLOC_CONF" not in os.environ


def test_the_model_has_two_layers_of_the_configured_shape(rig: Rig) -> None:
    from rlep.plan.model_shape import read_shape

    assert read_shape(rig.model) == dataclasses.replace(read_shape(MODEL), layers=LAYERS)


def test_a_model_without_a_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"with the model's shape from .*, which lacks config\.json or the tokenizer"):
        build_model(tmp_path, tmp_path / "model")
