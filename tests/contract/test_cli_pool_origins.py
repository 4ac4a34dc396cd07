"""What a pool's responses have to be for a run to replay them: said before any actor starts."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from typer.testing import CliRunner

from rlep import Verdict, trajectory_from_text
from rlep.check.inputs import Subject
from rlep.check.pool_checks import check_replays
from rlep.check.suite import findings
from rlep.cli import app
from rlep.config.settings import load_config
from rlep.core.errors import PoolError
from rlep.core.types import Sampling
from rlep.data.prompts import PromptSet
from rlep.engines.tokenizer import Tokenizer
from rlep.services.pool.rpc.places import served
from rlep.services.pool.values import PoolPlace
from tests.contract.cli_values import ROWS, arguments


def filled(overrides: list[str], pool: Path, *origins: Mapping[str, Any]) -> tuple[list[str], Tokenizer, PromptSet]:
    """Overrides with a pool of one response to each question, of these origins; and the run's tokenizer and questions."""
    place = [*overrides, "replay.count=2", "replay.minimum=1", f'pool.directory="{pool}"']
    subject = Subject(load_config([], place))
    verdict, made = Verdict("correct", "2", verifier="mine", version="1"), []
    for row, origin in zip(ROWS, origins, strict=False):
        question = [{"role": "user", "content": row["problem"]}]
        stored = trajectory_from_text(subject.tokenizer, question, row["answer"], row["answer"], verdict)
        known = np.full(len(stored.tokens), -0.5, np.float32)
        made.append(replace(stored, logprobs=known, provenance=replace(stored.provenance, **origin)))
    with served(PoolPlace(None, pool, "pool")) as opened_pool:
        assert opened_pool.add(made).inserted == len(origins)
    assert subject.train is not None
    return place, subject.tokenizer, subject.train


def test_a_pool_of_responses_to_prompts_made_otherwise_is_refused_or_by_option_taken(
    overrides: list[str], tmp_path: Path
) -> None:
    """Responses to three questions: one sampled after this run's prompts, one after others, one that does not say."""
    own = Subject(load_config([], overrides)).tokenizer.template_digest
    origins = [{"template_digest": digest} for digest in (own, "another", "")]
    place, tokenizer, prompts = filled(overrides, tmp_path / "pool", *origins)
    with pytest.raises(
        PoolError,
        match=r"^pool pool: 1 of 3 responses looked at answer prompts made by template another, this run\'s are by "
        rf'{own}: set model\.template, .*, or replay\.other_template = "render"',
    ):
        check_replays(load_config([], place), tokenizer, prompts)
    taken = load_config([], [*place, "replay.other_template=render"])
    assert check_replays(taken, tokenizer, prompts) == "pool: responses to 3 of 4 training questions"


def test_a_pool_of_another_environment_is_refused_before_the_start(overrides: list[str], tmp_path: Path) -> None:
    """One episode of three responses, for a run without an environment and for one with another class."""
    origins = [{"environment_digest": digest} for digest in ("", "games:Game:1a2b", "")]
    place, tokenizer, prompts = filled(overrides, tmp_path / "pool", *origins)
    with pytest.raises(PoolError, match=r"1 of 3 .* episodes of environment games:Game:1a2b, this run's are respon"):
        check_replays(load_config([], place), tokenizer, prompts)
    factory = "rlep.environments.guess_number:GuessNumber"
    other = [f"environment.factory={factory}", "environment.observation_tokens=4", "replay.other_template=render"]
    with pytest.raises(PoolError, match=rf"2 of 3 .* without an environment, this run's are episodes of .* {factory}:"):
        check_replays(load_config([], [*place, *other]), tokenizer, prompts)


NUCLEUS: dict[str, Any] = {"sampling": Sampling(temperature=0.7, top_p=0.95)}


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (NUCLEUS, "sampled at temperature 0.7, not 1, sampled with top_p 0.95, not 1"),
        ({"logprobs_dtype": "bfloat16"}, "computed in bfloat16"),
    ],
)
@pytest.mark.parametrize(
    ("option", "key", "remedy"),
    [
        ("replay.old_logprobs=behaviour", 'replay.old_logprobs = "behaviour"', 'set replay.old_logprobs = "recompute"'),
        ('replay.correction={weight="token", cap=2}', "replay.correction", "leave replay.correction out"),
    ],
)
def test_stored_logprobs_that_cannot_be_compared_are_refused_before_the_start(
    config: str,
    overrides: list[str],
    tmp_path: Path,
    other: dict[str, Any],
    reason: str,
    option: str,
    key: str,
    remedy: str,
) -> None:
    """Responses to three questions, two of them as ``rlep collect`` samples by default or in bfloat16; replayed from step 2."""
    plain: dict[str, Any] = {"sampling": Sampling(), "logprobs_mode": "raw", "logprobs_dtype": "float32"}
    place, tokenizer, prompts = filled(overrides, tmp_path / "pool", plain | other, plain, plain | other)
    place = [*place, "run.steps=3", "replay.start_step=2"]
    stored = [*place, option]
    said = (
        f"pool pool: 2 of 3 responses looked at have no log-probs that {key} can compare with the learner's ({reason}): collect "
        f'anew with generator.dtype = "float32", collection.temperature = 1 and collection.top_p = 1, or {remedy}'
    )
    assert [found.detail for found in findings(load_config([], stored)) if found.what == "pool"] == [said]
    result = CliRunner().invoke(app, arguments("train", config, stored))
    assert not ray.is_initialized()
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (1, f"error: {said}")
    counts = "pool: responses to 3 of 4 training questions"
    assert check_replays(load_config([], place), tokenizer, prompts) == counts
    assert (
        check_replays(load_config([], stored), tokenizer, prompts, supervised=True) == counts
    )  # its loss has no ratio


def test_stored_logprobs_of_the_run_s_own_kind_are_taken(overrides: list[str], tmp_path: Path) -> None:
    """Two of the model, one of the distribution at temperature 0.7 that a run at 0.7 computes in its loss too."""
    plain: dict[str, Any] = {"sampling": Sampling(), "logprobs_mode": "raw", "logprobs_dtype": "float32"}
    warm = plain | {"sampling": Sampling(temperature=0.7), "logprobs_mode": "processed"}
    for number, (origin, more) in enumerate(
        [(plain, []), (warm, ["rollout.temperature=0.7", "loss.temperature=rollout"])]
    ):
        place, tokenizer, prompts = filled([*overrides, *more], tmp_path / f"pool-{number}", origin, origin)
        taken = load_config([], [*place, "replay.old_logprobs=behaviour"])
        assert check_replays(taken, tokenizer, prompts) == "pool: responses to 2 of 4 training questions"
