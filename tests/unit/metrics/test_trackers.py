"""What trackers are given and what is said when one is not there."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlep.core.errors import ConfigError
from rlep.metrics.delivery import Delivery
from rlep.metrics.logs import MetricsLog
from rlep.metrics.tracker_servers import check_answers
from rlep.metrics.trackers import BATCH, PACKAGES, TensorBoardTracker, mlflow_name, open_trackers
from tests.unit.actors.web_answers import served_by
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def test_no_sinks_are_no_trackers(tmp_path: Path) -> None:
    assert open_trackers([], directory=tmp_path, project="p", name="n") == []


@pytest.mark.parametrize("sink", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, sink: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, sink, None)  # how Python says: there is no such module
    with pytest.raises(ConfigError, match=f"{sink!r}, which is not installed: pip install {PACKAGES[sink][0]}$"):
        open_trackers([sink], directory=tmp_path, project="p", name="n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["evaluation/hendrycks math:5/pass/4", "compute/generated_tokens", "a-b/..c/.d", "x" * 250]
)
def test_a_name_that_mlflow_takes_stays_as_it_is(name: str) -> None:
    assert mlflow_name(name) == name


def test_names_that_mlflow_would_refuse_or_take_for_one_are_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "server").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # in place of a server
    from mlflow import MlflowClient

    sources = ["数学", "物理", "a+b", "a@b", "a_b", "./d/x", "../d/x", "/d/x", "d/x", "a//b", "a/b", "https://a.b/c"]
    names = [f"evaluation/{source}/avg" for source in sources] + ["x" * 251, "x" * 252, "\udc80", "..", "/"]
    (tracker,) = open_trackers(["mlflow"], directory=tmp_path, project="p", name="n")
    tracker.log(0, {name: float(number) for number, name in enumerate(names)})
    taken = MlflowClient().get_run((tmp_path / "mlflow.id").read_text()).data.metrics
    assert taken == {mlflow_name(name): float(number) for number, name in enumerate(names)}
    assert len(taken) == 17
    shown = [mlflow_name(name) for name in names[:7]]
    assert [name.rpartition("-")[0] for name in shown[:4]] == [
        f"evaluation/{one}/avg" for one in ("__", "__", *2 * ["a_b"])
    ]
    assert shown[4] == "evaluation/a_b/avg"
    assert all(re.fullmatch("evaluation/d/x/avg-[0-9a-f]{8}", name) for name in shown[5:])


def test_mlflow_without_a_server_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ConfigError, match="set MLFLOW_TRACKING_URI"):
        open_trackers(["mlflow"], directory=tmp_path, project="p", name="n")


OPENED = """
import sys
from pathlib import Path
from rlep.core.errors import ConfigError
from rlep.metrics.trackers import open_trackers
try:
    open_trackers([sys.argv[1]], directory=Path(sys.argv[2]), project="p", name="n")
except ConfigError as error:
    print(error)
