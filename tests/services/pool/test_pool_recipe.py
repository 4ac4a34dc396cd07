"""The documents' recipe for a pool of one's own texts, run as it stands there."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import rlep
from rlep.core.errors import RecordRefused
from rlep.core.types import Message, Verdict, prompt_id_of
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from tests.services.pool.pool_servers import serving

ROOT = Path(__file__).parents[3]
VERDICT = Verdict("correct", "19", verifier="mine", version="1")


def test_the_recipe_fills_a_pool_and_draws_from_it(
    one_redis: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/how-to/work-with-a-pool.md").read_text()
    (recipe,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(ROOT)
    with serving(one_redis) as server:  # on a free port, and not on the documents'
        monkeypatch.setattr(rlep, "PoolClient", partial(elsewhere, server.address), raising=False)
        exec(compile(recipe, "work-with-a-pool.md", "exec"), {})
    added, drawn = capsys.readouterr().out.splitlines()
    assert added == "AddReport(inserted=1, duplicates=0, refused=(), evicted=0)"
    assert drawn.startswith(f"{{'{prompt_id_of('12+7=', '19')}': (Trajectory(")


def elsewhere(address: str, documented: str) -> rlep.PoolClient:
    """A client at ``address``."""
    from rlep.services.pool.rpc.client import PoolClient

    assert documented == "127.0.0.1:7171"
    return PoolClient(address)


@pytest.mark.parametrize("question", ["12+7=", [Message("user", "12+7=")], [{"role": "user", "content": "12+7="}]])
def test_a_text_becomes_a_trajectory_as_an_import_makes_it(question: str) -> None:
    tokenizer = rlep.load_tokenizer(ROOT / "rlep/quickstart/model")
    made = rlep.trajectory_from_text(tokenizer, question, "19", "12+7=19", VERDICT, source="notes")
    # Ids of the toy tokenizer: digit d is 4 + d, "+" 14, "=" 17, <eos> 1.
    assert made.tokens.tolist() == [5, 6, 14, 11, 17, 5, 13, 1]
    assert made.tokens.dtype == np.int32
    assert (made.prompt_id, made.logprobs, made.finish_reason) == (prompt_id_of("12+7=", "19"), None, "stop")
    assert made.verdict == VERDICT
    assert made.metadata == {"retokenised": "true", "source": "notes"}
    assert (made.provenance.policy_digest, made.provenance.tokenizer_digest) == ("imported", tokenizer.digest)


@pytest.mark.parametrize("text", ["", " \n", "1" * ((4 << 20) + 1)])
def test_a_text_that_an_import_would_refuse_is_refused(text: str) -> None:
    tokenizer = rlep.load_tokenizer(ROOT / "rlep/quickstart/model")
    with pytest.raises(RecordRefused, match="characters"):
        rlep.trajectory_from_text(tokenizer, "12+7=", "19", text, VERDICT)
