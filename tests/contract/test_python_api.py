"""What ``from rlep import …`` offers: each name's signature, literally. A change here is a change for other people's code."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rlep
from rlep.methods.replay_method import ReplayMethod

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/python-api.md"
SIGNATURES = {
    "AsyncPoolClient": "(address: 'str', **options: 'Any') -> 'None'",
    "ClientTls": "(ca: 'Path | None' = None, certificate: 'Path | None' = None, key: 'Path | None' = None) -> None",
    "PoolClient": (
        "(address: 'str', *, pool: 'str' = '', token: 'str | None' = None, "
        "tls: 'ClientTls | Path | str | bool | None' = None, deadline: 'float' = 30.0, writer: 'str' = 'main', "
        "writer_epoch: 'int | None' = None, precision: 'Precision' = 'float16', vocabulary: 'int | None' = None, "
        "minimum: 'int | None' = None) -> 'None'"
    ),
    "Provenance": (
        "(policy_digest: 'str', policy_version: 'int', tokenizer_digest: 'str', sampling: 'Sampling', "
        "logprobs_mode: 'str' = 'raw', logprobs_dtype: 'str' = 'float32', "
        "template_digest: 'str' = '', environment_digest: 'str' = '') -> None"
    ),
    "Sampling": (
        "(temperature: 'float' = 1.0, top_p: 'float' = 1.0, top_k: 'int' = 0, max_tokens: 'int' = 3072, "
        "min_p: 'float' = 0.0, repetition_penalty: 'float' = 1.0, stop: 'tuple[str, ...]' = (), "
        "stop_tokens: 'tuple[int, ...]' = ()) -> None"
    ),
    "Trajectory": (
        "(prompt_id: 'str', tokens: 'Int32Array', logprobs: 'Float32Array | None', finish_reason: 'FinishReason', "
        "verdict: 'Verdict', provenance: 'Provenance', created_at: 'float', sample_id: 'str' = '', "
        "metadata: 'Mapping[str, str]' = <factory>, token_versions: 'Int32Array | None' = None, "
        "sampled: 'BoolArray | None' = None, birth: 'int' = -1) -> None"
    ),
    "Verdict": (
        "(status: 'Status', extracted: 'str | None', verifier: 'str', version: 'str', path: 'str' = 'full', "
        "seconds: 'float' = 0.0, score: 'float | None' = None, parts: 'Mapping[str, float]' = <factory>, "
        "reason: 'str' = '') -> None"
    ),
    "group_advantages": (
        "(rewards: 'ArrayLike', groups: 'ArrayLike', *, ddof: 'int' = 1, eps: 'float' = 1e-06, "
        "scale: 'bool' = True) -> 'Float64Array'"
    ),
    "load_tokenizer": "(model_dir: 'Path', model: 'ModelConfig | None' = None) -> 'Tokenizer'",
    "overlong_penalty": "(length: 'int', *, max_length: 'int', buffer: 'int', factor: 'float' = 1.0) -> 'float'",
    "policy_loss": (
        "(logprobs: 'Tensor', old_logprobs: 'Tensor', advantages: 'Tensor', mask: 'Tensor', *, "
        "clip_low: 'float' = 0.2, clip_high: 'float' = 0.28, dual_clip: 'float | None' = 10.0, "
        "aggregation: 'Aggregation' = 'token-mean', token_count: 'int | None' = None, "
        "groups: 'ArrayLike | Tensor | None' = None, fixed_length: 'int | None' = None) -> 'tuple[Tensor, LossShares]'"
    ),
    "prompt_id_of": "(question: 'str', reference: 'str') -> 'str'",
    "trajectory_from_text": (
        "(tokenizer: 'Texts', question: 'str | Sequence[Message | Mapping[str, str]]', reference: 'str', text: 'str', "
        "verdict: 'Verdict', *, source: 'str' = 'text') -> 'Trajectory'"
    ),
}
VERBS = {
    "add": "(self, trajectories: 'Sequence[Trajectory]') -> 'AddReport'",
    "close": "(self) -> 'None'",
    "content_ids": "(self, prompt_id: 'str') -> 'list[str]'",
    "contents": (
        "(self, prompt_ids: 'Sequence[str] | None' = None, *, quarantined: 'bool' = False) -> 'dict[str, list[str]]'"
    ),
    "digest": "(self) -> 'str'",
    "export": "(self, *, after: 'str' = '') -> 'Iterator[Trajectory]'",
    "fetch": "(self, wanted: 'Mapping[str, Sequence[str]]') -> 'Sample'",
    "get": "(self, content_id: 'str', prompt_id: 'str') -> 'Trajectory | None'",
    "lease": "(self, holder: 'str', seconds: 'float') -> 'tuple[str, float] | None'",
    "names": "(self) -> 'list[str]'",
    "open": (
        "(self, *, tokenizer_digest: 'str | None' = None, cap: 'int | None' = None, read_only: 'bool' = False, "
        "holder: 'str | None' = None) -> 'PoolStats'"
    ),
    "prompt_ids": "(self) -> 'list[str]'",
    "remove": (
        "(self, prompt_id: 'str', content_ids: 'Sequence[str]', *, quarantine: 'bool' = False, "
        "quarantined: 'bool' = False) -> 'int'"
    ),
    "sample": (
        "(self, prompt_ids: 'Sequence[str]', count: 'int', *, seed: 'int', step: 'int', minimum: 'int | None' = None) "
        "-> 'Sample'"
    ),
    "seal": "(self) -> 'str'",
    "stats": "(self) -> 'PoolStats'",
}
PAGES = {
    "export_page": "(self, after: 'str') -> 'tuple[list[Trajectory], str | None]'",
    "prompt_page": "(self, limit: 'int') -> 'list[str]'",
    "add_records": "(self, records: 'Sequence[tuple[str, bytes]]', *, quarantined: 'bool' = False) -> 'AddReport'",
    "records": (
        "(self, prompt_ids: 'Sequence[str] | None' = None, *, quarantined: 'bool' = False, after: 'str' = '', "
        "limit: 'int | None' = None) -> 'Iterator[Held]'"
    ),
}
"""Of ``PoolClient`` alone."""


def verbs_of(client: type) -> dict[str, str]:
    """The public methods of a class and their signatures."""
    return {
        name: str(inspect.signature(one))
        for name, one in vars(client).items()
        if inspect.isfunction(one) and not name.startswith("_")
    }


def test_the_package_offers_these_names_and_no_others() -> None:
    assert sorted(rlep.__all__) == sorted(SIGNATURES)
    assert set(SIGNATURES) <= set(dir(rlep))
    with pytest.raises(AttributeError, match="module 'rlep' has no attribute 'Pool'"):
        rlep.Pool  # noqa: B018


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_name_keeps_its_signature(name: str) -> None:
    assert str(inspect.signature(getattr(rlep, name))) == SIGNATURES[name]


def test_the_clients_keep_their_verbs() -> None:
    assert verbs_of(rlep.PoolClient) == VERBS | PAGES
    awaited = VERBS | {"export": VERBS["export"].replace("Iterator", "AsyncIterator")}
    assert verbs_of(rlep.AsyncPoolClient) == awaited


def test_importing_the_package_loads_none_of_its_modules_and_values_load_no_torch() -> None:
    program = (
        "import sys, rlep\n"
        "print(*sorted(name for name in sys.modules if name.startswith('rlep') or name == 'numpy'))\n"
        "from rlep import Provenance, Sampling, Trajectory, Verdict, group_advantages, overlong_penalty, prompt_id_of\n"
        "print(*sorted({'torch', 'ray', 'redis', 'grpc', 'pydantic'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["rlep", ""]


def test_the_table_of_hooks_has_the_signatures_of_a_replay_method() -> None:
    page = PAGE.read_text().partition("## Names")[0]
    stated = dict(re.findall(r"`(\w+)\(([a-z_, ]*)\)`", page))
    hooks = {
        name: method for name, method in vars(ReplayMethod).items() if inspect.isfunction(method) and name[0] != "_"
    }
    assert stated == {name: ", ".join([*inspect.signature(hook).parameters][1:]) for name, hook in hooks.items()}


def test_the_reference_page_lists_the_names() -> None:
    page = PAGE.read_text().partition("## Names")[2]
    listed = {name for name in re.findall(r"`(\w+)`", page) if name != "rlep"}
    assert listed == set(SIGNATURES)