"""


def opened(sink: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """A tracker opened in a process of its own: the packages keep what they have once read of the environment."""
    command = [sys.executable, "-c", OPENED, sink, str(directory)]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


@contextmanager
def silent_server() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize(("sink", "variable"), [("mlflow", "MLFLOW_TRACKING_URI"), ("wandb", "WANDB_BASE_URL")])
@pytest.mark.parametrize("listening", [False, True])
def test_a_server_that_does_not_answer_is_named_with_the_way_out(
    sink: str, variable: str, listening: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_MODE", "online")
    with silent_server() as silent:
        address = silent if listening else "http://127.0.0.1:1"
        monkeypatch.setenv(variable, address)
        done = opened(sink, tmp_path)
    reason = "timed out|no answer within 4 s" if listening else "Connection refused"
    assert re.search(
        rf"^tracking.sinks has '{sink}', but {address} does not answer \(.*({reason}).*\): set {variable}", done.stdout
    )
    assert len(done.stdout.splitlines()) == 1, done
    assert "Traceback" not in done.stderr


def test_wandb_without_a_key_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "online")
    with served_by(BaseHTTPRequestHandler) as address:
        monkeypatch.setenv("WANDB_BASE_URL", address)
        done = opened("wandb", tmp_path)
    assert re.fullmatch(
        "tracking.sinks has 'wandb', which does not start: .*[Kk]ey.*WANDB_API_KEY.*WANDB_MODE=offline\n", done.stdout
    ), done
    assert "Traceback" not in done.stderr


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("")
    with pytest.raises(
        ConfigError, match=f"tracking.sinks has 'tensorboard', but {tmp_path}/tensorboard cannot be written"
    ):
        open_trackers(["tensorboard"], directory=tmp_path, project="p", name="n")


def test_mlflow_continues_a_run_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "server").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # in place of a server
    from mlflow import MlflowClient

    def logged(*steps: int) -> str:
        (tracker,) = open_trackers(["mlflow"], directory=tmp_path, project="p", name="n")
        run = (tmp_path / "mlflow.id").read_text()
        for step in steps:
            tracker.log(step, {f"m({number})": float(step) for number in range(BATCH + 1)})
        assert MlflowClient().get_run(run).info.status == "RUNNING"
        tracker.close()
        assert MlflowClient().get_run(run).info.status == "FINISHED"
        return run

    run = logged(0, 1)
    assert logged(2, 1) == run  # back to the checkpoint after step 0
    for name in (mlflow_name("m(0)"), mlflow_name(f"m({BATCH})")):
        history = MlflowClient().get_metric_history(run, name)
        assert [(point.step, point.value) for point in history] == [(0, 0.0), (1, 1.0), (2, 2.0), (1, 1.0)]
    experiment = MlflowClient().get_experiment_by_name("p")
    assert experiment is not None
    assert [found.info.run_name for found in MlflowClient().search_runs([experiment.experiment_id])] == ["n"]


@pytest.mark.parametrize(("failed", "status"), [(False, "FINISHED"), (True, "FAILED")])
def test_mlflow_shows_whether_the_run_broke_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: bool, status: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "server").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    log = MetricsLog(tmp_path / "metrics.jsonl", open_trackers(["mlflow"], directory=tmp_path, project="p", name="n"))
    log.close(failed=failed)
    assert MlflowClient().get_run((tmp_path / "mlflow.id").read_text()).info.status == status


def test_what_mlflow_refuses_is_counted_and_tells_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "server").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    def refused(*_: object, **__: object) -> None:
        raise MlflowException("http://me:s3cret@mlflow says no")

    (tracker,) = open_trackers(["mlflow"], directory=tmp_path, project="p", name="n")
    monkeypatch.setattr(tracker, "_server", "http://me:s3cret@mlflow")
    for name in ("log_batch", "set_terminated"):
        monkeypatch.setattr(MlflowClient, name, refused)
    delivery = Delivery(tracker)
    for step in (3, 4):
        delivery.log(step, {"m": 1.0})
    delivery.close()
    assert delivery.dropped == 2
    run = (tmp_path / "mlflow.id").read_text()
    assert [record.getMessage() for record in caplog.records if record.name == "rlep.metrics.delivery"] == [
        "MlflowTracker refused step 3: MlflowException: http://mlflow says no",
        f"MlflowTracker could not be closed: MlflowException: run {run}: http://mlflow says no",
    ]


def test_wandb_continues_a_run_under_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    for step in (0, 1):
        (tracker,) = open_trackers(["wandb"], directory=tmp_path, project="p", name="n")
        tracker.log(step, {"rollout/accuracy": 0.25 + step})
        tracker.close()
    run = (tmp_path / "wandb.id").read_text()
    files = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert [path.name for path in files] == [f"run-{run}.wandb"] * 2
    # wandb's own process writes the files, also after finish().
    wait_until(
        lambda: b"0.25" in files[0].read_bytes() and b"1.25" in files[1].read_bytes(), "both values in the files"
    )
    assert all(b"rollout/accuracy" in file.read_bytes() for file in files)


def wandb_values(file: Path) -> list[tuple[float, float, float]]:
    """What a small offline file has of each logged step: W&B's own number, the run's step and the accuracy."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, found = file.read_bytes(), 7, []  # behind the name of the format
    while at + 7 + (length := int.from_bytes(data[at + 4 : at + 6], "little")) <= len(data):  # behind a checksum
        items = Record.FromString(data[at + 7 : at + 7 + length]).history.item
        if values := {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}:
            found.append((values["_step"], values["step"], values["rollout/accuracy"]))
        at += 7 + length
    return found


def test_wandb_gets_the_values_of_steps_that_are_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    for start in (0, 5):  # the second opening is a resumed run, which goes back from step 7 to step 6
        (tracker,) = open_trackers(["wandb"], directory=tmp_path, project="p", name="n")
        for number, step in enumerate((0, 1, 2, 1, 2, 3)):
            tracker.log(start + step, {"rollout/accuracy": start + number})
        tracker.close()
    files = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    wanted = [
        [(start + number, start + step, start + number) for number, step in enumerate((0, 1, 2, 1, 2, 3))]
        for start in (0, 5)
    ]
    wait_until(lambda: [wandb_values(file) for file in files] == wanted, f"{wanted} in the files")


def test_tensorboard_reads_back_what_was_logged(tmp_path: Path) -> None:
    for step in (0, 1):  # the second opening is a resumed run
        tracker = TensorBoardTracker(tmp_path)
        tracker.log(step, {"rollout/accuracy": 0.25 + step})
        tracker.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("rollout/accuracy")] == [(0, 0.25), (1, 1.25)]


def test_tensorboard_shows_a_step_that_is_done_again_once(tmp_path: Path) -> None:
    # Killed after step 3 and continued from the checkpoint after step 1; then a lost learner takes the run back to step 2.
    for run, steps in enumerate([(0, 1, 2, 3), (1, 2, 3, 2, 3, 4)]):
        tracker = TensorBoardTracker(tmp_path)
        for number, step in enumerate(steps):
            tracker.log(step, {"rollout/accuracy": 10.0 * run + number})
        tracker.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("rollout/accuracy")] == [
        (0, 0.0),
        (1, 10.0),
        (2, 13.0),
        (3, 14.0),
        (4, 15.0),
    ]


def test_a_server_s_password_is_in_no_message_and_does_not_stop_the_run() -> None:
    with served_by(BaseHTTPRequestHandler) as address:
        check_answers("mlflow", address.replace("//", "//me:s3cret@"), "set it")
    with pytest.raises(ConfigError) as refused:
        check_answers("mlflow", "http://me:s3cret@127.0.0.1:1", "set it")
    assert "s3cret" not in str(refused.value)
    assert "http://127.0.0.1:1 does not answer" in str(refused.value)
