"""``rlep pool stats | browse | show | sample``: a pool looked into from a terminal, without a cluster."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from rlep.cli.pool.which import LOOK, Data, Json, about_a_pool, pool_app

if TYPE_CHECKING:
    from rlep.actors.cluster import Cluster
    from rlep.config.schema import Config
    from rlep.core.types import Int32Array, Trajectory
    from rlep.data.prompt_rows import PromptRow
    from rlep.engines.tokenizer import Tokenizer
    from rlep.services.pool.maintenance.measure import Measured
    from rlep.services.pool.rpc.client import PoolClient
    from rlep.services.pool.storage.scan import Held
    from rlep.services.pool.values import PoolStats

PROMPTS_A_SAMPLE = 64


@pool_app.command(rich_help_panel=LOOK)
@about_a_pool
def stats(
    config: Config,
    *,
    attach: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Ask the pool of a running run, by its directory or name, for counts only."),
    ] = None,
    data: Annotated[
        list[Path] | None, typer.Option("--data", metavar="FILE", help="Also count its questions without responses.")
    ] = None,
    questions: Annotated[int, typer.Option(min=0, help="Questions measured for the quantiles; 0 takes all.")] = 1024,
    as_json: Json = False,
) -> None:
    """Contents of a pool: coverage, lengths, distinctness, memory, by policy and by verifier."""
    from rlep.check.prompts_shown import wanted_of
    from rlep.cli.pool.open import existing, question_rows
    from rlep.cli.progress import TerminalProgress
    from rlep.cli.shell import say_stopping
    from rlep.launch.event_loop import run_async
    from rlep.services.pool.maintenance.measure import measure

    if attach:
        from rlep.cli.live import run_cluster  # leads to Ray, which no other command here needs

        cluster = run_cluster(attach, config.cluster.address, "cluster.address")
        _print_stats(config.pool.name, {}, run_async(_attached(cluster), say_stopping), as_json)
        return
    with TerminalProgress() as bars, existing(config) as pool:
        counts = pool.stats()
        more: dict[str, Any] = {"tokenizer_digest": counts.tokenizer_digest, "cap": counts.cap}
        more |= {"redis_used_bytes": counts.redis_bytes, "redis_limit_bytes": counts.redis_limit}
        if data:
            held = set(pool.prompt_ids())
            asked = [prompt_id for prompt_id, _ in question_rows(data, bars, wanted_of(config))]
            more |= {"questions_asked": len(asked), "questions_without": sum(one not in held for one in asked)}
        measured = measure(pool, questions=questions)
    _print_stats(pool.name, more | {"measured": asdict(measured)}, counts, as_json)
    if not as_json:
        _show_measured(measured)


def _print_stats(name: str, more: Mapping[str, Any], stats: PoolStats, as_json: bool) -> None:
    from rlep.cli.tables import show_table
    from rlep.core.plural import counted, sized
    from rlep.core.types import ALL
    from rlep.services.pool.values import policies

    if as_json:
        typer.echo(json.dumps({"pool": name} | asdict(stats) | dict(more), indent=2))
        return
    typer.echo(f"pool {name}: {counted(stats.trajectories, 'response')}, {sized(stats.bytes)}")
    if "cap" in more:
        limit = "no limit of responses" if more["cap"] == ALL else f"at most {more['cap']} responses"
        typer.echo(f"{limit} to a question; tokenizer {more['tokenizer_digest']}")
        bound = f" of {sized(more['redis_limit_bytes'])}" if more["redis_limit_bytes"] else ""
        typer.echo(f"Redis uses {sized(more['redis_used_bytes'])}{bound}")
    typer.echo(f"sealed: {stats.sealed or 'no'}")
    at_least = stats.questions_with
    coverage = {"1": at_least[1] - at_least[2]} | {f"{n} or more": at_least[n] for n in (2, 4, 8)}
    if "questions_without" in more:
        coverage = {f"none (of {more['questions_asked']} asked)": int(more["questions_without"])} | coverage
    show_table([{"responses": label, "questions": str(count)} for label, count in coverage.items()])
    rows = policies(stats.by_policy)
    show_table([{"written by": name, "steps": steps, "responses": str(count)} for name, steps, count in rows])
    show_table([{"graded by": name, "responses": str(count)} for name, count in stats.by_verifier.items()])


def _show_measured(measured: Measured) -> None:
    from rlep.cli.tables import show_table
    from rlep.core.plural import counted

    rows = []
    for name, values, digits in (("tokens", measured.length, 0), ("distinct 4-grams", measured.distinctness, 3)):
        if values:
            cells = {f"{100 * level:g} %": f"{value:.{digits}f}" for level, value in values.items()}
            rows.append({"quantiles": name} | cells)
    show_table(rows)
    if measured.questions:
        typer.echo(
            f"quantiles of {counted(measured.trajectories, 'response')} to {counted(measured.questions, 'question')}"
        )


async def _attached(cluster: Cluster) -> PoolStats:
    from rlep.actors.pool_actor import attached_stats

    await asyncio.to_thread(cluster.connect)
    try:
        return await attached_stats(cluster)
    finally:
        await asyncio.to_thread(cluster.close)


@pool_app.command(rich_help_panel=LOOK)
@about_a_pool
def browse(
    config: Config,
    *,
    data: Data = None,
    start: Annotated[str, typer.Option("--from", metavar="PROMPT_ID", help="Begin at this prompt id.")] = "",
    least: Annotated[int, typer.Option(min=1, help="Only questions with at least so many responses.")] = 1,
) -> None:
    """Page through questions and their decoded responses; without a terminal, print them all."""
    from rlep.check.prompts_shown import wanted_of
    from rlep.cli.pool.open import existing, files_of, question_rows, tokenizer_of
    from rlep.cli.progress import TerminalProgress
    from rlep.cli.terminal import Terminal
    from rlep.core.errors import PoolError
    from rlep.core.hub_names import hub_data

    with TerminalProgress() as bars:
        files = files_of(config, data)
        rows = (
            dict(question_rows(files, bars, wanted_of(config)))
            if data or all(hub_data(file) or file.is_file() for file in files)
            else {}
        )
    with existing(config) as pool:
        tokenizer = tokenizer_of(config, pool)
        held = pool.contents()
        prompts = [prompt_id for prompt_id, ids in held.items() if prompt_id >= start and len(ids) >= least]
        if not prompts:
            raise PoolError(f"pool {pool.name} has no question of this kind")
        interactive = sys.stdin.isatty() and sys.stdout.isatty()
        for place in places(len(prompts), iter(typer.getchar, None)) if interactive else range(len(prompts)):
            Terminal(soft_wrap=True).print(_page(pool, prompts[place], rows.get(prompts[place]), tokenizer))
            if interactive:
                keys = f"{place + 1} of {len(prompts)}: space or n next, p previous, q quit"
                Terminal(stderr=True).print(keys, style="dim")


def places(count: int, keys: Iterator[str]) -> Iterator[int]:
    """Yield the numbers of the pages that a reader's keys ask for, of ``count``."""
    place = 0
    yield place
    for key in keys:
        if key in ("q", "Q", "\x03", "\x04", "\x1b"):
            return
        step = {" ": 1, "\r": 1, "\n": 1, "n": 1, "\x1b[C": 1, "p": -1, "\x1b[D": -1}.get(key, 0)
        if step and 0 <= place + step < count:
            place += step
            yield place
        elif step > 0:
            return


