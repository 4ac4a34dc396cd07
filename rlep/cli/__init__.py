"""``rlep``: every command of the command line. Commands import what they need when they run."""

from __future__ import annotations

import io
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

import typer

from rlep.cli.check import check
from rlep.cli.configs import Files, Overrides, config_app
from rlep.cli.console import console
from rlep.cli.pool import pool_app
from rlep.cli.shell import command_errors
from rlep.cli.study import study_app
from rlep.cli.task_sets import tasks_app
from rlep.core.printable import PrintableStream
from rlep.core.versions import check_versions

app = typer.Typer(
    name="rlep",
    help="RLEP: reinforcement learning with experience replay, as a Ray-native service (arXiv 2507.07451).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(config_app, name="config")
app.add_typer(pool_app, name="pool")
app.add_typer(tasks_app, name="tasks")
app.add_typer(study_app, name="study")
app.command()(command_errors(console))

ActorKind = Literal["generators", "verifiers"]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print errors and the result only.")]
JsonSteps = Annotated[bool, typer.Option("--json", help="Print a JSON object for each step on standard output.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
RunName = Annotated[str, typer.Option("--run", metavar="RUN", help="Run directory, or the name of a run on a cluster.")]
Address = Annotated[str | None, typer.Option(help="Ray cluster of a run given by name; RAY_ADDRESS or auto otherwise.")]
Grace = Annotated[float, typer.Option(min=0, help="Seconds that a drained actor has to finish its work.")]
Runs = Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run directories.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rlep {version('rlep')}")
        raise typer.Exit


ShowVersion = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
]


@app.callback()
def options(*, show_version: ShowVersion = False) -> None:
    """Options of ``rlep`` itself."""


@app.command()
@command_errors
def train(files: Files, overrides: Overrides = None, *, quiet: Quiet = False, as_json: JsonSteps = False) -> None:
    """Train: phase 1 with replay.count = 0, phase 2 with M > 0. The same command continues a run that was stopped."""
    check_versions()
    from rlep.cli.progress import TerminalProgress
    from rlep.config.settings import load_config
    from rlep.launch import train as launch

    config = load_config(files, overrides or ())
    with TerminalProgress(quiet=quiet, as_json=as_json) as progress:
        progress.result(f"model: {launch.train(config, progress).model}")


@app.command()
@command_errors
def collect(files: Files, overrides: Overrides = None, *, quiet: Quiet = False) -> None:
    """Generate responses to every training question with model.path, and store the verified ones in the pool."""
    check_versions()
    from rlep.cli.progress import TerminalProgress
    from rlep.config.settings import load_config
    from rlep.launch import collect as launch

    config = load_config(files, overrides or ())
    with TerminalProgress(quiet=quiet) as progress:
        progress.result(launch.collected_text(config, launch.collect(config, progress)))


@app.command()
@command_errors
def sft(files: Files, overrides: Overrides = None, *, quiet: Quiet = False, as_json: JsonSteps = False) -> None:
    """Supervised fine-tuning on the pool, on the same learner: a control for replay."""
    check_versions()
    from rlep.cli.progress import TerminalProgress
    from rlep.config.settings import load_config
    from rlep.launch import train as launch

    config = load_config(files, overrides or ())
    with TerminalProgress(quiet=quiet, as_json=as_json) as progress:
        progress.result(f"model: {launch.train(config, progress, supervised=True).model}")


@app.command()
@command_errors
def evaluate(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL_DIR|RUN_DIR", help="A model, or a run: its best or last checkpoint.")
    ],
    data: Annotated[
        list[Path] | None, typer.Argument(metavar="[DATA…]", help="Held-out files; else data.evaluation.")
    ] = None,
    config: Annotated[
        list[Path] | None, typer.Option("--config", help="TOML file; a run's own config otherwise.")
    ] = None,
    overrides: Overrides = None,
    *,
    out: Annotated[Path, typer.Option(help="Directory for evaluation.json and samples.parquet.")] = Path("evaluation"),
    as_json: AsJson = False,
) -> None:
    """Measure avg@n, maj@n, best@n and pass@k of a model on held-out questions."""
    check_versions()
    from rlep.cli.progress import TerminalProgress
    from rlep.cli.tables import show_evaluation
    from rlep.launch.evaluate import choose_model
    from rlep.launch.evaluate import evaluate as run

    chosen = choose_model(model, data or (), config or (), overrides or ())
    with TerminalProgress() as progress:
        for note in chosen.notes:
            progress.note(note)
        report = run(chosen.config, chosen.path, chosen.data, out, progress)
    show_evaluation(report, as_json=as_json)


@app.command()
@command_errors
def grade(
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help='Rows {"gold": …, "response": …}.')],
    profile: Annotated[
        str,
        typer.Option(
            help="math, math-bare, strict-box, dapo, exact, reasoning-gym, code, regex:PATTERN or python:module:function."
        ),
    ] = "math",
    workers: Annotated[int, typer.Option(min=1, help="Grading processes.")] = 1,
    out: Annotated[Path | None, typer.Option(help="File for the graded rows; standard output otherwise.")] = None,
    correct_at: Annotated[float, typer.Option(help="Least score of your own function that is correct.")] = 1.0,
) -> None:
    """Grade responses: the same rows, in order, with status, extracted answer, path, seconds and any score."""
    from rlep.cli.grade import grade_file

    grade_file(file, profile, workers, out, correct_at=correct_at)


