"""Checks of a configuration and of what it names: model, questions, references, verifier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rlep.check.environment_starts import tool_names
from rlep.check.finding import Finding
from rlep.check.inputs import Subject, fingerprint
from rlep.check.prompts_shown import prompt_notes, unknown_text
from rlep.config.roles import MATH_PROFILES, VerifierConfig
from rlep.config.schema import Config, ModelConfig
from rlep.core.errors import ConfigError, DataError, ModelError, RlepError
from rlep.core.model_config import read_config
from rlep.core.plural import counted, named
from rlep.core.scores import OutOfRange
from rlep.core.types import Prompt
from rlep.data.prompts import NAMED_CHARACTERS, PromptSet, order_of
from rlep.driver.collect import admission_of
from rlep.driver.crashes import LEAST_QUESTIONS, is_function, undecided_text
from rlep.driver.replays import choose_method, takes_data_in_order
from rlep.engines.families import CPU_HEAD_SIZES, check_family, check_unquantised, ties_head
from rlep.engines.tokenizer import context_length, load_tokenizer, vocabulary_size
from rlep.hub.resolve import check_index, model_directory, model_text
from rlep.plan.model_shape import has_weight, linear_layers, read_shape, same_weights, undivided
from rlep.services.verifier.base import BaseVerifier
from rlep.services.verifier.grader import configured_verifier
from rlep.services.verifier.reward_call import UnknownName

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
TIED = "tie_word_embeddings"
TRY_S = 30.0
"""Longest wait for a verdict."""
EXAMPLES = 3
"""References that are named."""


def options(subject: Subject) -> Iterator[Finding]:
    """Choose the replay method, which checks its options; sections that contradict each other are refused when read."""
    config = subject.config
    choose_method(config)
    if subject.command == "collect":
        admission_of(config)
    steps = counted(config.run.steps, "step")
    yield Finding("configuration", "ok", f"{config.run.name}: {steps} of {counted(config.rollout.prompts, 'question')}")


def model(subject: Subject) -> Iterator[Finding]:
    """Check the model's directory, its tokenizer, and that engines and learner take its shape."""
    config = subject.config
    path, _ = subject.model, subject.tokenizer
    check_stated(subject)
    fingerprint(path)
    check_index(path, [file.name for file in path.iterdir()])
    check_output_head(path)
    check_stops(subject)
    if subject.learns:
        check_lora_targets(config)
    yield Finding("model", "ok", model_text(config.model))


def teacher(subject: Subject) -> Iterator[Finding]:
    """Check that the learner can load the teacher, and that it reads the policy's tokens and sequences as the policy does."""
    if (path := subject.teacher) is None:
        return
    config, taught = subject.config, subject.config.models[1]
    tokenizer, _ = load_tokenizer(path), fingerprint(path)
    check_stated_teacher(config, path)
    check_output_head(path)
    if tokenizer.digest != subject.tokenizer.digest:
        raise ModelError(
            f"loss.teacher = {taught.path} has tokenizer {tokenizer.digest}, {config.model.path} has "
            f"{subject.tokenizer.digest}: its token ids or its EOS are others; take a teacher of the same tokenizer"
        )
    rows, own = vocabulary_size(path), vocabulary_size(subject.model)
    if rows is not None and own is not None and rows < own:
        raise ModelError(
            f"loss.teacher = {taught.path} knows {rows:,} token ids, {config.model.path} may sample {own:,}: take a teacher that "
            "knows them all"
        )
    yield Finding("teacher", "ok", model_text(taught))


def environment(subject: Subject) -> Iterator[Finding]:
    """Check that the environment of episodes can be used, and that the chat template keeps their turns."""
    config = subject.config.environment
    if config.factory is None or subject.dialogue is None:
        return
    names = tool_names(subject.tokenizer.tools)
    acts = f"tools {named(names)}" if names else "step"
    yield Finding("environment", "ok", f"{config.factory} with {acts}: at most {counted(config.turns, 'turn')}")


def training_data(subject: Subject) -> Iterator[Finding]:
    """Check the training questions, and that there are enough for a step."""
    prompts = subject.train
    if prompts is None:
        return
    config = subject.config
    if subject.learns:
        check_watched(config, prompts)
        order = order_of(config, prompts.report)
        for part in order.sets:
            share = (
                f"{counted(part.count, 'question')}, {float(part.high - part.low):g} of {order.per_step} prompts a step"
            )
            yield Finding("training set", "ok", f"{part.name}: {share}, an epoch of {counted(part.epoch, 'step')}")
    yield Finding("training data", "ok", str(prompts.report))


def evaluation_data(subject: Subject) -> Iterator[Finding]:
    """Check the held-out questions."""
    prompts = subject.evaluation
    if prompts is None:
        yield Finding("evaluation data", "skipped", "data.evaluation is empty")
        return
    yield Finding("evaluation data", "ok", str(prompts.report))


