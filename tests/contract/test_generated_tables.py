"""The tables that the documentation site is built with, against the config tree, the catalogue and the pages that show them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlep.config.schema import Config
from rlep.metrics import catalogue
from rlep.metrics.catalogue import EVENTS, METRICS
from scripts.config_table import table as keys
from scripts.tables import GENERATED, MARKER, with_tables

ROOT = Path(__file__).parents[2]


def test_every_table_stands_on_one_page() -> None:
    shown = [name for page in (ROOT / "docs").rglob("*.md") for name in MARKER.findall(page.read_text("utf-8"))]
    assert sorted(shown) == sorted(GENERATED)


def test_a_marker_becomes_its_table_and_an_unknown_one_an_error() -> None:
    page = with_tables("Before.\n\n<!-- generated: changeable -->\n\nAfter.")
    assert page.startswith("Before.\n\n`run.steps`, `run.name`, ")
    assert "`generator.*`" in page
    assert page.endswith("\n\nAfter.")
    with pytest.raises(KeyError, match="tabel"):
        with_tables("<!-- generated: tabel -->")


def test_every_key_stands_in_the_table_once() -> None:
    defaults = Config()
    wanted = [f"{name}.{key}" for name in Config.model_fields for key in type(getattr(defaults, name)).model_fields]
    assert re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \|", keys(), re.M) == wanted


def test_defaults_and_bounds_stand_as_written_in_toml() -> None:
    table = keys()
    for row in (
        "| `rollout.top_p` | number > 0, ≤ 1 | `1.0` |",
        "| `update.lr` | number > 0 | `1e-06` |",
        "| `verifier.cpus` | number ≥ 0 | `0.0` |",  # the role's own, not that of all actors
        "| `pool.url` | text | – |",
        "| `loss.level` | `token`, `sequence` | `token` |",
        "| `run.seed` | integer ≥ 0, < 2147483648 | `0` |",
    ):
        assert row in table


def test_every_preset_and_command_and_alert_stands_in_its_table() -> None:
    listed = re.findall(r"^\| `(configs/\S+)` \| \w", GENERATED["presets"](), re.M)
    assert sorted(listed) == sorted(str(file.relative_to(ROOT)) for file in (ROOT / "configs").glob("*/*.*"))
    assert "| `rlep pool stats [CONFIG.toml…]` | " in GENERATED["commands"]()
    assert "| `RlepNoStep` | page | " in GENERATED["alerts"]()


def test_every_metric_and_event_is_recorded_somewhere() -> None:
    own = Path(catalogue.__file__)
    code = "".join(file.read_text(encoding="utf-8") for file in own.parents[1].rglob("*.py") if file != own)
    stems = {metric.name: metric.name.partition("/<")[0] for metric in METRICS}
    timed = {f"time/{phase}" for phase in re.findall(r'\.phase\("(\w+)"\)', code)}  # see ``Clock.phase``
    assert [name for name, stem in stems.items() if f'"{stem}' not in code and stem not in timed] == []
    assert [event for event in EVENTS if f'"{event}"' not in code] == []
