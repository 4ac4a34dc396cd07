"""The part of the config tree that says who does the work: generators, verifiers, learners, pool, cluster."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Literal, Self, get_args
from urllib.parse import SplitResult, parse_qs, urlsplit

from pydantic import Field, JsonValue, field_validator, model_validator

from rlep.config.engine_arguments import refusal
from rlep.config.section import Count, Positive, Processes, Seconds, Section, clashes, needs, option
from rlep.core.errors import ConfigError

SHARED_UTILIZATION = 0.9
"""Most GPU memory for a generator that shares its GPU: a sleeping learner keeps its CUDA context and NCCL's buffers there."""


MathProfile = Literal["math", "math-bare", "strict-box", "dapo"]
MATH_PROFILES: tuple[MathProfile, ...] = get_args(MathProfile)
VERIFIER_PROFILES = (*MATH_PROFILES, "exact", "reasoning-gym", "code")
"""Beside a pattern and a function of one's own."""
FUNCTIONS = ("python:", "judge:")
"""Beginnings of the profiles that give scores, and that a response says nothing about where they fail."""
_TERM = r"\s*([\d.eE+-]+\*)?[A-Za-z_][\w.]*:[A-Za-z_]\w*\s*"
"""A function of the user's own, and its weight among several."""
SLOWEST_TOKENS_S = 20.0
"""Tokens a second of one response that is still called alive: a 7B model on a full GPU gives each of its responses about 30."""
SHORTEST_LEASE_S = 600.0
"""Seconds of a lease by default where the longest response takes less."""


class ActorConfig(Section):
    """Resources and deadlines of one role's actors."""

    cpus: float = Field(1.0, ge=0)
    """CPU cores reserved for each actor."""
    gpus: float = Field(0.0, ge=0)
    """GPUs reserved for each actor."""
    label_selector: dict[str, str] = Field(default_factory=dict)
    """Use only nodes with these Ray labels, e.g. ``{"rlep-role" = "generator"}``."""
    start_deadline_s: Seconds = 600
    """Longest start of an actor; then the run ends, and the error says what was missing."""

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """Device that it computes on."""
        return "cuda" if self.gpus else "cpu"


