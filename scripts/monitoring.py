"""Generates Grafana's dashboard and Prometheus' alert rules in deploy/monitoring/, from the catalogue of metrics.

``python scripts/monitoring.py`` writes them; a contract test compares, and parses every expression.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rlep.metrics.catalogue import METRICS, Metric
from rlep.metrics.series import LAST_PROGRESS, STEP, label_names, series_name

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "deploy" / "monitoring"
HEADER = "# Written by scripts/monitoring.py.\n"


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves of one or more metrics of the catalogue."""

    title: str
    unit: str
    """Grafana's name of it."""
    metrics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule."""

    name: str
    severity: str
    """``page``: training has stopped or is wrong. ``ticket``: look at it today."""
    expression: str
    for_: str
    summary: str
    action: str


PANELS: dict[str, tuple[Panel, ...]] = {
    "Does it learn": (
        Panel("Correct fresh rollouts", "percentunit", ("rollout/accuracy",)),
        Panel("Held-out accuracy", "percentunit", ("evaluation/<data_source>/avg",)),
        Panel("Reward", "none", ("rollout/reward", "replay/reward")),
        Panel("Groups with a signal", "percentunit", ("group/informative", "group/solved_by_replay")),
        Panel("Questions solved so far, and lost", "none", ("prompts/solved", "prompts/lost")),
        Panel("Response length", "none", ("rollout/length_mean", "replay/length_mean")),
    ),
    "Replay": (
        Panel("Tokens in the loss", "none", ("loss/tokens/<source>",)),
        Panel("Absolute advantage in the loss", "none", ("advantage/mass/<source>",)),
        Panel("Largest importance ratio", "none", ("ratio/max/<source>",)),
        Panel("Mean log-prob under the policy", "none", ("logprob/fresh", "logprob/replay")),
        Panel("Prompts with replays", "percentunit", ("pool/hit",)),
        Panel("Age of live replays", "none", ("replay/age",)),
    ),
    "Update": (
        Panel("Entropy", "none", ("update/entropy/<source>",)),
        Panel("Divergence from the step's policy", "none", ("update/approx_kl/<source>",)),
        Panel("Gradient norm", "none", ("update/grad_norm", "update/grad_norm_max")),
        Panel("Clipped above", "percentunit", ("update/clip_fraction_high/<source>",)),
        Panel("Updates applied and skipped", "none", ("update/count", "update/skipped")),
        Panel(
            "Log-prob difference of generator and learner",
            "none",
            ("weights/logprob_difference", "weights/logprob_tolerance"),
        ),
    ),
    "Time and actors": (
        Panel(
            "Where a step's time goes",
            "s",
            ("time/generate", "time/verify", "time/replay", "time/score", "time/update", "time/publish"),
        ),
        Panel("Step", "s", ("time/step",)),
        Panel("Tokens a second", "none", ("rollout/tokens_per_second", "update/tokens_per_second")),
        Panel("Actors at work", "none", ("actors/alive/<role>",)),
        Panel("Restarts", "none", ("actors/restarts/<role>",)),
        Panel("KV cache in use", "percentunit", ("generator/kv_use",)),
        Panel("Requests set back for lack of KV cache", "none", ("generator/preempted",)),
        Panel("Verdicts", "none", ("verifier/status/<status>",)),
    ),
}


def series(name: str, by: Sequence[str] = (), condition: str = "") -> str:
    """The newest value of a metric by run and labels, whichever of a run's processes set it."""
    metric = next(one for one in METRICS if one.name == name)
    unknown = set(by) - set(label_names(metric))
    assert not unknown, f"{name} has no label {unknown}"
    return f"max by ({', '.join(('run', *by))}) (ray_{series_name(metric)}{{{condition}}})".replace("{}", "")


def _above_its_hour(name: str, floor: str) -> str:
    own = series(name, ("source",))
    return f"{own} > 5 * quantile_over_time(0.5, ({own})[1h:1m]) and {own} > {floor}"


