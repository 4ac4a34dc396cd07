"""The profile ``judge:FILE`` against vLLM's own OpenAI server with the toy model: starting, answering, and gone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rlep.config.roles import VerifierConfig
from rlep.core.errors import JudgeAway
from rlep.services.verifier.grader import configured_verifier
from tests.contract.cli_values import MODEL

SEVEN = 11
"""The toy tokenizer's id of the digit 7: the only token that the judge may answer with."""


def test_a_judge_is_waited_for_while_it_starts_and_missed_when_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    file = tmp_path / "judge.toml"
    file.write_text(
        f'url = "http://127.0.0.1:{port}/v1"\nmodel = "toy"\nprompt = "{{response}}"\nscore = "([0-9])"\nrange = [0, 9]\n'
        f"max_tokens = 1\nextra = {{ allowed_token_ids = [{SEVEN}] }}\n"
    )
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--served-model-name", "toy", "--dtype", "float32", "--enforce-eager"]
    settings = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    log = tmp_path / "vllm.log"
    config = VerifierConfig(profile=f"judge:{file}", deadline_s=300, cpu_seconds=30)
    with (
        log.open("wb") as written,
        subprocess.Popen(command, stdout=written, stderr=written, env={**os.environ, **settings}) as server,
    ):
        try:
            with configured_verifier(config) as verifier:
                found = verifier.grade("4", ["4", "2 + 2"], [False] * 2)
        except JudgeAway as away:
            raise AssertionError(log.read_text()[-4000:]) from away
        finally:
            server.terminate()
    assert [(verdict.status, verdict.score) for verdict in found] == [("wrong", 7 / 9)] * 2
    gone = config.model_copy(update={"deadline_s": 1.0})
    with configured_verifier(gone) as verifier, pytest.raises(JudgeAway, match="could not be reached for 1 s"):
        verifier.grade("4", ["4"], [False])
