"""Checks of a configuration and of what it names: model, questions, references, verifier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from rlep.check.finding import Finding
from rlep.check.inputs import Subject, fingerprint
from rlep.check.prompts_shown import prompt_notes, unknown_text
from rlep.config.schema import Config
from rlep.core.errors import ConfigError, DataError, ModelError, RlepError
from rlep.core.plural import counted, named
from rlep.data.prompts import NAMED_CHARACTERS, PromptOrder, PromptSet
from rlep.driver.model_shape import linear_layers, read_shape, same_weights, undivided
from rlep.driver.replays import choose_method
from rlep.engines.families import CPU_HEAD_SIZES, check_family
from rlep.engines.tokenizer import context_length
from rlep.services.verifier import answers
from rlep.services.verifier.grader import build_verifier
from rlep.services.verifier.verifier import PROFILES


def options(subject: Subject) -> Iterator[Finding]:
    """Choose the replay method, which checks its options; sections that contradict each other are refused when read."""
    config = subject.config
    choose_method(config)
    steps = counted(config.run.steps, "step")
    yield Finding("configuration", "ok", f"{config.run.name}: {steps} of {counted(config.rollout.prompts, 'question')}")


def model(subject: Subject) -> Iterator[Finding]:
    """Check the model's directory, its tokenizer, and that engines and learner take its shape."""
    config = subject.config
    path, _ = config.model.path, subject.tokenizer
    check_context(config)
    check_divided(config)
    fingerprint(path)
    check_heads(subject)
    check_output_head(config)
    if subject.learns:
        check_family(path)
        check_lora_targets(config)
    yield Finding("model", "ok", str(path))


def training_data(subject: Subject) -> Iterator[Finding]:
    """Check the training questions, and that there are enough for a step."""
    prompts = subject.train
    if prompts is None:
        return
    config = subject.config
    if subject.learns:
        check_watched(config, prompts)
        PromptOrder(len(prompts), config.rollout.prompts, config.run.seed)
    yield Finding("training data", "ok", str(prompts.report))


def evaluation_data(subject: Subject) -> Iterator[Finding]:
    """Check the held-out questions."""
    prompts = subject.evaluation
    if prompts is None:
        yield Finding("evaluation data", "skipped", "data.evaluation is empty")
        return
    yield Finding("evaluation data", "ok", str(prompts.report))


def verifier(subject: Subject) -> Iterator[Finding]:
    """Check that the verifier serves, and that it can grade against every reference.

    A math profile grades against a text without an answer, too: every response to it is wrong. Others refuse.
    """
    config = subject.config
    profile = config.verifier.profile
    references = _references(subject)
    faults: dict[str, str] = {}
    if profile in PROFILES:
        faults = _faults(references, answers.reference_fault) if profile != "dapo" else {}
    else:
        try:
            with build_verifier(profile, correct_at=config.verifier.correct_at) as built:
                built.check()
                faults = _faults(references, built.reference_fault)
        except ConfigError as error:
            raise ConfigError(f"verifier.profile = {profile}: {error}") from None
    if not faults:
        graded = f", which can grade against {counted(len(references), 'reference')}" if references else ""
        yield Finding("verifier", "ok", f"{profile}{graded}")
        return
    reference, reason = next(iter(faults.items()))
    detail = (
        f"{len(faults):,} of {counted(len(references), 'reference')} cannot be graded against with verifier.profile = "
        f"{profile}, e.g. {reference[:NAMED_CHARACTERS]!r}: {reason}"
    )
    if profile not in PROFILES:
        raise DataError(detail)
    yield Finding("references", "wrong", detail, "every response to these questions would be wrong")


def input_notes(subject: Subject) -> list[str]:
    """Return what a user should know of the questions: rows without use, unknown text, thinking, data that is not held out."""
    sets = [found for found in (subject.train, subject.evaluation) if found is not None]
    lines = [line for found in sets for line in (*found.report.lines(), *unknown_text(found, subject.tokenizer))]
    lines += prompt_notes(subject.tokenizer, sets, chat_template=subject.config.model.chat_template)
    train, held_out = subject.train, subject.evaluation
    known = {prompt.id for prompt in train.prompts} if train else set()
    if held_out and (both := sum(prompt.id in known for prompt in held_out.prompts)):
        lines.append(f"{both} of {counted(len(held_out), 'evaluation question')} are training questions too")
    return lines


