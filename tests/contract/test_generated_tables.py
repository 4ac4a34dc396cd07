"""The tables that pages show, against the config tree, the catalogue and what the pages have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.parts.hub_models import MODELS
from rlep.config.schema import Config
from rlep.metrics import catalogue
from rlep.metrics.catalogue import EVENTS, METRICS
from scripts.config_table import table as keys
from scripts.model_table import table as models
from scripts.tables import GENERATED, PAGES, PLACE_OF_TABLE, with_tables

ROOT = Path(__file__).parents[2]


def test_every_table_stands_on_one_page() -> None:
    shown = [name for page in PAGES.rglob("*.md") for _, name in PLACE_OF_TABLE.findall(page.read_text("utf-8"))]
    assert sorted(shown) == sorted(GENERATED)


@pytest.mark.parametrize(
    "page", [page for page in PAGES.rglob("*.md") if "<!-- generated" in page.read_text("utf-8")], ids=str
)
def test_pages_have_the_tables_of_this_code(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text == with_tables(text), "run `python -m scripts.tables`"


def test_only_the_place_of_a_table_is_written_and_an_unknown_name_is_an_error() -> None:
    page = with_tables("Before.\n\n<!-- generated: changeable -->\nold\n<!-- end -->\n\nAfter.")
    assert page.startswith("Before.\n\n<!-- generated: changeable -->\n\n`run.steps`, `run.name`, ")
    assert "`generator.*`" in page
    assert page.endswith("\n\n<!-- end -->\n\nAfter.")
    assert "old" not in page
    with pytest.raises(KeyError, match="tabel"):
        with_tables("<!-- generated: tabel -->\n<!-- end -->")


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


def test_models_have_the_parameters_that_their_pages_state() -> None:
    """In billions, as published."""
    published = {
        "Qwen/Qwen3-0.6B": 0.6,
        "Qwen/Qwen3-1.7B": 1.7,
        "Qwen/Qwen3-4B": 4.0,
        "Qwen/Qwen3-8B": 8.2,
        "Qwen/Qwen3-14B": 14.8,
        "Qwen/Qwen2.5-0.5B-Instruct": 0.49,
        "Qwen/Qwen2.5-1.5B-Instruct": 1.54,
        "Qwen/Qwen2.5-3B-Instruct": 3.09,
        "Qwen/Qwen2.5-Math-7B": 7.61,
        "Qwen/Qwen2.5-14B-Instruct": 14.7,
        "HuggingFaceTB/SmolLM2-135M-Instruct": 0.135,
        "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1.71,
        "HuggingFaceTB/SmolLM3-3B": 3.08,
        "meta-llama/Llama-3.2-1B-Instruct": 1.24,
        "meta-llama/Llama-3.2-3B-Instruct": 3.21,
        "meta-llama/Llama-3.1-8B-Instruct": 8.03,
    }
    assert published.keys() == MODELS.keys()
    for name, billions in published.items():
        assert MODELS[name].parameters / 1e9 == pytest.approx(billions, rel=0.015), name


def test_each_model_s_machine_is_the_smallest_that_the_plan_takes() -> None:
    rows = dict(re.findall(r"^\| `(\S+)` \| .* GB (\| .* \| .*) \|$", models(), re.M))
    assert rows["HuggingFaceTB/SmolLM2-135M-Instruct"] == "| 1x24gb | 1x24gb-lora"
    assert rows["Qwen/Qwen2.5-Math-7B"] == "| 8x80gb | 1x24gb-lora"
    assert rows["Qwen/Qwen3-14B"] == "| 8x80gb | 1x80gb-lora"
    assert len(rows) == len(MODELS)
