"""``rlep``: every command of the command line. Commands import what they need when they run."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from rlep.cli.check import check
from rlep.cli.configs import Files, Overrides, config_app
from rlep.cli.console import console
from rlep.cli.grade import grade
from rlep.cli.live import AsJson, drain, scale, status, timeline
from rlep.cli.pool import pool_app
from rlep.cli.push import push
from rlep.cli.shell import command_errors
from rlep.cli.study import study_app
from rlep.cli.task_sets import tasks_app
from rlep.cli.terminal import make_streams_printable
from rlep.cli.top import top
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

Quiet = Annotated[bool, typer.Option("--quiet", help="Print errors and the result only.")]
JsonSteps = Annotated[bool, typer.Option("--json", help="Print a JSON object for each step on standard output.")]
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
        Path,
        typer.Argument(
            metavar="MODEL|RUN", help="A model, directory or id of the hub, or a run: its best or last checkpoint."
        ),
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
        report = run(chosen.config, chosen.path, chosen.data, out, progress, graded_by=chosen.grader_digest)
    show_evaluation(report, as_json=as_json)


app.command()(command_errors(grade))
app.command()(command_errors(push))


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
    """The whole workflow on a tiny model: evaluate base, phase 1, collect, phase 2, compare. Needs two CPU cores, or one GPU."""
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

    made = build_report(runs, out)
    show_summary(made.summary)
    typer.echo(f"report: {made.html}")


@app.command()
@command_errors
def plan(
    files: Files,
    overrides: Overrides = None,
    *,
    gpu_memory: Annotated[
        float, typer.Option(min=1, max=1_000_000, metavar="GIB", help="Memory of one GPU in GiB.")
    ] = 80,
    as_json: AsJson = False,
) -> None:
    """Print what a run will do, in numbers, before anything starts, and whether it fits into GPUs of this memory."""
    from rlep.cli.plan import lines, read_known
    from rlep.cli.tables import show_facts
    from rlep.config.settings import load_config
    from rlep.plan.memory import GIB
    from rlep.plan.run_plan import make_plan

    config = load_config(files, overrides or ())
    made = make_plan(config, read_known(config), int(gpu_memory * GIB))
    if as_json:
        typer.echo(json.dumps(asdict(made), indent=2))
        return
    show_facts("plan", config.run.name, lines(made, config))
    if made.fits is not None:
        typer.echo(f"fits: {made.reason}" if made.fits else f"does not fit, because {made.reason}")
    for sentence in made.missing:
        typer.echo(f"missing: {sentence}")
    for short in filter(None, (made.missing_gpus, made.missing_cpus)):
        typer.echo(f"does not fit this machine: {short}")


app.command()(check)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@command_errors
def submit(
    context: typer.Context,
    address: Annotated[str, typer.Option(help="Dashboard address of the cluster, or RAY_API_SERVER_ADDRESS.")] = "",
    working_dir: Annotated[Path, typer.Option(help="Directory copied to the job.")] = Path(),
    wait: Annotated[bool, typer.Option(help="Follow the logs until the job ends.")] = True,
) -> None:
    """Run an rlep command as a Ray job: ``rlep submit -- train configs/paper/rlep.toml``."""
    from rlep.actors.jobs import submit_job
    from rlep.cli.submitted import check_submitted

    def note(line: str) -> None:
        typer.echo(line, err=True)

    arguments = context.args
    check_submitted(app, arguments, working_dir, address or os.environ.get("RAY_API_SERVER_ADDRESS", ""))
    raise typer.Exit(
        submit_job(arguments, address=address, working_dir=working_dir, wait=wait, echo=typer.echo, note=note)
    )


for watching in (status, top, timeline, scale, drain):
    app.command()(command_errors(watching))


def main() -> None:
    """Console entry: what commands print has no effect on a terminal but its own colours."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it logs each attempt to connect; errors say what came of them
    make_streams_printable()
    app()
