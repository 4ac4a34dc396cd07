"""Second homes for metrics, behind ``metrics.Tracker``: TensorBoard, Weights & Biases, MLflow.

Each package is imported when its tracker is opened. Credentials and servers come from the packages' own environment
variables (``WANDB_API_KEY``, ``MLFLOW_TRACKING_URI``, …). A resumed run continues the tracker's run: its id is kept in
the run directory. A tracker that fails or hangs costs a warning, not the run (``delivery``): ``metrics.jsonl`` has the values.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from rlep.core.errors import ConfigError, first_line
from rlep.core.files import write_whole
from rlep.core.variables import variables
from rlep.metrics.catalogue import Tracker
from rlep.metrics.tracker_servers import ANSWER_S, check_answers, without_user

PACKAGES = {"tensorboard": ("tensorboard", "2."), "wandb": ("wandb", "0."), "mlflow": ("mlflow-skinny", "3.")}
"""Sink → the package that it needs, as rlep's extra of that name has it, and how the version it was tested with begins."""
STEP = "step"
"""The run's step among W&B's values, which are drawn over it. Names of metrics have a slash."""
BATCH = 500
"""Metrics per MLflow request; its server takes at most 1000."""
IMPATIENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": f"{ANSWER_S:.0f}"}
"""Of MLflow while it starts: it would send a request that fails seven times more, and wait two minutes for an answer to each."""
LONGEST = 250
"""Characters of a metric's name that MLflow takes."""


def open_trackers(sinks: Sequence[str], *, directory: Path, project: str, name: str) -> list[Tracker]:
    """The trackers named ``tensorboard``, ``wandb``, ``mlflow``, for the run ``name`` in run directory ``directory``.

    ConfigError with the command to run for one that is not installed.
    """
    for sink in sinks:
        _imported(sink, sink)  # all are there before the first one is opened
    opened: list[Tracker] = []
    for sink in sinks:
        if sink == "tensorboard":
            opened.append(TensorBoardTracker(directory / "tensorboard"))
        elif sink == "wandb":
            opened.append(WandbTracker(directory, project=project, name=name))
        else:
            opened.append(MlflowTracker(directory, project=project, name=name))
    return opened