class GeneratorConfig(ActorConfig):
    """vLLM engines, each its own actor."""

    count: Positive = 1
    """Number of generators; may differ from the number of learners."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Compute type; ``auto`` is bfloat16 on GPU and float32 on CPU."""
    tensor_parallel: Positive = 1
    """Workers that share one generator's layers: GPUs, or processes on CPU."""
    memory_utilization: float = Field(0.85, gt=0, le=1)
    """Share of GPU memory for weights and KV cache."""
    kv_cache_gib: float = Field(1.0, gt=0)
    """KV cache of a generator on CPU, GiB, allocated at start."""
    max_sequences: Positive = 256
    """Sequences decoded at once by one generator."""
    max_batched_tokens: Positive = 8192
    """Tokens that one engine step may process."""
    threads: Count = 0
    """CPU threads of the engine, divided among its workers; 0 takes ``cpus`` rounded down, at least 1, or, colocated, those of
    its learner ranks where they are more."""
    eager: bool = True
    """Run without CUDA graphs and compilation; turn off on GPU for speed."""
    engine: dict[str, JsonValue] = Field(default_factory=dict)
    """Other arguments of vLLM's ``AsyncEngineArgs``, e.g. ``attention_backend = "FLASH_ATTN"``; those that rlep sets, or that
    would part generators from the learner, are refused."""
    restarts: Count = 3
    """Times a dead generator is restarted before the run ends."""
    heartbeat_timeout_s: Seconds = 60
    """A generator that answers no heartbeat for this long is considered dead and replaced."""
    transfer: Literal["shared_memory", "gloo", "nccl"] = option(
        "shared_memory",
        requires=[
            needs(f"{role}.gpus", when=("nccl",), because='NCCL is for GPUs; "shared_memory" and "gloo" do without')
            for role in ("generator", "learner")
        ],
        excludes=[
            clashes(
                f"{role}.gpus", when=("gloo",), because='gloo is for CPUs; with GPUs take "nccl", or "shared_memory"'
            )
            for role in ("generator", "learner")
        ],
    )
    """How weights arrive: ``shared_memory`` with learner rank 0 and generators on one machine, or colocated; ``gloo`` (CPUs) or
    ``nccl`` (GPUs) over the network, from wherever the learner is."""
    transfer_deadline_s: Seconds = 120
    """``gloo`` and ``nccl``: longest wait for learner and generators to meet, and longest transfer."""
    lease_s: Seconds | None = None
    """A request without a response for this long is re-dispatched to a free generator; the first response counts. None is
    the time of ``rollout.max_tokens`` at 20 tokens a second, at least 600 s; less than that time is refused."""

    @property
    def compute_dtype(self) -> Literal["float32", "bfloat16", "float16"]:
        """Type that it computes in: ``dtype``, or what ``auto`` means on its device."""
        if self.dtype == "auto":
            return "bfloat16" if self.gpus else "float32"
        return self.dtype

    @field_validator("engine")
    @classmethod
    def _free_arguments(cls, engine: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for name in engine:
            if reason := refusal(name):
                raise ConfigError(f"generator.engine.{name} is refused: {reason}")
        return engine

    @model_validator(mode="after")
    def _one_gpu_a_worker(self) -> Self:
        if self.gpus and self.gpus != self.tensor_parallel:
            raise ConfigError(
                f"generator.tensor_parallel = {self.tensor_parallel} on GPUs needs generator.gpus = {self.tensor_parallel}, "
                f"it is {self.gpus:g}"
            )
        return self

    def lease(self, max_tokens: int) -> float:
        """``lease_s`` for responses of at most ``max_tokens`` tokens, seconds."""
        return self.lease_s or max(SHORTEST_LEASE_S, max_tokens / SLOWEST_TOKENS_S)


class WorkerRoleConfig(ActorConfig):
    """Actors that supervise killable worker processes."""

    cpus: float = Field(0.0, ge=0)
    """CPU cores reserved for each actor; 0 reserves none: it then works beside the generators."""
    count: Positive = 1
    """Number of actors."""
    workers: Processes = 1
    """Worker processes of each actor."""
    cpu_seconds: Seconds = 1.0
    """CPU time one verdict, or one call of an environment, may take before it is ``timeout``."""
    restarts: Count = 3
    """Times a dead actor is restarted before the run ends."""
    heartbeat_timeout_s: Seconds = 60
    """An actor that answers no heartbeat for this long while it works is considered dead and replaced."""
    variables: tuple[str, ...] = ()
    """Environment variables that a function of one's own sees in its worker process beside places, languages and switches, e.g.
    ``["OPENAI_API_KEY"]``: a policy whose text it runs can read them."""


class VerifierConfig(WorkerRoleConfig):
    """Verifier actors; each supervises killable worker processes."""

    profile: str = "math"
    """Text that counts as the answer, and its comparison: ``math``, ``math-bare``, ``strict-box``, ``dapo``, ``exact``,
    ``reasoning-gym``, ``code``, ``regex:PATTERN``, ``python:module:function``, ``judge:FILE``; see
    ``docs/reference/verifier.md``."""
    correct_at: float = Field(1.0, gt=0, le=1)
    """Least score that is ``correct``, where a function or judge gives scores; the reward stays that of the score."""
    answer_after: str | None = Field(None, min_length=1)
    """Text after whose last occurrence a response is graded, e.g. ``</think>``; without it the response is ``no_answer``. None:
    no mark is asked for."""
    network: bool = False
    """A function of one's own may use the network, e.g. a reward server, and threads, and grades several responses at once."""
    concurrency: Positive = 16
    """With ``network`` or a judge: responses that each worker process grades at once."""
    deadline_s: Seconds = 300
    """With ``network`` or a judge: longest wait for a verdict, attempts after errors included. What has not answered by then is
    ``timeout``; a server that could not be reached until then ends the run."""

    @field_validator("profile")
    @classmethod
    def _known_profile(cls, profile: str) -> str:
        if profile not in VERIFIER_PROFILES and not re.fullmatch(
            f"regex:.+|judge:.+|python:{_TERM}(,{_TERM})*", profile
        ):
            known = f"{', '.join(VERIFIER_PROFILES)}, regex:PATTERN, python:module:function and judge:FILE"
            raise ConfigError(f"there is no verifier.profile {profile}: there are {known}")
        return profile

    @model_validator(mode="after")
    def _only_functions_use_the_network(self) -> Self:
        if self.network and not self.profile.startswith(FUNCTIONS):
            raise ConfigError(
                f"verifier.network = true with verifier.profile = {self.profile}: only a python:module:function uses the "
                "network; leave it false"
            )
        return self

    @model_validator(mode="after")
    def _only_functions_see_variables(self) -> Self:
        if self.variables and not self.profile.startswith("python:"):
            raise ConfigError(
                f"verifier.variables = {json.dumps(self.variables)} with verifier.profile = {self.profile}: only a "
                "python:module:function sees variables; leave it empty"
            )
        return self

    @model_validator(mode="after")
    def _only_functions_give_scores(self) -> Self:
        if self.correct_at != 1.0 and not self.profile.startswith(FUNCTIONS):
            raise ConfigError(
                f"verifier.correct_at = {self.correct_at:g} with verifier.profile = {self.profile}: only a "
                "python:module:function or judge:FILE gives scores; leave it at 1"
            )
        return self


class LearnerConfig(ActorConfig):
    """FSDP2 ranks, each its own actor; together they are one learner."""

    ranks: Positive = 1
    """Number of ranks."""
    replicas: Positive = 1
    """Copies of the model, for ranks on several nodes (HSDP): each is sharded over ``ranks / replicas`` ranks of one node, and
    only gradients go between nodes, at more memory per rank."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute type; master weights and reductions are float32. ``auto`` is bfloat16 on GPU, float32 on CPU."""
    micro_batch_tokens: Positive = 16384
    """Most tokens (prompt + response) in one forward pass of one rank; a longer sequence stands alone."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass."""
    reshard_after_forward: bool = False
    """Free each layer's gathered weights between forward and backward: less memory, one more all-gather."""
    unsharded_gradients: bool = False
    """Reduce-scatter gradients once an update, not after every micro-batch: less traffic, but 4 more bytes a parameter on
    every rank, however many ranks there are."""
    cpu_offload: bool = option(
        False, requires=[needs("learner.gpus", because="a learner on CPUs has its weights in host memory already")]
    )
    """Keep parameters and optimizer state in host memory."""
    compile: bool = False
    """``torch.compile`` each layer; the first updates take minutes. On CPUs it needs a C++ compiler (``g++``, or ``CXX``)."""
    lora_rank: Count = 0
    """Train low-rank adapters (LoRA) of this rank on frozen weights, which need no gradients or Adam moments; 0 trains all
    weights. ``update.lr`` is then better ten times as high."""
    lora_alpha: float = Field(32.0, gt=0)
    """An adapter's product is scaled by ``lora_alpha / lora_rank``."""
    lora_targets: tuple[str, ...] = Field(("all-linear",), min_length=1)
    """Names of the linear layers that get adapters, e.g. ``["q_proj", "v_proj"]``; ``all-linear``: each but the output head."""
    threads: Count = 0
    """CPU threads of a rank; 0 takes ``cpus`` rounded down, at least 1, or, colocated, its part of its generator's where that is
    more."""
    collective_timeout_s: Seconds = 300
    """A rank that its peers wait for in a collective for this long fails the group."""
    heartbeat_timeout_s: Seconds = 60
    """A rank that answers no heartbeat for this long while it works is considered dead, and all ranks are restarted."""
    deadline_s: Seconds = 3600
    """Longest wait for one score, update, weight update or checkpoint."""
    restarts: Count = 2
    """Times all ranks are restarted together from the last checkpoint before the run ends."""

    @property
    def compute_dtype(self) -> Literal["float32", "bfloat16"]:
        """Type that it computes in: ``dtype``, or what ``auto`` means on its device."""
        if self.dtype == "auto":
            return "bfloat16" if self.gpus else "float32"
        return self.dtype

    @property
    def lora_scale(self) -> float:
        """Factor of an adapter's product B A."""
        return self.lora_alpha / self.lora_rank

    @property
    def shards(self) -> int:
        """Ranks that one copy of the model is sharded over."""
        return self.ranks // self.replicas

    @model_validator(mode="after")
    def _divided(self) -> Self:
        if self.ranks % self.replicas:
            raise ConfigError(
                f"learner.replicas = {self.replicas} does not divide learner.ranks = {self.ranks}: every copy of the model is "
                "sharded over the same number of ranks"
            )
        if self.gpus not in (0, 1):
            raise ConfigError(
                f"learner.gpus = {self.gpus:g}: a rank computes on one GPU, which NCCL lets no two ranks share; set it to 1, or "
                "0 for CPUs, and learner.ranks to the number of GPUs"
            )
        return self


_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:/@\s]+):\d{1,5}")


