"""The generated tables in docs/reference, against the config tree, the catalogue and the rules of a continued run."""

import re
from pathlib import Path

import pytest

from rlep.config.schema import Config
from rlep.driver.run_directory import CHANGEABLE
from rlep.metrics import catalogue
from rlep.metrics.catalogue import EVENTS, METRICS
from scripts import faults_table, metrics_table
from scripts.config_table import DOCUMENT, document

TEXT = DOCUMENT.read_text(encoding="utf-8")


def test_the_table_of_keys_is_the_present_one() -> None:
    assert document(TEXT) == TEXT, "run: python scripts/config_table.py"


def test_every_key_stands_in_the_table_once() -> None:
    defaults = Config()
    keys = [f"{name}.{key}" for name in Config.model_fields for key in type(getattr(defaults, name)).model_fields]
    assert re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \|", TEXT, re.M) == keys


def test_defaults_and_bounds_stand_as_written_in_toml() -> None:
    for row in (
        "| `rollout.top_p` | number > 0, ≤ 1 | `1.0` |",
        "| `update.lr` | number > 0 | `1e-06` |",
        "| `verifier.cpus` | number ≥ 0 | `0.0` |",  # the role's own, not that of all actors
        "| `pool.url` | text | – |",
        "| `loss.level` | `token`, `sequence` | `token` |",
        "| `run.seed` | integer ≥ 0, < 2147483648 | `0` |",
    ):
        assert row in TEXT


def test_the_keys_that_may_change_on_resume_are_those_of_the_code() -> None:
    section = TEXT.split("## Changing a run that has begun")[1].split("Anything else is refused")[0]
    named = set(re.findall(r"`([a-z]+\.[a-z_*]+)`", section.split("not the steps:")[1]))
    assert named == {name + "*" if name.endswith(".") else name for name in CHANGEABLE}


def test_every_preset_is_listed() -> None:
    listed = set(re.findall(r"`(configs/[a-z0-9-]+\.toml)`", TEXT))
    root = Path(__file__).parents[2]
    assert listed == {str(file.relative_to(root)) for file in (root / "configs").glob("*.toml")}


def test_the_tables_of_metrics_and_events_are_the_present_ones() -> None:
    text = metrics_table.DOCUMENT.read_text(encoding="utf-8")
    assert metrics_table.document(text) == text, "run: python scripts/metrics_table.py"
    assert text.count("\n| `") == len(METRICS) + len(EVENTS)


def test_the_table_of_faults_is_the_present_one() -> None:
    text = faults_table.DOCUMENT.read_text(encoding="utf-8")
    assert faults_table.document(text) == text, "run: python scripts/faults_table.py"
    assert set(map(int, re.findall(r"^\| (\d+) \|", text, re.M))) == faults_table.FAULTS.keys()


@pytest.mark.parametrize(
    "marker",
    [
        "fault(99, outcome='equal', operator='x')",
        "fault(1, outcome='fine', operator='x')",
        "fault(1, outcome='equal', operator='')",
        "fault(1, outcome='equal')",
    ],
)
def test_a_marker_that_means_nothing_is_refused_by_its_test(tmp_path: Path, marker: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text(f"@pytest.mark.{marker}\ndef test_kill(): ...\n")
    with pytest.raises(ValueError, match=r"^tests/test_one\.py::test_kill: .*want fault\(NUMBER, outcome="):
        faults_table.marked_tests(tmp_path)


def test_a_marked_test_is_a_row_and_a_fault_without_one_is_said_to_be_untested(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    source = "@pytest.mark.fault(2, outcome='equal', operator='nothing')\nasync def test_kill(): ...\n"
    (tmp_path / "tests" / "test_one.py").write_text(source)
    rows = faults_table.table(faults_table.marked_tests(tmp_path)).splitlines()[2:]
    assert len(rows) == len(faults_table.FAULTS)
    assert rows[0] == "| 1 | a generator is killed | **not tested** | |  |"
    assert "**not tested** | | `benchmarks/chaos.py`, in `make bench-soak`" in rows[28]
    assert rows[1] == (
        "| 2 | a verifier is killed | equal to the undisturbed run | nothing | `tests/test_one.py::test_kill` |"
    )


def test_every_metric_and_event_is_recorded_somewhere() -> None:
    own = Path(catalogue.__file__)
    code = "".join(file.read_text(encoding="utf-8") for file in own.parents[1].rglob("*.py") if file != own)
    stems = {metric.name: metric.name.partition("/<")[0] for metric in METRICS}
    timed = {f"time/{phase}" for phase in re.findall(r'\.phase\("(\w+)"\)', code)}  # see ``Clock.phase``
    assert [name for name, stem in stems.items() if f'"{stem}' not in code and stem not in timed] == []
    assert [event for event in EVENTS if f'"{event}"' not in code] == []
