"""Frozen values that cross processes. Arrays are numpy: token ids int32, log-probs float32, never Python lists."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Literal, NamedTuple, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]
Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Value = TypeVar("Value", bound=np.generic)

FinishReason = Literal["stop", "length"]
"""``stop``: the response ended by itself, at an EOS, a stop token or a stop text, and its tokens include what ended it.
``length``: cut at the token limit."""

Status = Literal["correct", "wrong", "no_answer", "unparsable", "timeout", "out_of_memory", "crashed"]
"""Finding of a verifier. Only ``correct`` may enter the pool; ``timeout`` is paid as ``wrong`` is, and counted apart."""

STATUSES: tuple[Status, ...] = get_args(Status)
"""In the order that stored records number them by."""

UNDECIDED: tuple[Status, ...] = ("timeout", "out_of_memory", "crashed")
"""Statuses that are about the verifier, not about the response."""

LATENCY_BOUNDS: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Upper bounds of the buckets that verdicts are counted in by their time, in seconds; a last one holds the rest."""

ALL = (1 << 31) - 1
"""More responses than a prompt can have: a cap that none reaches, a sample that leaves none out."""


def prompt_id_of(question: str, reference: str) -> str:
    """The content hash (32 hex digits) that names a prompt: NFC-normalised, whitespace-collapsed question + reference."""
    digest = hashlib.blake2b(digest_size=16, person=b"rlep.prompt")
    for text in (question, reference):
        normalised = " ".join(unicodedata.normalize("NFC", text).split()).encode()
        digest.update(f"{len(normalised)}:".encode() + normalised)
    return digest.hexdigest()


def beyond_vocabulary(tokens: Int32Array, vocabulary: int | None) -> str:
    """Name the token ids that are not below ``vocabulary`` (None: unknown); empty where all are."""
    if vocabulary is None or not len(tokens) or (largest := int(tokens.max())) < vocabulary:
        return ""
    return f"token id {largest} ≥ vocabulary {vocabulary}"