def pool_url(text: str) -> str:
    """The URL that ``text`` means: ``HOST:PORT``, as ``rlep pool serve`` prints it, is a pool server's without TLS."""
    return f"grpc://{text}" if _ADDRESS.fullmatch(text) else text


class PoolConfig(Section):
    """The experience pool."""

    name: str = Field("pool", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    """Namespace within the Redis; several runs may share one."""
    directory: Path | None = None
    """Data of the embedded Redis; None keeps it in the run directory. Ignored with ``url``."""
    url: str | None = None
    """An existing Redis, ``redis://host:port/db`` or ``rediss://…``, or a pool server (``rlep pool serve``), ``grpc://host:port``
    without TLS, ``grpcs://…`` with it; ``host:port`` alone is ``grpc://``. None starts an embedded Redis."""
    token_file: Path | None = None
    """Holds the token for a pool server, one line; beyond loopback it needs ``grpcs://``."""
    ca_file: Path | None = None
    """The authority (PEM) that a pool server's certificate is checked against; None takes the public ones."""
    deadline_s: Seconds = Field(30, le=540)
    """Longest wait for one pool operation, retries included."""

    @field_validator("url")
    @classmethod
    def _no_secret(cls, value: str | None) -> str | None:
        if value is None:
            return None
        value = pool_url(value)
        parts = urlsplit(value)
        if parts.scheme not in ("redis", "rediss", "unix", "grpc", "grpcs"):
            raise ValueError(
                "a Redis URL starts with redis://, rediss:// or unix://, that of a pool server with grpc:// or grpcs://"
            )
        if parts.password or "password" in parse_qs(parts.query):
            raise ValueError("holds a password; give it in RLEP_REDIS_PASSWORD or RLEP_REDIS_PASSWORD_FILE instead")
        if parts.scheme.startswith("grpc") and (
            parts.username or parts.path.strip("/") or parts.query or not _port(parts)
        ):
            raise ValueError("the address of a pool server is grpc://HOST:PORT or grpcs://HOST:PORT and nothing else")
        return value

    @model_validator(mode="after")
    def _server_keys(self) -> Self:
        scheme = urlsplit(self.url or "").scheme
        if self.token_file is not None and scheme not in ("grpc", "grpcs"):
            raise ConfigError("pool.token_file is for a pool server: it needs pool.url = grpcs://… or grpc://…")
        if self.ca_file is not None and scheme != "grpcs":
            raise ConfigError("pool.ca_file is for a pool server's certificate: it needs pool.url = grpcs://…")
        return self


def _port(parts: SplitResult) -> int | None:
    """The port, or None where there is none that can be."""
    try:
        return parts.port
    except ValueError:
        return None


class ClusterConfig(Section):
    """The Ray cluster."""

    address: str | None = None
    """``auto`` or ``HOST:6379`` joins the cluster that this machine is part of; None starts a private one here (in a Ray job, or
    with ``RAY_ADDRESS``: joins)."""
    cpus: Positive | None = None
    """Logical CPUs of a private cluster; None takes the machine's."""
    start_deadline_s: Seconds = 180
    """A private cluster whose node has not started within this time ends the run; a busy machine needs more than an idle one."""
    place_deadline_s: Seconds = 60
    """An actor that the cluster cannot place within this time ends the run, naming the missing resource or label."""
    head_deadline_s: Seconds = Field(30, lt=60)
    """Ray's head process that cannot be reached for this long ends the run, after a checkpoint of the last complete step, and the
    process on the driver's own node (raylet) ends it at once. Less than the 60 s after which Ray itself ends the driver."""
    placement: Literal["split", "colocated"] = option(
        "split",
        requires=[
            needs(
                "generator.transfer",
                "shared_memory",
                because="learner and generators never work at the same time, as a broadcast needs",
            )
        ],
        excludes=[
            clashes("update.stream", because="it updates while responses are generated; set it to false"),
            clashes("rollout.max_staleness", because="it generates responses while the learner updates; set it to 0"),
        ],
    )
    """``split``: generators and learners have devices of their own. ``colocated``: each generator uses those of
    ``generator.tensor_parallel`` learner ranks, sharing them by time; see ``docs/how-to/choose-devices.md``."""


def check_times(generator: GeneratorConfig, learner: LearnerConfig, max_tokens: int) -> None:
    """Raise ``ConfigError`` where one wait ends before what it waits for may."""
    answer_s, lease_s = max_tokens / SLOWEST_TOKENS_S, generator.lease(max_tokens)
    if lease_s < answer_s:
        raise ConfigError(
            f"generator.lease_s = {lease_s:g} is less than the {answer_s:g} s that a response of rollout.max_tokens = "
            f"{max_tokens} takes at {SLOWEST_TOKENS_S:g} tokens a second, so it would be generated twice; leave the key out"
        )
    transfer_s, collective_s = generator.transfer_deadline_s, learner.collective_timeout_s
    if generator.transfer != "shared_memory" and learner.ranks > 1 and 2 * transfer_s >= collective_s:
        raise ConfigError(
            f"learner.collective_timeout_s = {collective_s:g} must exceed 2 × generator.transfer_deadline_s = "
            f"{2 * transfer_s:g}: rank 0 may wait so long for generators, and the other ranks wait for it"
        )
    if collective_s >= learner.deadline_s:
        raise ConfigError(
            f"learner.deadline_s = {learner.deadline_s:g} must exceed learner.collective_timeout_s = {collective_s:g}: "
            "otherwise nobody learns which rank the others waited for"
        )


def check_colocated(generator: GeneratorConfig, learner: LearnerConfig) -> None:
    """Raise ``ConfigError`` with the reason where generators and learner cannot share devices by time."""
    width, gpus = generator.tensor_parallel, generator.gpus or learner.gpus
    conflicts = {
        f"learner.ranks = {learner.ranks}": learner.ranks != generator.count * width
        and f"generator.count = {generator.count} with generator.tensor_parallel = {width} has the devices of "
        f"{generator.count * width} ranks",
        f"learner.replicas = {learner.replicas}": learner.replicas > 1
        and learner.shards % width
        and f"a generator of tensor_parallel = {width} has the devices of as many ranks of one replica, which has "
        f"{learner.shards}",
        f"generator.gpus = {generator.gpus:g} and learner.gpus = {learner.gpus:g}": gpus
        and (generator.gpus, learner.gpus) != (width, 1)
        and f"a rank has one GPU, and a generator those of tensor_parallel = {width} ranks; set them to {width} and 1",
        f"generator.memory_utilization = {generator.memory_utilization:g}": gpus
        and generator.memory_utilization > SHARED_UTILIZATION
        and f"a sleeping learner keeps memory on its GPU; set at most {SHARED_UTILIZATION:g}",
        "generator.label_selector": generator.label_selector not in ({}, learner.label_selector)
        and "it differs from learner.label_selector, and both are on the same machine",
    }
    for setting, reason in conflicts.items():
        if reason:
            raise ConfigError(f'cluster.placement = "colocated" with {setting}: {reason}')