_REPLAYED, _MASS = series("loss/tokens/<source>", condition='source="replay"'), "advantage/mass/<source>"
_REPLAY_MASS = series(_MASS, condition='source="replay"')
_ENTROPY = series("update/entropy/<source>", condition='source="fresh"')
_VERDICTS = series("verifier/status/<status>", ("status",))
_FAILED = series("verifier/status/<status>", ("status",), 'status=~"timeout|out_of_memory|crashed"')
_DIFFERENCE = series("weights/logprob_difference")
_RESTARTS = series("actors/restarts/<role>", ("role",))

ALERTS: tuple[Alert, ...] = (
    Alert(
        "RlepNoStep",
        "page",
        f"time() - max by (run) (ray_{LAST_PROGRESS}) > clamp_min(5 * {series('time/step')}, 600)",
        "1m",
        "no step, and nothing of an evaluation, for ten minutes and five times the last step",
        "`rlep status` and `rlep top` say who waits for whom; see the run's events.jsonl.",
    ),
    Alert(
        "RlepNoActor",
        "page",
        f"{series('actors/alive/<role>', ('role',))} == 0",
        "5m",
        "no {{ $labels.role }} is at work",
        "Look for its error in `logs/` of the run directory, and for room on the cluster in `ray status`.",
    ),
    Alert(
        "RlepRestarts",
        "page",
        f"{_RESTARTS} - min_over_time(({_RESTARTS})[30m:1m]) > 3",
        "0m",
        "more than three restarts of {{ $labels.role }} in half an hour",
        "The actors die again and again: memory, a bad GPU, or a node that goes. `logs/` has the last error.",
    ),
    Alert(
        "RlepUpdateSkipped",
        "page",
        f"{series('update/skipped')} > 0 or {series('metrics/nonfinite')} > 0",
        "0m",
        "an update was not applied, or a number was not finite",
        "events.jsonl has the reason of a skipped update; a gradient that is not finite points at the learning rate.",
    ),
    Alert(
        "RlepNoReplays",
        "page",
        f"{_REPLAYED} == 0 and on (run) {series('pool/hit')} >= 0",
        "30m",
        "replays are wanted, and none reaches the loss",
        "`rlep pool stats` says what is there; replay.minimum and replay.method say who may have one.",
    ),
    Alert(
        "RlepLogprobDifference",
        "page",
        f"{_DIFFERENCE} > 5 * quantile_over_time(0.5, ({_DIFFERENCE})[1h:1m]) "
        f"and {_DIFFERENCE} > {series('weights/logprob_tolerance')}",
        "5m",
        "generators and learner disagree on a token five times more than in the last hour, and more than is allowed on average",
        "Generators may serve other weights or another type than they should: `rlep check --try` compares them.",
    ),
    Alert(
        "RlepRatio",
        "ticket",
        _above_its_hour("ratio/max/<source>", "2"),
        "5m",
        "the largest importance ratio of {{ $labels.source }} tokens is five times its hour's median",
        "The policy moves away within a step: fewer updates a step, a smaller update.lr, or a tighter clip.",
    ),
    Alert(
        "RlepDivergence",
        "ticket",
        _above_its_hour("update/approx_kl/<source>", "0.001"),
        "5m",
        "the divergence of {{ $labels.source }} tokens from the step's policy is five times its hour's median",
        "As for RlepRatio; for replays alone, the pool's responses are far from the policy.",
    ),
    Alert(
        "RlepEntropy",
        "ticket",
        f"{_ENTROPY} < 0.3 * max_over_time(({_ENTROPY})[6h:1m])",
        "10m",
        "the entropy of fresh tokens fell below a third of what it was within six hours",
        "The policy collapses to few responses: look at groups in `rlep console`; raise loss.clip_high or lower update.lr.",
    ),
    Alert(
        "RlepReplayMass",
        "ticket",
        f"{_REPLAY_MASS} > 0.5 * sum by (run) ({series(_MASS, ('source',))})",
        "30m",
        "replays are more than half of the absolute advantage in the loss",
        "Lower replay.count or replay.weight: the policy learns more from the pool than from itself.",
    ),
    Alert(
        "RlepVerifier",
        "ticket",
        f"sum by (run) ({_FAILED}) > 0.01 * sum by (run) ({_VERDICTS})",
        "10m",
        "more than 1 % of the verdicts are timeouts, crashes or lacks of memory",
        "Such responses count as wrong: see verifier.cpu_seconds (memory is 768 MiB), and `rlep grade` on what failed.",
    ),
)