def _page(pool: PoolClient, prompt_id: str, row: PromptRow | None, tokenizer: Tokenizer | None) -> Text:
    """A question and all its responses."""
    from rlep.core.plural import counted
    from rlep.services.pool.storage.scan import trajectory_of

    answers = list(map(trajectory_of, pool.records([prompt_id])))
    parts = [Text(f"question {prompt_id}, {counted(len(answers), 'answer')}", "bold")]
    if row is not None:
        parts.append(Text(f"{row.question}\nreference: {row.reference}"))
    return Text("\n").join([*parts, *(described(answer, tokenizer) for answer in answers), Text(80 * "─")])


@pool_app.command(rich_help_panel=LOOK)
@about_a_pool
def show(
    config: Config,
    identity: Annotated[str, typer.Argument(metavar="ID", help="A prompt id or a trajectory's content id.")],
    *,
    as_json: Json = False,
) -> None:
    """Print one question's responses, or one response, decoded where model.path has the tokenizer."""
    from rlep.cli.pool.open import existing, tokenizer_of
    from rlep.cli.terminal import Terminal
    from rlep.core.errors import PoolError
    from rlep.services.pool.files.export_rows import json_of, line_of

    with existing(config) as pool:
        tokenizer = tokenizer_of(config, pool)
        found = find(pool, identity)
        if not found:
            raise PoolError(f"pool {pool.name} holds neither a prompt nor a trajectory {identity}")
        for held in found:
            line = line_of(held)
            if as_json:
                typer.echo(json_of(line))
            else:
                marks = ["quarantined"] if line.quarantined else ()
                Terminal(soft_wrap=True).print(described(line.trajectory, tokenizer, marks))


