"""The memory of one learner rank at its peak, term by term; ``benchmarks/memory.py`` holds it against measured peaks."""

from __future__ import annotations

from dataclasses import dataclass

from rlep.config.schema import Config
from rlep.core.output_head import CHUNK_BYTES, KEPT_BYTES
from rlep.plan.model_shape import LINEAR_LAYERS, ModelShape, width_of


@dataclass(frozen=True, slots=True)
class LearnerPlan:
    """Bytes of one rank in the largest update that the config allows."""

    peak_bytes: int
    """The sum of the six below."""
    state_bytes: int
    """Its share of float32 weights and two Adam moments, 12 bytes a trained parameter, 4 more for kept start-of-step weights,
    and with LoRA of the frozen weights in the compute type."""
    gradient_bytes: int
    """Of earlier micro-batches: its share in float32, or all of it with ``learner.unsharded_gradients``."""
    copy_bytes: int
    """The gathered weights it computes with."""
    reference_bytes: int
    """Share in the compute type and gathered weights of the base model or teacher that a KL needs; 0 without."""
    activation_bytes: int
    """Kept by autograd for the backward pass of one micro-batch, at the moment of the peak."""
    work_bytes: int
    """Logits, gradients that are not reduced yet, and buffers, at the moment of the peak."""
    host_bytes: int
    """Of these in host memory: all with ``gpus = 0``, the shares with ``cpu_offload``, else 0."""
    asleep_bytes: int
    """Host memory of the rank while it sleeps: its shares without gradients. Only ``colocated`` ranks sleep."""