def rules() -> dict[str, Any]:
    """The content of rules.yml."""
    return {
        "groups": [
            {
                "name": "rlep",
                "rules": [
                    {
                        "alert": alert.name,
                        "expr": alert.expression,
                        "for": alert.for_,
                        "labels": {"severity": alert.severity},
                        "annotations": {"summary": f"{{{{ $labels.run }}}}: {alert.summary}", "action": alert.action},
                    }
                    for alert in ALERTS
                ],
            }
        ]
    }


def dashboard() -> dict[str, Any]:
    """The content of dashboard.json, as Grafana imports it; rows of three panels."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row, members in PANELS.items():
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": row, "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}}
        )
        y += 1
        for place, panel in enumerate(members):
            at = {"h": 8, "w": 8, "x": 8 * (place % 3), "y": y + 8 * (place // 3)}
            panels.append(_panel(panel, len(panels) + 1, at))
        y += 8 * -(-len(members) // 3)
    source = {"type": "prometheus", "uid": "${source}"}
    runs = f"label_values(ray_{STEP}, run)"
    variables = [
        {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "run",
            "label": "Run",
            "type": "query",
            "datasource": source,
            "query": runs,
            "definition": runs,
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "current": {"text": "All", "value": "$__all"},
        },
    ]
    return {
        "title": "rlep",
        "uid": "rlep",
        "tags": ["rlep"],
        "schemaVersion": 39,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": variables},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    targets = []
    for letter, name in zip("ABCDEF", panel.metrics, strict=False):
        metric = next(one for one in METRICS if one.name == name)
        several = " ".join(f"{{{{{label}}}}}" for label in ("run", *label_names(metric)))
        shown = several if len(panel.metrics) == 1 else f"{several} {name.split('/<')[0]}"
        expression = series(name, label_names(metric), 'run=~"$run"')
        targets.append({"refId": letter, "expr": expression, "legendFormat": shown})
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": "; ".join(f"{name}: {_metric(name).help}" for name in panel.metrics),
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": {"showPoints": "auto"}}, "overrides": []},
        "targets": targets,
    }


def _metric(name: str) -> Metric:
    return next(one for one in METRICS if one.name == name)


def alert_table() -> str:
    """Return the table of alerts, which the site shows on the page *Monitor runs*."""
    rows = []
    for alert in ALERTS:
        when = alert.summary.replace("{{ $labels.", "*").replace(" }}", "*")
        rows.append(f"| `{alert.name}` | {alert.severity} | {when} | {alert.action} |")
    return "\n".join(["| Alert | | When | What to do |", "|---|---|---|---|", *rows])


def kubernetes() -> list[dict[str, Any]]:
    """The content of kubernetes.yaml: what the Prometheus operator and Grafana's sidecar pick up by themselves."""
    labels = {"app.kubernetes.io/part-of": "rlep"}
    return [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PodMonitor",
            "metadata": {"name": "rlep", "labels": labels},
            "spec": {
                "selector": {"matchLabels": {"ray.io/cluster": "rlep"}},
                "podMetricsEndpoints": [{"port": "metrics", "interval": "15s"}],
            },
        },
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": "rlep", "labels": labels},
            "spec": rules(),
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "rlep-dashboard", "labels": {**labels, "grafana_dashboard": "1"}},
            "data": {"rlep.json": json.dumps(dashboard())},
        },
    ]


def files() -> dict[Path, str]:
    """Everything that is written, by path."""
    return {
        HOME / "rules.yml": HEADER + yaml.safe_dump(rules(), sort_keys=False, width=120),
        HOME / "kubernetes.yaml": HEADER + yaml.safe_dump_all(kubernetes(), sort_keys=False, width=120),
        HOME / "dashboard.json": json.dumps(dashboard(), indent=1) + "\n",
    }


if __name__ == "__main__":
    HOME.mkdir(exist_ok=True)
    for path, content in files().items():
        path.write_text(content, encoding="utf-8")