def find(pool: PoolClient, identity: str) -> list[Held]:
    """All records of the prompt, or the one trajectory, of this id, quarantined or not; empty where there is none."""
    if of_prompt := list(pool.records([identity], quarantined=True)):
        return of_prompt
    for quarantined in (False, True):
        for prompt_id, ids in pool.contents(quarantined=quarantined).items():
            if identity in ids:
                every = pool.records([prompt_id], quarantined=True)
                return [held for held in every if held.content_id.hex() == identity and held.quarantined is quarantined]
    return []


@pool_app.command(rich_help_panel=LOOK)
@about_a_pool
def sample(
    config: Config,
    *,
    prompts: Annotated[
        list[str] | None, typer.Option("--prompt", metavar="ID", help="May be repeated (default: every question).")
    ] = None,
    count: Annotated[int | None, typer.Option(min=0, help="Responses a question (default replay.count).")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the run (default run.seed).")] = None,
    step: Annotated[int, typer.Option(min=0, help="Training step.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON a question.")] = False,
) -> None:
    """Draw what a training step would draw: the same seed, step and questions give the same responses."""
    from rlep.cli.pool.open import existing, tokenizer_of
    from rlep.cli.terminal import Terminal

    count = config.replay.count or 2 if count is None else count
    seed = config.run.seed if seed is None else seed
    with existing(config) as pool:
        tokenizer = tokenizer_of(config, pool)
        wanted = prompts or pool.prompt_ids()
        for start in range(0, len(wanted), PROMPTS_A_SAMPLE):
            drawn_now = pool.sample(wanted[start : start + PROMPTS_A_SAMPLE], count, seed=seed, step=step)
            for prompt_id, drawn in drawn_now.trajectories().items():
                if as_json:
                    typer.echo(json.dumps({"prompt_id": prompt_id, "drawn": [_drawn(t, tokenizer) for t in drawn]}))
                    continue
                console = Terminal(soft_wrap=True)
                console.print(f"prompt {prompt_id}: {len(drawn)} drawn", style="bold")
                for trajectory in drawn:
                    console.print(described(trajectory, tokenizer))


def _drawn(trajectory: Trajectory, tokenizer: Tokenizer | None) -> dict[str, Any]:
    tokens = trajectory.tokens
    found: dict[str, Any] = {"content_id": trajectory.content_id, "tokens": tokens.tolist()}
    if trajectory.sampled is not None:
        found["sampled"] = trajectory.sampled.tolist()
    return found if tokenizer is None else found | {"text": tokenizer.decode(tokens)}


def described(trajectory: Trajectory, tokenizer: Tokenizer | None, marks: Sequence[str] = ()) -> Text:
    """One response for a reader: where it comes from, and its text or, without its tokenizer, its token ids.

    An episode's turns are marked, and what its environment wrote is dim, behind a bar.
    """
    from rlep.core.plural import counted
    from rlep.core.transcript import part_texts

    verdict, origin = trajectory.verdict, trajectory.provenance
    told = "" if trajectory.sampled is None else f", {trajectory.sampled_length} of the policy"
    lines = [
        f"{counted(len(trajectory.tokens), 'token')}{told}, {verdict.status}, graded by {verdict.verifier} {verdict.version}",
        f"policy {origin.policy_digest} version {origin.policy_version}, temperature {origin.sampling.temperature}",
    ]
    if trajectory.metadata:
        lines.append(", ".join(f"{key} {value}" for key, value in sorted(trajectory.metadata.items())))
    if tokenizer is None:
        lines.append("model.path has no or another tokenizer")
    decode = ids_of if tokenizer is None else tokenizer.decode
    written = [Text(decode(trajectory.tokens))]
    if trajectory.sampled is not None:
        written = list(_turns(part_texts(trajectory.tokens, trajectory.sampled, decode)))
    head = Text.assemble((trajectory.content_id, "bold"), " ".join([f"  (prompt {trajectory.prompt_id})", *marks]))
    parts = (line for part in (*map(Text, lines), *written) for line in part.split("\n", allow_blank=True))
    return Text("\n  ").join([head, *parts])


def ids_of(tokens: Int32Array) -> str:
    """Token ids ``[T]`` as text, for want of a tokenizer."""
    return f"token ids {tokens.tolist()}"


def _turns(parts: Sequence[str]) -> Iterator[Text]:
    """Yield what was written in each turn of an episode, given as the texts of its parts."""
    from rlep.core.transcript import lines_of

    for kind, text in lines_of(parts):
        if kind == "turn":
            yield Text(f"turn {text}", "bold")
        elif kind == "answer":
            yield Text("\n".join(f"│ {line}" for line in text.split("\n")), "dim")
        else:
            yield Text(text if kind == "says" else f"calls {text}")
