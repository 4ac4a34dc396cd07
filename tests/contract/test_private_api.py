"""Names that torch, vLLM, Ray, redis-py and TRL do not document: each is in the installed sources, and only adapters use them.

Sources are read, not imported, so that the test is fast and its failure names the symbol that moved and the file that uses it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "rlep"
LIBRARIES = ("torch", "vllm", "ray", "redis", "trl")
PRIVATE_PACKAGES = ("vllm.v1",)  # without an underscore, and yet not for others to use
NAMED_TUPLE = {"_asdict", "_fields", "_field_defaults", "_make", "_replace"}
"""Documented, in spite of the underscore."""


@dataclass(frozen=True)
class Symbol:
    """One name in one module, and of a function the parameters that we pass, in their order."""

    module: str
    name: str
    """``Class.attribute`` for members, which may be set in any method; ``function.name`` for a variable of a function."""
    parameters: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.module}.{self.name}({', '.join(self.parameters)})"


def symbols(module: str, *names: str) -> tuple[Symbol, ...]:
    """Names of one module without parameters."""
    return tuple(Symbol(module, name) for name in names)


TRL_TRAINER = (
    *(
        "num_generations",
        "num_generations_eval",
        "eos_token_ids",
        "chat_template_kwargs",
        "reward_funcs",
        "rollout_func",
    ),
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_length", "tools"),
    *(
        "environment_factories",
        "use_vllm",
        "vllm_mode",
        "vllm_generation",
        "vllm_importance_sampling_correction",
        "vllm_importance_sampling_clip_max",
    ),
    *("chat_template", "_environment_pool", "_standalone_tools", "_tokenizer"),
)
"""Attributes of ``GRPOTrainer`` without an underscore that no page of TRL's names."""
_C10D, _RAY, _GRPO = "torch._C._distributed_c10d", "ray._private", "trl.trainer.grpo_trainer"
SYMBOLS: dict[str, tuple[Symbol, ...]] = {
    "rlep/engines/torch_private.py": (
        Symbol("torch.nn.modules.module", "Module.register_parameter", ("name", "param")),
        Symbol(_C10D, "ProcessGroupGloo.__init__", ("store", "rank", "size", "timeout")),
    ),
    "rlep/engines/sampler/vllm_private.py": (
        *symbols("vllm.v1.engine.exceptions", "EngineDeadError", "EngineGenerateError"),
        *symbols("vllm.v1.engine.async_llm", "AsyncLLM.engine_core", "AsyncLLM.logger_manager"),
        *symbols("vllm.v1.engine.async_llm", "AsyncLLM.output_processor"),
        *symbols("vllm.v1.engine.output_processor", "OutputProcessor.tokenizer"),
        *symbols("vllm.v1.metrics.loggers", "StatLoggerManager.stat_loggers"),
        *symbols("vllm.v1.metrics.loggers", "AggregateStatLoggerBase.record_admission_rejection"),
        Symbol(
            "vllm.v1.metrics.loggers",
            "StatLoggerBase.record",
            ("scheduler_stats", "iteration_stats", "mm_cache_stats", "engine_idx"),
        ),
        *symbols("vllm.v1.metrics.stats", "SchedulerStats.kv_cache_usage", "IterationStats.num_preempted_reqs"),
        *symbols("vllm.v1.engine.core_client", "MPClient.resources", "BackgroundResources.ctx"),
        *symbols("vllm.v1.worker.gpu_worker", "Worker._weight_update_active", "Worker.weight_transfer_engine"),
        Symbol("vllm.model_executor.layers.utils", "dispatch_cpu_unquantized_gemm", ("layer", "remove_weight")),
        *symbols("vllm.engine.arg_utils", "EngineArgs.additional_config", "AsyncEngineArgs"),
        *symbols("vllm.model_executor.layers.linear", "QKVParallelLinear.num_kv_head_replicas"),
    ),
    "rlep/actors/ray_private.py": (
        Symbol("ray._private.utils", "get_num_cpus", ("override_docker_cpu_warning",)),
        *symbols("ray._private.worker", "init._temp_dir", "print_to_stdstream"),
        Symbol("ray._private.services", "canonicalize_bootstrap_address", ("addr",)),
        Symbol("ray._private.services", "get_node", ("gcs_address", "node_id")),
        Symbol("ray._private.grpc_utils", "init_grpc_channel", ("address",)),
        Symbol("ray.core.generated.gcs_service_pb2_grpc", "NodeInfoGcsServiceStub"),
        Symbol("ray._private.ray_constants", "ENABLE_RAY_CLUSTER"),
        Symbol("ray._private.parameter", "RayParams.dashboard_agent_listen_port"),
    ),
    "rlep/integrations/trl.py": (
        Symbol(_GRPO, "GRPOTrainer._tokenize_prompts", ("self", "prompts")),
        Symbol(
            _GRPO,
            "GRPOTrainer._generate_single_turn",
            ("self", "prompt_ids", "images", "multimodal_fields", "num_generations"),
        ),
        Symbol(
            _GRPO,
            "GRPOTrainer._tool_call_loop",
            (
                *("self", "prompts", "prompt_ids", "completion_ids", "completions"),
                *("logprobs", "images", "multimodal_fields"),
            ),
        ),
        Symbol(_GRPO, "GRPOTrainer._get_train_sampler", ("self",)),
        *symbols(_GRPO, *(f"GRPOTrainer.{name}" for name in TRL_TRAINER)),
    ),
    "rlep/integrations/trl_log.py": (*symbols(_GRPO, "GRPOTrainer._metrics"),),
    "rlep/integrations/trl_settings.py": (
        *symbols("trl.generation.vllm_generation", "VLLMGeneration.llm", "VLLMGeneration.vllm_client"),
        Symbol("trl.generation.vllm_client", "VLLMClient.get_server_info"),
        *symbols("vllm.entrypoints.llm", "LLM.model_config"),
    ),
    "rlep/integrations/conversation.py": (
        Symbol("trl.chat_template_utils", "parse_response", ("tokenizer", "ids", "prefix", "tools")),
    ),
}
"""Adapter -> what it uses. A base class's members are listed where they are defined."""