def verifier(subject: Subject) -> Iterator[Finding]:
    """Check that the verifier passes its self-test, and that it would pay every reference given as the answer.

    A reference of a math profile that says nothing is only told of: every response to it is wrong. Others refuse it.
    """
    profile, references = (
        subject.config.verifier.profile,
        list({prompt.reference: None for prompt in _prompts(subject)}),
    )
    try:
        with configured_verifier(_impatient(subject.config.verifier)) as built:
            built.check()
            faults = {reference: fault for reference in references if (fault := built.reference_fault(reference))}
            unpaid = _unpaid(built, [reference for reference in references if reference not in faults])
            undecided = _undecided(built, _prompts(subject)) if is_function(profile) else ""
    except ConfigError as error:
        raise ConfigError(f"verifier.profile = {profile}: {error}") from None
    if faults and profile not in MATH_PROFILES:
        raise DataError(_told(profile, faults, len(references)))
    if undecided:
        remedy = "try it with `rlep grade`; training ends where a step's responses have no verdict at all"
        yield Finding("verifier", "wrong", f"the references as responses: {undecided}", remedy)
    elif unpaid := faults | unpaid:
        remedy = "no response to these questions is ever correct: mend the references, or leave the rows out"
        yield Finding("references", "wrong", _told(profile, unpaid, len(references)), remedy)
    else:
        graded = f", which can grade against {counted(len(references), 'reference')}" if references else ""
        yield Finding("verifier", "ok", f"{profile}{graded}")


def _impatient(config: VerifierConfig) -> VerifierConfig:
    """Wait no longer for a server before a run than for one that is away for a moment."""
    return config.model_copy(update={"deadline_s": min(config.deadline_s, TRY_S)})


def _unpaid(verifier: BaseVerifier, references: Sequence[str]) -> dict[str, str]:
    """Map each reference that is not paid for although it is given as the answer itself, in any known form, to the reason."""
    forms = {reference: verifier.stated(reference) for reference in references}
    unpaid = _unpaid_pairs(verifier, [(reference, texts[0]) for reference, texts in forms.items() if texts])
    others = _unpaid_pairs(verifier, [(reference, text) for reference in unpaid for text in forms[reference][1:]])
    return {
        reference: f"given as the answer itself, it is {status}"
        for reference, status in unpaid.items()
        if reference in others or len(forms[reference]) == 1
    }


