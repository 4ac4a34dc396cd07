"""A generator that sleeps is asked for nothing that a sleep at level 2 discards, by the installed sources of vLLM.

vLLM makes its sampler's state with the model, in the memory that such a sleep frees. What lies on the host survives.
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from rlep.config.settings import load_config
from rlep.core.errors import ConfigError

ROOT = Path(__file__).parents[2]
REQUESTS = ROOT / "rlep" / "engines" / "sampler" / "requests.py"
STATES = {
    "SamplingStates": ("states", "host"),
    "PromptLogprobsWorker": ("prompt_logprob", "host"),
    "PenaltiesState": ("penalties", "device"),
    "LogitBiasState": ("logit_bias", "device"),
    "BadWordsState": ("bad_words", "device"),
    "LogprobTokenIdsState": ("logprob", "device"),
    "ThinkingBudgetState": ("thinking_budget", "device"),
    "TraceReplayState": ("trace_replay", "device"),
}
"""Class of vLLM -> its module, and where it keeps what requests ask for."""
OF_NO_STATE = {
    "max_tokens",
    "detokenize",
    "flat_logprobs",
    "output_kind",
    "stop",
    "stop_token_ids",
    "skip_special_tokens",
}
"""Parameters that the sampler never sees."""
REFUSED = {"repetition_penalty"}
"""Those that a configuration refuses where generators sleep on GPUs."""


def tree_of(module: str) -> ast.Module:
    """A module of vLLM's sampler, not imported."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return ast.parse(Path(spec.origin).parent.joinpath("v1", "worker", "gpu", "sample", f"{module}.py").read_text())


def constructor_of(module: str, name: str) -> ast.FunctionDef:
    (owner,) = [node for node in tree_of(module).body if isinstance(node, ast.ClassDef) and node.name == name]
    return next(node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")


def called(tree: ast.AST) -> set[str]:
    """Functions and classes that are called in a tree."""
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def asked_of(module: str) -> set[str]:
    """Parameters of a request that a module reads."""
    return {
        node.attr
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "sampling_params"
    }


def given() -> set[str]:
    """Parameters that rlep's requests give."""
    tree = ast.parse(REQUESTS.read_text())
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "SamplingParams"
    ]
    assert len(calls) == 2  # one samples, one scores
    assert not any(call.args for call in calls)
    return {str(keyword.arg) for call in calls for keyword in call.keywords}


def test_requests_ask_for_nothing_that_a_sleep_discards_but_what_is_refused_then() -> None:
    lost = set().union(*(asked_of(module) for module, place in STATES.values() if place == "device"))
    assert lost >= {"repetition_penalty", "bad_words_token_ids", "logit_bias", "allowed_token_ids", "min_tokens"}
    assert given() & lost == REFUSED


@pytest.mark.parametrize("section", ["rollout", "evaluation"])
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_a_sleep_discards_is_refused_where_generators_sleep(section: str, name: str) -> None:
    asked, shared = f"{section}.{name}=1.2", ["cluster.placement=colocated", "learner.gpus=1"]
    with pytest.raises(
        ConfigError, match=rf'^{section}\.{name} = 1\.2 with cluster\.placement = "colocated" on GPUs: .*"split"$'
    ):
        load_config([], [asked, *shared, "generator.gpus=1"])
    load_config([], [asked, "learner.gpus=1", "generator.gpus=1"])
    load_config([], [asked, "cluster.placement=colocated"])  # a CPU frees nothing
    load_config([], [f"collection.{name}=1.2", *shared, "generator.gpus=1"])  # no learner, no sleep


def test_all_that_requests_ask_for_is_kept_on_the_host() -> None:
    kept = set().union(*(asked_of(module) for module, place in STATES.values() if place == "host"))
    assert given() - OF_NO_STATE - REFUSED <= kept
    assert {"temperature", "top_p", "top_k", "min_p", "seed", "logprobs", "prompt_logprobs"} <= given()


@pytest.mark.parametrize(("name", "module", "place"), [(name, *where) for name, where in STATES.items()])
def test_each_state_is_where_it_is_said_to_be(name: str, module: str, place: str) -> None:
    made = called(constructor_of(module, name))
    on_device = "StagedWriteTensor" in made or any(call.startswith("torch.") for call in made)
    assert on_device == (place == "device"), made


def test_the_sampler_has_no_other_state() -> None:
    made = called(constructor_of("sampler", "Sampler"))
    assert {call for call in made if call.endswith(("State", "States"))} == STATES.keys() - {"PromptLogprobsWorker"}