def source_of(module: str) -> Path | None:
    """A module's file, stub files included; only its top package is looked up, and nothing imported."""
    top, *rest = module.split(".")
    spec = find_spec(top)
    for place in (spec and spec.submodule_search_locations) or ():
        path = Path(place).joinpath(*rest)
        for found in (*(path.with_name(path.name + end) for end in (".py", ".pyi")), path / "__init__.py"):
            if found.is_file():
                return found
    return None


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those of a body, also under ``if``, ``try`` and ``with``."""
    for node in body:
        yield node
        for field in ("body", "orelse", "finalbody"):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from statements(getattr(node, field, []))


Owner = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def defined(owner: Owner, name: str) -> ast.AST | None:
    """What defines ``name`` in a module, class or function: function, class, assignment, or ``self.name = …`` in a method."""
    for node in statements(owner.body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return node
    if isinstance(owner, ast.ClassDef):
        for part in ast.walk(owner):
            if isinstance(part, ast.Attribute) and part.attr == name and isinstance(part.ctx, ast.Store):
                return part
    return None


def missing(symbol: Symbol) -> str | None:
    """What is wrong with a symbol in the installed sources, or None."""
    path = source_of(symbol.module)
    if path is None:
        return f"there is no module {symbol.module}"
    found: ast.AST | None = ast.parse(path.read_text())
    for name in symbol.name.split("."):
        if not isinstance(found, Owner):
            return f"{name} of {symbol.name} is not in a class or function of {path}"
        found = defined(found, name)
        if found is None:
            return f"{path} does not define {name} of {symbol.name}"
    if symbol.parameters:
        if not isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
            return f"{symbol.name} in {path} is no function"
        arguments = found.args
        has = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        if [name for name in has if name in symbol.parameters] != list(symbol.parameters):
            return f"{symbol.name} in {path} takes ({', '.join(has)})"
    return None


def dotted(node: ast.expr) -> list[str]:
    """``a.b.c`` as its parts; empty where it does not begin with a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def is_private(name: str) -> bool:
    """Whether a dotted name is one of the libraries' and not for others."""
    parts = name.split(".")
    if parts[0] not in LIBRARIES:
        return False
    return any(map(is_hidden, parts)) or any(f"{name}.".startswith(f"{package}.") for package in PRIVATE_PACKAGES)


def is_hidden(name: str) -> bool:
    """Whether a name says by an underscore that it is not for others."""
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLE


def aliases(tree: ast.Module) -> dict[str, str]:
    """Local name -> what it was imported as."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def own_names(tree: ast.Module) -> set[str]:
    """Underscore names that the file itself defines: functions, classes, variables, attributes, parameters."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and dotted(node)[:1] == ["self"]:
            names.add(node.attr)
    return names