class TensorBoardTracker:
    """Event files for ``tensorboard --logdir``; needs neither TensorFlow nor torch."""

    def __init__(self, directory: Path) -> None:
        writers = _imported("tensorboard.summary.writer.event_file_writer", "tensorboard")
        self._events = _imported("tensorboard.compat.proto.event_pb2", "tensorboard")
        self._summaries = _imported("tensorboard.compat.proto.summary_pb2", "tensorboard")
        try:
            self._writer = writers.EventFileWriter(str(directory))
        except OSError as error:
            raise ConfigError(f"tracking.sinks has 'tensorboard', but {directory} cannot be written: {error}") from None
        self._last: int | None = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One event with all values of the step; a step done again after a restart replaces itself and all later ones."""
        if self._last is None or step <= self._last:
            begun = self._events.SessionLog(status=self._events.SessionLog.START)
            self._writer.add_event(self._events.Event(wall_time=time.time(), step=step, session_log=begun))
        self._last = step
        values = [self._summaries.Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        summary = self._summaries.Summary(value=values)
        self._writer.add_event(self._events.Event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()

    def close(self, *, failed: bool = False) -> None:
        """Finish the event file."""
        self._writer.close()


class WandbTracker:
    """One Weights & Biases run; ``WANDB_MODE=offline`` keeps it in the run directory."""

    def __init__(self, directory: Path, *, project: str, name: str) -> None:
        wandb = _imported("wandb", "wandb")
        known = directory / "wandb.id"
        if not known.exists():
            write_whole(known, secrets.token_hex(8))  # an empty file would name no run for ever
        remedy = "set WANDB_BASE_URL, or WANDB_MODE=offline to send it later with `wandb sync`"
        failures = (wandb.Error, OSError, ValueError)
        try:
            settings = wandb.setup().settings
            if settings.mode in ("online", "shared"):
                check_answers("wandb", settings.base_url, remedy)
            self._run = wandb.init(
                project=project, name=name, dir=str(directory), id=known.read_text().strip(), resume="allow"
            )
            self._run.define_metric("*", step_metric=STEP)
        except ConfigError:
            raise
        except failures as error:
            key = "set WANDB_API_KEY or call `wandb login`, or set WANDB_MODE=offline"
            said = first_line(error).rstrip(".") or type(error).__name__
            raise ConfigError(f"tracking.sinks has 'wandb', which does not start: {said}; {key}") from None
        self._next: int = self._run.starting_step
        """The least number that W&B takes for a step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One W&B step, of a number that never falls, for W&B ignores others; sent in the background."""
        own = max(step, self._next)
        self._run.log({**metrics, STEP: step}, step=own)
        self._next = own + 1

    def close(self, *, failed: bool = False) -> None:
        """Send what is left, and whether the run broke off."""
        self._run.finish(exit_code=int(failed))


class MlflowTracker:
    """One MLflow run on the server of ``MLFLOW_TRACKING_URI``."""

    def __init__(self, directory: Path, *, project: str, name: str) -> None:
        mlflow = _imported("mlflow", "mlflow")
        self._metric = _imported("mlflow.entities", "mlflow").Metric
        self._failure: type[Exception] = _imported("mlflow.exceptions", "mlflow").MlflowException
        server = os.environ.get("MLFLOW_TRACKING_URI")
        if not server:
            raise ConfigError("tracking.sinks has 'mlflow': set MLFLOW_TRACKING_URI to the address of its server")
        self._server = server
        check_answers("mlflow", server, "set MLFLOW_TRACKING_URI to the address of its server")
        try:
            with variables(IMPATIENT, replace=False):
                self._client = mlflow.MlflowClient()
                self._run_id = self._resumed(directory / "mlflow.id", project, name)
        except (self._failure, OSError) as error:
            said = self._discreet(first_line(error).rstrip(".") or type(error).__name__)
            raise ConfigError(
                f"tracking.sinks has 'mlflow', but {without_user(server)} cannot be used: {said}; "
                "set MLFLOW_TRACKING_URI to the address of its server"
            ) from None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """All values of the step, in requests of at most ``BATCH``. Raises ``MlflowException`` where the server refuses them."""
        now = int(time.time() * 1000)
        rows = [self._metric(mlflow_name(name), value, now, step) for name, value in metrics.items()]
        try:
            for start in range(0, len(rows), BATCH):
                self._client.log_batch(self._run_id, metrics=rows[start : start + BATCH])
        except (self._failure, OSError) as error:
            raise self._failure(self._discreet(str(error))) from None

    def close(self, *, failed: bool = False) -> None:
        """Mark the run as finished or failed."""
        try:
            self._client.set_terminated(self._run_id, "FAILED" if failed else "FINISHED")
        except (self._failure, OSError) as error:
            raise self._failure(f"run {self._run_id}: {self._discreet(str(error))}") from None

    def _discreet(self, text: str) -> str:
        """Return a text without the server's user and password."""
        return text.replace(self._server, without_user(self._server))

    def _resumed(self, known: Path, project: str, name: str) -> str:
        if known.exists():
            run_id = known.read_text().strip()
            self._client.update_run(run_id, status="RUNNING")
            return run_id
        found = self._client.get_experiment_by_name(project)
        experiment = found.experiment_id if found else self._client.create_experiment(project)
        run_id = str(self._client.create_run(experiment, run_name=name).info.run_id)
        write_whole(known, run_id)
        return run_id


def mlflow_name(name: str) -> str:
    """A metric name as MLflow takes it; a digest of one that it would not take keeps apart what were alike else."""
    segments = re.sub(r"[^\w\-. /:]", "_", name, flags=re.ASCII).split("/")
    plain = "/".join(part for part in segments if part not in ("", ".", ".."))
    if plain == name and len(name) <= LONGEST:
        return name
    digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=4).hexdigest()
    return f"{plain[: LONGEST - 9]}-{digest}"


def _imported(module: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != extra:
            raise
        raise ConfigError(
            f"tracking.sinks has {extra!r}, which is not installed: pip install {PACKAGES[extra][0]}"
        ) from error