def plan_learner(config: Config, shape: ModelShape) -> LearnerPlan:
    """One rank's memory when it computes on full micro-batches, of which an update has three or more."""
    learner = config.learner
    width = width_of(learner.compute_dtype)
    adapters = shape.adapter_parameters(learner.lora_rank, learner.lora_targets)
    trained = adapters or shape.parameters
    frozen = -(-width * shape.parameters // learner.shards) if adapters else 0
    share = -(-4 * trained // learner.shards)
    kept = share if config.keeps_start_weights else 0
    gradients = 4 * trained if learner.unsharded_gradients else share
    copy = gathered_bytes(config, shape, width, adapters)
    # Without a teacher it is the base model: with LoRA the frozen weights, which are there.
    reference = shape.teacher or (None if adapters else shape)
    reference_share = reference_copy = 0
    if config.loss.kl_coef and reference is not None:
        reference_share = -(-width * reference.parameters // learner.shards)
        reference_copy = gathered_bytes(config, reference, width)
    activations, work = _moment_of_peak(config, shape, width)
    shares = frozen + 3 * share + kept + reference_share
    offloaded = shares + (0 if learner.unsharded_gradients else gradients)  # what is not reduced yet stays on the GPU
    on_host = (offloaded if learner.cpu_offload else 0) if learner.gpus else None
    of_reference = reference_share + reference_copy
    peak = frozen + 3 * share + kept + gradients + copy + of_reference + activations + work
    return LearnerPlan(
        peak_bytes=peak,
        state_bytes=frozen + 3 * share + kept,
        gradient_bytes=gradients,
        copy_bytes=copy,
        reference_bytes=of_reference,
        activation_bytes=activations,
        work_bytes=work,
        host_bytes=peak if on_host is None else on_host,
        asleep_bytes=shares,
    )


def gathered_bytes(config: Config, shape: ModelShape, width: int, adapters: int = 0) -> int:
    """Weights of a model that are whole on a rank at once: all, or embeddings and two layers while one more is gathered."""
    learner = config.learner
    if not learner.reshard_after_forward:
        return (shape.parameters + adapters) * width
    layers = 1 if learner.shards == 1 else 3
    return (shape.embedding_parameters + layers * (shape.layer_parameters + adapters // shape.layers)) * width


def layer_activation_bytes(shape: ModelShape, width: int, *, flash: bool, frozen: bool = False) -> int:
    """Return the bytes that autograd keeps of one layer for one token.

    Norms are computed in float32: each keeps its input and the normalised values, in half precision beside them a rounded
    copy, and the output. Attention keeps queries, keys, values and its output; where it is computed sequence by sequence, keys
    and values of every query head and the output a second time. The feed-forward network keeps four times its width.
    The norms of ``frozen`` weights do not keep the normalised values, which are for their weights' gradient.
    """
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    norms = 2 * shape.hidden * ((3 if width == 4 else 4) - frozen)
    head_norms = (queries + keys) * ((2 if width == 4 else 3) - frozen) * shape.head_norms
    attention = 2 * (queries + keys) if flash else 5 * queries
    return (norms + head_norms + attention + 4 * shape.intermediate) * width


def _moment_of_peak(config: Config, shape: ModelShape, width: int) -> tuple[int, int]:
    """(activations, work) at whichever moment needs most: head, last norm, last layer, or last reduction."""
    learner, ranks = config.learner, config.learner.shards
    tokens = max(learner.micro_batch_tokens, config.context)
    adapters = shape.adapter_parameters(learner.lora_rank, learner.lora_targets) // shape.layers
    layer = tokens * layer_activation_bytes(
        shape, width, flash=bool(learner.gpus) and width == 2, frozen=bool(adapters)
    )
    if adapters:
        layer += tokens * learner.lora_rank * len(LINEAR_LAYERS) * width  # what A hands to B
    if learner.activation_checkpointing:
        kept, again = shape.layers * tokens * shape.hidden * width, layer
    else:
        kept, again = shape.layers * layer, 0
    ends = (
        tokens * (shape.hidden * (3 if width == 4 else 4) + 2 * shape.head_dim) * width
    )  # last norm, predictors, rotations
    matrix = 0 if adapters else shape.vocabulary * shape.hidden  # of the head, whose gradient is computed
    logits = 4 * tokens * shape.vocabulary
    probabilities = min(KEPT_BYTES[learner.device], logits)
    chunk = min(CHUNK_BYTES[learner.device], logits)
    # The head sums its weight's gradient in float32, and rounds it when its chunks are gone; a CPU rounds each product.
    rounded = 0 if width == 4 else matrix * width
    # A chunk's probabilities and a rounded copy; for a gradient of entropies logits too, and both of the chunk before.
    multiplied = chunk * (4 if config.loss.entropy_coef else 1) + (0 if width == 4 else chunk // 2)
    summing = 4 * matrix + (max(multiplied, rounded) if learner.gpus else 3 * chunk + rounded)
    head = (kept + ends, probabilities + max(3 * chunk, summing))
    norm = (kept + ends, probabilities + matrix * width + 16 * tokens * shape.hidden)  # four hidden states in float32
    weights = adapters or shape.layer_parameters
    flowing = tokens * (2 * shape.intermediate + 2 * shape.hidden) * width
    reduction = weights * (width + 4) + -(-4 * weights // ranks)
    backward = (kept + again, probabilities + matrix * width + flowing + reduction)
    root = 0 if adapters else shape.embedding_parameters
    last = (0, probabilities + max(2 * matrix * width, root * (width + 4), 4 * root + -(-4 * root // ranks)))
    teacher = (kept + ends, probabilities + teacher_work(shape.teacher, tokens, width, chunk))
    return max((head, norm, backward, last, teacher), key=sum)


def teacher_work(teacher: ModelShape | None, tokens: int, width: int, chunk: int) -> int:
    """Return the bytes of a teacher's forward pass, which keeps nothing: one layer at its widest, or a ``chunk`` of logits."""
    if teacher is None:
        return 0
    hidden, queries = 4 * teacher.hidden, 3 * teacher.heads * teacher.head_dim
    return max(tokens * (hidden + max(2 * teacher.intermediate, queries)) * width, 3 * chunk)