def _unpaid_pairs(verifier: BaseVerifier, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Map each reference whose response is not correct to the response's status."""
    verdicts = verifier.grade_pairs([(reference, verifier.respond(answer), False) for reference, answer in pairs])
    graded = zip(pairs, verdicts, strict=True)
    return {reference: verdict.status for (reference, _), verdict in graded if verdict.status != "correct"}


def _undecided(verifier: BaseVerifier, prompts: Sequence[Prompt]) -> str:
    """Say so if the user's function decides on none of the first references, given as responses; else an empty string.

    Raises ``ConfigError`` where it asks for what no question has, or gives a score out of its range.
    """
    first: dict[str, Prompt] = {}
    for prompt in prompts:
        first.setdefault(prompt.reference, prompt)
    shown = list(first.values())[:LEAST_QUESTIONS]
    verdicts = verifier.grade_pairs(
        [(prompt.reference, verifier.respond(prompt.reference), False, prompt.asked) for prompt in shown]
    )
    reasons = [verdict.reason.partition("\n")[0] for verdict in verdicts]
    if wrong := next(
        (reason for reason in reasons if reason.startswith((UnknownName.__name__, OutOfRange.__name__))), ""
    ):
        raise ConfigError(wrong.partition(": ")[2])
    counts = Counter[str](verdict.status for verdict in verdicts)
    return undecided_text(verifier.name, counts, next(iter(reasons), ""))


def _told(profile: str, faults: Mapping[str, str], references: int) -> str:
    examples: dict[str, list[str]] = {}
    for reference, reason in list(faults.items())[:EXAMPLES]:
        examples.setdefault(reason, []).append(repr(reference[:NAMED_CHARACTERS]))
    return (
        f"{len(faults):,} of {counted(references, 'reference')} cannot be graded against with verifier.profile = {profile}, "
        "e.g. " + "; ".join(f"{', '.join(shown)}: {reason}" for reason, shown in examples.items())
    )


def input_notes(subject: Subject) -> list[str]:
    """Return what a user should know of the questions: rows without use, unknown text, thinking, data that is not held out."""
    sets = [found for found in (subject.train, subject.evaluation) if found is not None]
    lines = [line for found in sets for line in (*found.report.lines(), *unknown_text(found, subject.tokenizer))]
    lines += prompt_notes(subject.tokenizer, sets, subject.config.verifier.answer_after)
    train, held_out = subject.train, subject.evaluation
    known = {prompt.id for prompt in train.prompts} if train else set()
    if held_out and (both := sum(prompt.id in known for prompt in held_out.prompts)):
        lines.append(f"{both} of {counted(len(held_out), 'evaluation question')} are training questions too")
    if train and subject.learns:
        lines += replay_notes(subject.config, train)
    return lines


def check_stated(subject: Subject) -> None:
    """Refuse a model by its ``config.json`` alone. Raises ``ModelError`` or ``ConfigError``."""
    config, path = subject.config, subject.model
    check_unquantised(path)
    if subject.learns:
        check_family(path, config.context)
    check_context(config, config.model)
    check_divided(config)
    check_heads(subject)


def check_stated_teacher(config: Config, path: Path) -> None:
    """Refuse the teacher at ``path`` by its ``config.json`` alone. Raises ``ModelError``."""
    check_unquantised(path)
    check_family(path, config.context)
    check_context(config, config.models[1])


def replay_notes(config: Config, train: PromptSet) -> list[str]:
    """Return a sentence where a run would replay its own responses, and no question comes back within its steps."""
    steps, replay = config.run.steps, config.replay
    in_order = takes_data_in_order(config) and not config.rollout.dynamic_sampling
    if not replay.count or replay.source != "live" or not in_order:
        return []
    whole = min(part.epoch for part in order_of(config, train.report).parts)
    if steps > whole:
        return []
    return [
        f"no question comes twice in these {counted(steps, 'step')} (run.steps), nothing will be replayed: a pass over "
        f"{counted(len(train), 'question')} takes {counted(whole, 'step')}"
    ]


def check_context(config: Config, model: ModelConfig) -> None:
    """Raise ``ModelError`` where the longest prompt and the longest response do not fit a model together."""
    prompt, response = config.data.max_prompt_tokens, config.rollout.max_tokens
    context = context_length(model_directory(model))
    if prompt + response > context:
        raise ModelError(
            f"data.max_prompt_tokens = {prompt} and rollout.max_tokens = {response} need a context of "
            f"{prompt + response} tokens, {model.path} has {context}; lower one of them"
        )


def check_divided(config: Config) -> None:
    """Raise ``ConfigError`` where the workers of a generator cannot share the model's heads."""
    workers, model = config.generator.tensor_parallel, model_directory(config.model)
    if workers > 1 and (part := undivided(read_shape(model), workers)):
        raise ConfigError(
            f"generator.tensor_parallel = {workers}: {config.model.path} has {part}, which it must divide"
        )


def check_heads(subject: Subject) -> None:
    """Raise ``ModelError`` where the model's attention heads have a size that vLLM does not compute on CPUs."""
    if subject.config.generator.gpus:
        return
    try:  # without the teacher, whose faults are its own check's
        size = read_shape(subject.model).head_dim
    except ModelError:
        return
    if size not in CPU_HEAD_SIZES:
        raise ModelError(
            f"{subject.config.model.path} has attention heads of {size} values; vLLM on CPUs computes those of "
            f"{', '.join(map(str, CPU_HEAD_SIZES))}: take another model, or GPUs"
        )


def check_output_head(model: Path) -> None:
    """Raise ``ModelError`` if a model's files hold another output head than config.json and the family say, or none at all."""
    same = same_weights(model, HEAD, EMBEDDING)
    stored = has_weight(model, HEAD) or not has_weight(model, EMBEDDING)
    stated = read_config(model)
    if "text_config" not in stated and (same if stated.get(TIED) else stored and TIED in stated):
        return  # as it states for itself, without transformers, which takes seconds to import
    try:
        tied = ties_head(model)
    except ModelError:  # vLLM serves more families than transformers knows
        return
    if tied and not same:
        raise ModelError(
            f"{model}: by config.json {TIED} is true, and the safetensors hold an {HEAD} that is not the embedding: set {TIED} "
            "to false there to use that head, or remove the weight"
        )
    if not tied and not stored:
        raise ModelError(
            f"{model}: by config.json {TIED} is false, and the safetensors hold no {HEAD}: set {TIED} to true there if the "
            "embedding is the output head, or add the weight"
        )


def check_stops(subject: Subject) -> None:
    """Raise ``ConfigError`` where no response could end at a text of ``rollout.stop`` or a token of ``rollout.stop_tokens``."""
    rollout, path = subject.config.rollout, subject.config.model.path
    if strange := [text for text in rollout.stop if not subject.tokenizer.writes(text)]:
        raise ConfigError(
            f"rollout.stop: no tokens of {path} make the text {strange[0]!r}, so no response would end at it; correct it, or "
            "leave it out"
        )
    rows = vocabulary_size(subject.model)
    if beyond := [token for token in rollout.stop_tokens if rows is not None and token >= rows]:
        raise ConfigError(f"rollout.stop_tokens: {path} has no token {beyond[0]}: its vocabulary has {rows:,}")


def check_lora_targets(config: Config) -> None:
    """Raise ``ConfigError`` where an adapter is asked for on a layer that the model does not have."""
    if not config.learner.lora_rank:
        return
    present = linear_layers(model_directory(config.model))
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


def _prompts(subject: Subject) -> list[Prompt]:
    """Return the prompts of all questions; none of files that cannot be read, of which their own check tells."""
    prompts: list[Prompt] = []
    for evaluated in (False, True):
        with suppress(RlepError):
            found = subject.evaluation if evaluated else subject.train
            prompts += found.prompts if found else ()
    return prompts