def check_context(config: Config) -> None:
    """Raise ``ModelError`` where the longest prompt and the longest response do not fit the model together."""
    prompt, response = config.data.max_prompt_tokens, config.rollout.max_tokens
    context = context_length(config.model.path)
    if prompt + response > context:
        raise ModelError(
            f"data.max_prompt_tokens = {prompt} and rollout.max_tokens = {response} need a context of "
            f"{prompt + response} tokens, {config.model.path} has {context}; lower one of them"
        )


def check_divided(config: Config) -> None:
    """Raise ``ConfigError`` where the workers of a generator cannot share the model's heads."""
    workers, model = config.generator.tensor_parallel, config.model.path
    if workers > 1 and (part := undivided(read_shape(model), workers)):
        raise ConfigError(f"generator.tensor_parallel = {workers}: {model} has {part}, which it must divide")


def check_heads(subject: Subject) -> None:
    """Raise ``ModelError`` where the model's attention heads have a size that vLLM does not compute on CPUs."""
    if subject.config.generator.gpus or subject.shape is None:
        return
    size = subject.shape.head_dim
    if size not in CPU_HEAD_SIZES:
        raise ModelError(
            f"{subject.config.model.path} has attention heads of {size} values; vLLM on CPUs computes those of "
            f"{', '.join(map(str, CPU_HEAD_SIZES))}: take another model, or GPUs"
        )


def check_output_head(config: Config) -> None:
    """Raise ``ModelError`` where config.json ties the output head to the embedding, and the files hold another head."""
    model = config.model.path
    try:
        tied = read_shape(model).tied
    except ModelError:  # vLLM serves more families than have such a shape
        return
    if tied and not same_weights(model, "lm_head.weight", "model.embed_tokens.weight"):
        raise ModelError(
            f"{model}: config.json says tie_word_embeddings = true, and the safetensors hold an lm_head.weight that is not the "
            "embedding: set it to false there to use that head, or remove the weight"
        )


def check_lora_targets(config: Config) -> None:
    """Raise ``ConfigError`` where an adapter is asked for on a layer that the model does not have."""
    if not config.learner.lora_rank:
        return
    present = linear_layers(config.model.path)
    unknown = sorted({*config.learner.lora_targets} - {*present, "all-linear"})
    if present and unknown:
        raise ConfigError(
            f"learner.lora_targets: no linear layer of {config.model.path} is called {', '.join(unknown)}; "
            f"there are {', '.join(present)}, and all-linear for all of them"
        )


def check_watched(config: Config, prompts: PromptSet) -> None:
    """Raise ``ConfigError`` where ``rollouts.watch`` names a prompt that is not among ``prompts``."""
    known = {prompt.id for prompt in prompts.prompts}
    unknown = [watched for watched in config.rollouts.watch if watched not in known]
    if unknown:
        ids = named([repr(prompt_id[:NAMED_CHARACTERS]) for prompt_id in unknown])
        raise ConfigError(
            f"rollouts.watch: no training question has the id {ids}; ids are in the column prompt_id of rollouts/ "
            "and on the pages of `rlep console`"
        )


def _references(subject: Subject) -> list[str]:
    """Return each reference once; none of questions that cannot be read, of which their own check tells."""
    references: dict[str, None] = {}
    for evaluated in (False, True):
        with suppress(RlepError):
            prompts = subject.evaluation if evaluated else subject.train
            references |= dict.fromkeys(prompt.reference for prompt in prompts.prompts) if prompts else {}
    return list(references)


def _faults(references: Sequence[str], fault_of: Callable[[str], str]) -> dict[str, str]:
    """Map each reference that cannot be graded against to the reason."""
    return {reference: fault for reference in references if (fault := fault_of(reference))}
