"""The dashboard and the alert rules: as their generator writes them, and over metrics that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from rlep.metrics.catalogue import METRICS
from rlep.metrics.series import LAST_PROGRESS, STEP, label_names, series_name
from scripts.monitoring import ALERTS, HOME, PANELS, dashboard, files

SERIES = {f"ray_{series_name(m)}": {"run", *label_names(m)} for m in METRICS if m.kind == "number"}
SERIES |= {f"ray_{STEP}": {"run"}, f"ray_{LAST_PROGRESS}": {"run"}}


def expressions() -> Iterator[tuple[str, str]]:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$run", ".*")
    for alert in ALERTS:
        yield alert.name, alert.expression


@pytest.mark.parametrize("path", list(files()), ids=lambda path: path.name)
def test_the_files_are_what_the_generator_writes(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == files()[path], "run `python scripts/monitoring.py`"


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_an_expression_is_promql_over_known_series_and_labels(where: str, expression: str) -> None:
    promql_parser.parse(expression)
    names = re.findall(r"ray_rlep_\w+", expression)
    assert names
    for name in names:
        assert name in SERIES, f"{where}: {name}"
    for name, conditions in re.findall(r"(ray_rlep_\w+){([^}]*)}", expression):
        assert set(re.findall(r"(\w+)=", conditions)) <= SERIES[name], f"{where}: {conditions}"
    labels = {label for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(", ")}
    assert labels <= set().union(*(SERIES[name] for name in names)), where


def test_panels_are_distinct_and_do_not_overlap() -> None:
    panels: list[dict[str, Any]] = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert sum(panel["type"] == "timeseries" for panel in panels) == sum(map(len, PANELS.values()))


def test_kubernetes_has_the_same_rules_and_dashboard() -> None:
    monitor, rule, board = yaml.safe_load_all((HOME / "kubernetes.yaml").read_text())
    assert rule["spec"] == yaml.safe_load((HOME / "rules.yml").read_text())
    assert json.loads(board["data"]["rlep.json"]) == dashboard()
    cluster = yaml.safe_load((HOME.parent / "kubernetes" / "raycluster.yaml").read_text())
    assert monitor["spec"]["selector"]["matchLabels"] == {"ray.io/cluster": cluster["metadata"]["name"]}
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    for group in groups:
        (container,) = group["template"]["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert str(ports["metrics"]) == group["rayStartParams"]["metrics-export-port"]


def test_compose_scrapes_the_port_that_its_nodes_export_on() -> None:
    services = yaml.safe_load((HOME.parent / "compose.yaml").read_text())["services"]
    (job,) = yaml.safe_load((HOME / "prometheus.yml").read_text())["scrape_configs"]
    (nodes,) = job["dns_sd_configs"]
    for name in nodes["names"]:
        assert f"--metrics-export-port={nodes['port']}" in services[name]["command"]
    for name in ("prometheus", "grafana"):
        assert services[name]["profiles"] == ["monitoring"]
        assert all(port.startswith("127.0.0.1:") for port in services[name]["ports"])
        for volume in services[name]["volumes"]:
            source = volume.partition(":")[0]
            assert not source.startswith("./") or (HOME.parent / source).is_file()