@app.command()
@command_errors
def quickstart(
    directory: Annotated[Path, typer.Option(help="Directory of the runs.")] = Path("runs/quickstart"),
    seed: Annotated[int, typer.Option(help="Seed of all runs.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Training steps of both phases (default 96).")] = None,
    *,
    quiet: Quiet = False,
    as_json: JsonSteps = False,
) -> None:
    """The whole workflow on a tiny model: evaluate base, phase 1, collect, phase 2, compare. Needs two CPU cores, no GPU."""
    check_versions()
    from rlep.cli.progress import TerminalProgress
    from rlep.cli.quickstart import run

    with TerminalProgress(quiet=quiet, as_json=as_json) as progress:
        run(directory, progress, seed=seed, steps=steps)


@app.command()
@command_errors
def report(
    runs: Runs, out: Annotated[Path, typer.Option(help="Directory for report.html and report.svg.")] = Path("report")
) -> None:
    """Compare runs: one self-contained HTML page, and its first chart as SVG."""
    from rlep.cli.tables import show_summary
    from rlep.view.report import build_report
    from rlep.view.summary import summary

    files = build_report(runs, out)
    show_summary(summary(runs))
    typer.echo(f"report: {files.html}")


@app.command()
@command_errors
def plan(
    files: Files,
    overrides: Overrides = None,
    *,
    gpu_memory: Annotated[float, typer.Option(min=1, metavar="GIB", help="Memory of one GPU in GiB.")] = 80,
    as_json: AsJson = False,
) -> None:
    """Print what a run will do, in numbers, before anything starts, and whether it fits into GPUs of this memory."""
    from rlep.cli.plan import show_plan
    from rlep.config.settings import load_config

    show_plan(load_config(files, overrides or ()), gpu_memory=gpu_memory, as_json=as_json)


app.command()(check)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@command_errors
def submit(
    context: typer.Context,
    address: Annotated[str, typer.Option(help="Dashboard address of the cluster, or RAY_API_SERVER_ADDRESS.")] = "",
    working_dir: Annotated[Path, typer.Option(help="Directory copied to the job.")] = Path(),
    wait: Annotated[bool, typer.Option(help="Follow the logs until the job ends.")] = True,
) -> None:
    """Run an rlep command as a Ray job: ``rlep submit -- train configs/rlep.toml``."""
    from rlep.actors.jobs import submit_job
    from rlep.cli.submitted import check_submitted

    def note(line: str) -> None:
        typer.echo(line, err=True)

    arguments = context.args
    check_submitted(app, arguments, working_dir, address or os.environ.get("RAY_API_SERVER_ADDRESS", ""))
    raise typer.Exit(
        submit_job(arguments, address=address, working_dir=working_dir, wait=wait, echo=typer.echo, note=note)
    )


@app.command()
@command_errors
def status(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run directory, or the name of a run on a cluster.")],
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Show every actor of a running run: state, policy version, requests in flight, speed, restarts, last error."""
    from rlep.cli.live import show_status

    show_status(run, address=address, as_json=as_json)


@app.command()
@command_errors
def top(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run directory, or the name of a run on a cluster.")],
    address: Address = None,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two frames.")] = 1,
) -> None:
    """Show a running run continuously, until it ends, q or Ctrl-C: its actors, and the time of the last step.

    If standard output is not a terminal, print one frame.
    """
    from rlep.cli.top import watch_run

    watch_run(run, address=address, every_s=every)


@app.command()
@command_errors
def timeline(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run directory, or the name of a run on a cluster.")],
    address: Address = None,
    out: Annotated[Path, typer.Option(help="Chrome trace file.")] = Path("timeline.json"),
) -> None:
    """Write who did what in the last steps of a running run, as a Chrome trace for Perfetto; print the last step's times."""
    from rlep.cli.live import save_timeline

    save_timeline(run, out, address=address)


@app.command()
@command_errors
def scale(
    role: Annotated[ActorKind, typer.Argument(metavar="generators|verifiers", help="The role to scale.")],
    count: Annotated[int, typer.Argument(metavar="N", min=1, help="The desired number.")],
    run: RunName,
    address: Address = None,
    *,
    grace: Grace = 60,
) -> None:
    """Set the number of generators or verifiers of a running run; the newest are drained first."""
    from rlep.cli.live import change_count

    change_count(run, role, count, address=address, grace_s=grace)


@app.command()
@command_errors
def drain(
    actor: Annotated[str, typer.Argument(metavar="ACTOR", help="A name from rlep status, e.g. generator-1.")],
    run: RunName,
    address: Address = None,
    *,
    grace: Grace = 60,
) -> None:
    """Drain one generator or verifier of a running run: it finishes its work, or returns it to the queue."""
    from rlep.cli.live import drain_actor

    drain_actor(run, actor, address=address, grace_s=grace)


def main() -> None:
    """Console entry: what commands print has no effect on a terminal but its own colours."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it logs each attempt to connect; errors say what came of them
    if isinstance(sys.stdout, io.TextIOWrapper):  # None where it was closed
        sys.stdout = PrintableStream(sys.stdout)
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = PrintableStream(sys.stderr)
    app()