def content_id_of(prompt_id: str, tokens: Int32Array) -> str:
    """The content hash (32 hex digits) that names a trajectory: prompt id and response token ids, nothing else."""
    digest = hashlib.blake2b(digest_size=16, person=b"rlep.traj")
    digest.update(prompt_id.encode() + b"/")
    digest.update(np.ascontiguousarray(tokens, dtype="<i4").tobytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message, e.g. ``Message("user", "What is 2 + 2?")``."""

    role: str
    content: str


def question_text(question: str | Sequence[Message | Mapping[str, str]]) -> str:
    """A question as ``prompt_id_of`` takes it: a text as it is, of chat messages the contents, joined by blank lines."""
    if isinstance(question, str):
        return question
    return "\n\n".join(part.content if isinstance(part, Message) else part["content"] for part in question)


class Asked(NamedTuple):
    """The question behind a response, for reward functions that ask for more than its reference."""

    prompt: str = ""
    """The question as text."""
    columns: str = ""
    """Its row in the data, a JSON object; empty where no function may ask for it."""


NOT_ASKED = Asked()


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """A question with its reference answer, ready to be sampled from."""

    id: str
    """``prompt_id_of(question, reference)``, of the question as the data have it."""
    question: str
    """The text shown to the model, before the chat template."""
    reference: str
    """The reference answer, as the verifier reads it."""
    tokens: Int32Array
    """Token ids after the chat template, ``[prompt_length]``."""
    data_source: str = ""
    """The dataset the question comes from, e.g. ``aime2024``; metrics are also kept per data source."""
    opening: str = ""
    """The mark with which the prompt itself opens the response's thinking, e.g. ``<think>``: graded text begins with it."""
    columns: str = ""
    """Its row in the data, a JSON object, where the verifier is a function, or the environment, that may ask for it."""
    told: str = ""
    """The text with which its environment begins, at the end of ``question``; ``id`` is that of the question without it."""

    @property
    def asked(self) -> Asked:
        """The question as a reward function may ask for it."""
        return Asked(self.question, self.columns)


@dataclass(frozen=True, slots=True)
class Sampling:
    """Parameters of a completion's sampling."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """Keep only the k most probable tokens; 0 keeps all."""
    max_tokens: int = 3072
    """Longest response in tokens, EOS included."""
    min_p: float = 0.0
    """Keep only tokens of at least this share of the most probable one's probability; 0 keeps all."""
    repetition_penalty: float = 1.0
    """Above 1, tokens that were there before are less probable."""
    stop: tuple[str, ...] = ()
    """Texts that end a response."""
    stop_tokens: tuple[int, ...] = ()
    """Token ids that end a response, beside the EOS."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One response wanted: sample number ``sample`` of one prompt, drawn with its own seed."""

    id: str
    """Names the sample within its run, e.g. ``train/41/3f2a…/7``; results are matched and deduplicated by it."""
    prompt_id: str
    tokens: Int32Array
    """The prompt's token ids, ``[prompt_length]``."""
    sample: int
    seed: int
    given: int = 0
    """The last so many of ``tokens`` are a part of the response: the episode so far. They count in ``Sampling.max_tokens``."""
    episode: str = ""
    """Id of the episode that it is a turn of; empty: the whole response."""


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """One response, as the generator streams it the moment it is finished."""

    request_id: str
    prompt_id: str
    sample: int
    tokens: Int32Array
    """Response token ids ``[T]``, to the one that ended it when ``finish_reason`` is ``stop``."""
    logprobs: Float32Array
    """Log-probs of those tokens under the sampling policy, ``[T]``: raw (at temperature 1, before top-p) or, with
    ``loss.temperature = "rollout"``, of the distribution that they were drawn from."""
    finish_reason: FinishReason
    policy_version: int
    """The oldest policy version that any of its tokens was sampled under."""
    text: str
    """The decoded response without special tokens, but for marks of thinking."""
    token_versions: Int32Array | None = None
    """Policy version of each token, ``[T]``; None: all are ``policy_version``'s, as without staleness."""
    sampled: BoolArray | None = None
    """``[T]``; False for tokens that an environment wrote, whose log-probs are 0. None: all are the policy's."""
    verdict: Verdict | None = None
    """Its environment's; None: a verifier grades it."""


@dataclass(frozen=True, slots=True)
class Reissued:
    """Counts of the generators' repeated work since the run began."""

    retried: int = 0
    """Requests re-dispatched, because their generator was lost, left, or let their lease end."""
    dropped: int = 0
    """Completions that nobody waited for any more."""

    def __add__(self, other: Reissued) -> Reissued:
        """Both together."""
        return Reissued(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: Reissued) -> Reissued:
        """Return the counts since ``other``."""
        return Reissued(*(mine - its for mine, its in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verifier's judgement of one response."""

    status: Status
    extracted: str | None
    """The answer text that was compared, or None."""
    verifier: str
    """Name of the verifier and its profile, e.g. ``math``."""
    version: str
    """Version of the verifier; stored with every pool record."""
    path: str = "full"
    """Path that decided: ``fast``, ``full`` or ``gate``."""
    seconds: float = 0.0
    """Time it took, in seconds."""
    score: float | None = None
    """Partial credit in [0, 1], before shaping; None where the verifier only says correct or not."""
    parts: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Parts that go with a score, by name: they become metrics, and play no part in the reward."""
    reason: str = ""
    """The test that a program failed, or how the user's function crashed, with its traceback; not stored in a pool."""

    @property
    def credit(self) -> float:
        """``score``; without one 1 for ``correct`` and 0 for every other status."""
        return float(self.status == "correct") if self.score is None else self.score


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origin of a trajectory's tokens: enough to tell if its log-probs may be compared with another policy's."""

    policy_digest: str
    """Names the weights: the run, and the commit of its model on the hub or a hash of the model's directory."""
    policy_version: int
    tokenizer_digest: str
    """Hash of the tokenizer's files; token ids of another tokenizer are refused."""
    sampling: Sampling
    logprobs_mode: str = "raw"
    """``raw``: before temperature and top-p. ``processed``: after them, of the distribution that was drawn from. Others are not
    comparable with a learner's log-probs."""
    logprobs_dtype: str = "float32"
    """The dtype the sampler computed in, e.g. ``float32`` or ``bfloat16``."""
    template_digest: str = ""
    """Names how its prompt was made of the question (``Tokenizer.template_digest``); empty where nobody said."""
    environment_digest: str = ""
    """Names the environment that it was an episode of; empty: of none."""

    def prompted_otherwise(self, template_digest: str) -> bool:
        """Tell whether its prompt was made otherwise than by ``template_digest``; False where either is not known."""
        return bool(self.template_digest and template_digest and self.template_digest != template_digest)


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """A verified response: what a step trains on and what the pool stores."""

    prompt_id: str
    tokens: Int32Array
    """Response token ids ``[T]``, to the one that ended it when ``finish_reason`` is ``stop``."""
    logprobs: Float32Array | None
    """Behaviour log-probs ``[T]``, or None when they were never known (e.g. imported text)."""
    finish_reason: FinishReason
    verdict: Verdict
    provenance: Provenance
    created_at: float
    """Seconds since the epoch."""
    sample_id: str = ""
    """Id of the request that produced it; distinct for every fresh rollout, even where two have the same tokens."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    token_versions: Int32Array | None = None
    """Policy version of each token, ``[T]``; None: all are ``provenance.policy_version``'s. Not stored in a pool."""
    sampled: BoolArray | None = None
    """``[T]``; False for tokens that an environment wrote, whose log-probs are 0. None: all are the policy's."""
    birth: int = -1
    """The step of this run that it comes from, where it is a replay of the run's own; else −1. Not stored in a pool."""

    @property
    def sampled_length(self) -> int:
        """R: tokens that the policy sampled."""
        return len(self.tokens) if self.sampled is None else int(self.sampled.sum())

    @property
    def badly_sampled(self) -> str:
        """What is wrong with ``sampled``, empty where nothing is: it has T entries and ends with True.

        What an environment writes after the policy's last token trains nothing, and is left out.
        """
        if self.sampled is None:
            return ""
        if len(self.sampled) != len(self.tokens):
            return f"has {len(self.tokens)} tokens and says of {len(self.sampled)} whether the policy sampled them"
        return "" if self.sampled[-1] else "ends with a token that its environment wrote"

    def at_sampled(self, values: NDArray[Value]) -> NDArray[Value]:
        """Those of ``values`` ``[T]`` that belong to tokens of the policy, ``[R]``."""
        return values if self.sampled is None else values[self.sampled]

    def over_tokens(self, values: Float32Array) -> Float32Array:
        """``values`` of the policy's tokens ``[R]`` at their places among all, ``[T]``, with 0 elsewhere."""
        if self.sampled is None:
            return values
        spread = np.zeros(len(self.tokens), dtype=np.float32)
        spread[self.sampled] = values
        return spread

    @property
    def content_id(self) -> str:
        """``content_id_of(prompt_id, tokens)``."""
        return content_id_of(self.prompt_id, self.tokens)

    @property
    def correct(self) -> bool:
        """True if the verifier found the answer correct."""
        return self.verdict.status == "correct"


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The G fresh and m ≤ M replayed trajectories of one prompt, made by ``algorithms.mixing.mix`` and nowhere else."""

    prompt: Prompt
    policy_version: int
    fresh: tuple[Trajectory, ...]
    replays: tuple[Trajectory, ...]

    @property
    def members(self) -> tuple[Trajectory, ...]:
        """Fresh ones first, then replays: the order of every per-group array."""
        return self.fresh + self.replays

    @property
    def rescued(self) -> bool:
        """A replay is correct, and no fresh response."""
        return any(member.correct for member in self.replays) and not any(member.correct for member in self.fresh)


@dataclass(frozen=True, slots=True, eq=False)
class SequenceBatch:
    """S sequences (prompt, then response) laid end to end: what the driver sends to the learner.

    Worked example, two sequences of one group, prompts of 2 tokens, responses of 3 and 1:
    ``tokens = [p p a a a | p p b]``, ``offsets = [0, 5, 8]``, ``prompt_lengths = [2, 2]``, R = 4 response tokens.
    Per-token arrays such as log-probs hold only response tokens that the policy sampled, ``[R]``, in the same order: with
    ``sampled = [0 0 1 0 1 | 0 0 1]`` an environment wrote the second of the first response, and R = 3.
    """

    tokens: Int32Array
    """``[N]``"""
    offsets: Int64Array
    """``[S + 1]``"""
    prompt_lengths: Int32Array
    """``[S]``"""
    advantages: Float32Array
    """``[S]``; zeros where only log-probs are wanted."""
    trained: BoolArray
    """``[S]``; False takes a sequence out of the policy's loss, and of its token count unless ``counted`` has it."""
    groups: Int32Array
    """``[S]``; equal numbers belong to one prompt."""
    replayed: BoolArray
    """``[S]``; True for trajectories that came from the pool."""
    old_logprobs: Float32Array | None = None
    """Log-probs of the response tokens under θ0, ``[R]``."""
    behaviour_logprobs: Float32Array | None = None
    """Log-probs of the response tokens under the sampler, ``[R]``; for importance sampling and for checks."""
    regularised: BoolArray | None = None
    """``[S]``; sequences in the loss's KL and entropy terms. None: those in ``trained``."""
    counted: BoolArray | None = None
    """``[S]``; sequences that the mean of the policy's loss counts. None: those in ``trained``."""
    sampled: BoolArray | None = None
    """``[N]``; True for tokens that the policy sampled. None: all that follow the prompts."""

    @property
    def computed(self) -> BoolArray:
        """``[S]``; sequences that are in any term of the loss."""
        return self.trained if self.regularised is None else self.trained | self.regularised

    @property
    def sampled_lengths(self) -> Int64Array:
        """Tokens of each sequence that the policy sampled, ``[S]``: its parts of per-token arrays."""
        if self.sampled is None:
            return np.diff(self.offsets) - self.prompt_lengths.astype(np.int64)
        return np.diff(np.concatenate([[0], np.cumsum(self.sampled)])[self.offsets])

    def __len__(self) -> int:
        return len(self.prompt_lengths)


@dataclass(frozen=True, slots=True)
class UpdateCost:
    """Cost of one optimizer step; all ranks worked on it for the same time."""

    tokens: int = 0
    """Prompt and response tokens of the update."""
    seconds: float = 0.0
    model_flops: float = 0.0
    """Operations the model itself asks for, recomputation not counted."""
    peak_flops: float = 0.0
    """Operations per second that the ranks' devices can do in this type; 0 where that is not known."""
    peak_memory_bytes: int = 0
    """Of rank 0 so far: GPU memory, or resident memory on CPU."""


@dataclass(frozen=True, slots=True)
class UpdateOutcome:
    """One optimizer step, as all ranks saw it but for the cost, which is a rank's own."""

    loss: float
    grad_norm: float
    """Global norm before clipping."""
    learning_rate: float
    skipped: str
    """Why the weights were left alone, or empty."""
    sources: Mapping[str, float]
    """``algorithms.loss_values.source_metrics``: ``fresh/tokens``, ``replay/ratio_max``, …"""
    cost: UpdateCost = UpdateCost()


QUARANTINED, OVER_CAP = "quarantined", "its prompt has"
"""By which the reasons begin that a pool gives for one record, which no other has to share."""


@dataclass(frozen=True, slots=True)
class AddReport:
    """Result of adding a batch of trajectories."""

    inserted: int
    duplicates: int
    """Stored before, by this call or another; the stored one was kept."""
    refused: tuple[tuple[str, str], ...]
    """(content id, reason) of each that the pool does not take."""
    evicted: int = 0
    """Others that had to go because their prompt was over its cap."""