class PrivateUses(ast.NodeVisitor):
    """Collects every private name of a library that a file uses, and every name of a library that it replaces."""

    def __init__(self, tree: ast.Module) -> None:
        self.found: set[tuple[int, str]] = set()
        self._imported, self._own = aliases(tree), own_names(tree)
        self._uses_library = any(name.split(".")[0] in LIBRARIES for name in self._imported.values())
        self.visit(tree)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._note(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self._note(node, f"{node.module}.{alias.name}")

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and node.value.replace(".", "").isidentifier():  # imported by its name
            self._note(node, node.value)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self._full(node)
        self._note(node, name)
        if isinstance(node.ctx, ast.Store) and name.split(".")[0] in LIBRARIES:
            self.found.add((node.lineno, f"{name} is replaced"))
        if not name and dotted(node)[:-1] not in (["self"], ["cls"]):
            self._note_hidden(node, node.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        function = self._full(node.func)
        if function.split(".")[0] in LIBRARIES:
            given = [keyword.arg for keyword in node.keywords if is_hidden(keyword.arg or "")]
            self.found |= {(node.lineno, f"{function}({name}=)") for name in given}
        if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr", "setattr", "delattr"):
            for asked in node.args[1:2]:
                if isinstance(asked, ast.Constant) and isinstance(asked.value, str):
                    self._note_hidden(node, asked.value)
        self.generic_visit(node)

    def _full(self, node: ast.expr) -> str:
        """What an expression is called where it was imported from; empty where it was not imported."""
        parts = dotted(node)
        return ".".join([self._imported[parts[0]], *parts[1:]]) if parts and parts[0] in self._imported else ""

    def _note(self, node: ast.stmt | ast.expr, name: str) -> None:
        if is_private(name):
            self.found.add((node.lineno, name))

    def _note_hidden(self, node: ast.expr, name: str) -> None:
        """An attribute of some value, which may be a library's unless the file defines the name."""
        if self._uses_library and is_hidden(name) and name not in self._own:
            self.found.add((node.lineno, name))


def private_uses(source: str) -> list[str]:
    """As ``line: name``."""
    return [f"{line}: {name}" for line, name in sorted(PrivateUses(ast.parse(source)).found)]


@pytest.mark.parametrize(
    ("adapter", "symbol"), [(adapter, symbol) for adapter, symbols in SYMBOLS.items() for symbol in symbols], ids=str
)
def test_a_private_symbol_is_where_its_adapter_expects_it(adapter: str, symbol: Symbol) -> None:
    assert (ROOT / adapter).is_file()
    problem = missing(symbol)
    assert problem is None, f"{adapter} uses {symbol}: {problem}"


def test_private_names_are_used_in_adapters_only() -> None:
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(ROOT).as_posix()
        if relative not in SYMBOLS and not relative.endswith(("_pb2.py", "_pb2_grpc.py")):
            found[relative] = private_uses(path.read_text())
    assert {file: uses for file, uses in found.items() if uses} == {}


@pytest.mark.parametrize(
    ("symbol", "problem"),
    [
        (Symbol("torch.nn.no_such_module", "x"), "there is no module torch.nn.no_such_module"),
        (Symbol("no_such_library.part", "x"), "there is no module no_such_library.part"),
        (Symbol("torch.nn.modules.module", "Module.no_such_name"), "does not define no_such_name of Module"),
        (
            Symbol("torch.nn.modules.module", "Module.register_parameter", ("param", "name")),
            "takes (self, name, param)",
        ),
        (Symbol("torch.nn.modules.module", "Module.register_parameter", ("value",)), "takes (self, name, param)"),
        (Symbol("torch.nn.modules.module", "Module", ("name",)), "Module in"),
        (Symbol("torch.nn.modules.module", "Module.register_parameter.inner"), "does not define inner"),
    ],
)
def test_a_symbol_that_moved_is_noticed(symbol: Symbol, problem: str) -> None:
    assert problem in (missing(symbol) or "")


def test_attributes_in_methods_and_conditions_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_library.py").write_text(
        "if True:\n    class A:\n        flag: bool\n        def __init__(self): self.set = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "some_library").mkdir()
    (tmp_path / "some_library" / "part.py").write_text((tmp_path / "some_library.py").read_text())
    (tmp_path / "some_library" / "__init__.py").write_text("raise RuntimeError('imported')")
    found = [one for one in ("flag", "set", "other") if not missing(Symbol("some_library.part", f"A.{one}"))]
    assert found == ["flag", "set"]


@pytest.mark.parametrize(
    ("source", "uses"),
    [
        ("import torch._dynamo", ["1: torch._dynamo"]),
        ("from torch.distributed.tensor._utils import f", ["1: torch.distributed.tensor._utils.f"]),
        ("from vllm.v1.engine import X", ["1: vllm.v1.engine.X"]),
        ("import importlib\nimportlib.import_module('vllm.v1.engine')", ["2: vllm.v1.engine"]),
        ("import torch\ntorch._foreach_mul_(x, 2)", ["2: torch._foreach_mul_"]),
        ("from torch import ops as o\no.aten._softmax(x)", ["2: torch.ops.aten._softmax"]),
        ("import torch\ngetattr(torch.ops.aten, '_softmax')", ["2: _softmax"]),
        ("import torch\ndef f(options):\n    options._timeout = 1", ["3: _timeout"]),
        ("import ray\nray.init(_temp_dir='x')", ["2: ray.init(_temp_dir=)"]),
        ("from torch import nn\nnn.Module.f = g", ["2: torch.nn.Module.f is replaced"]),
        ("def f():\n    from ray import _private", ["2: ray._private"]),
    ],
)
def test_a_private_name_is_found(source: str, uses: list[str]) -> None:
    assert private_uses(source) == uses


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.nn.Linear(2, 2).weight.grad = None\ntorch.__version__",
        "import torch\nclass A:\n    def f(self, other):\n        self._x = torch.zeros(1)\n        return other._x",
        "import os\nimport torch\nos._exit(1)",
        "import redis\nrow._replace(a=1)",
        "from vllm import AsyncLLMEngine\nfrom vllm.v2 import x",
        "class A:\n    pass\nb._x",
        "import torch\nf(_y=1)\n'torch is _here_'",
    ],
)
def test_public_and_own_names_are_not(source: str) -> None:
    assert private_uses(source) == []
