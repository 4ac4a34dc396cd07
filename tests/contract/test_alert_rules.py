"""The alert rules in Prometheus' own program: whether it takes them, and when each of them fires and when not."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
import yaml

from scripts.monitoring import ALERTS, HOME, Alert

REQUIRED = "RLEP_PROMTOOL_TESTS"
"""Where this is 1 promtool must be there."""
CASES = yaml.safe_load((HOME / "rules_test.yml").read_text(encoding="utf-8"))["tests"]
TRIED = [case for test in CASES for case in test["alert_rule_test"]]


@pytest.fixture(scope="module")
def promtool() -> str:
    """It is on no package index; `.ci/run` unpacks Debian's package."""
    found = shutil.which("promtool")
    if found is None:
        reason = "promtool is not installed: it is in the package prometheus (Debian)"
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(f"{reason}; with {REQUIRED}=1 that is an error")
    return found


@pytest.mark.parametrize("command", [("check", "rules.yml"), ("test", "rules_test.yml")])
def test_prometheus_takes_the_rules_and_they_fire_when_they_should(promtool: str, command: tuple[str, str]) -> None:
    done = subprocess.run(
        [promtool, command[0], "rules", command[1]], cwd=HOME, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout or command[0] == "test"


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_every_rule_has_a_case_in_which_it_fires_and_an_earlier_one_in_which_it_does_not(alert: Alert) -> None:
    fires = [case for case in TRIED if case["alertname"] == alert.name and case["exp_alerts"]]
    assert {one["exp_annotations"]["action"] for case in fires for one in case["exp_alerts"]} == {alert.action}
    assert {one["exp_labels"]["severity"] for case in fires for one in case["exp_alerts"]} == {alert.severity}
    for test in CASES:
        own = [case for case in test["alert_rule_test"] if case["alertname"] == alert.name]
        assert not own or not own[0]["exp_alerts"], test["name"]
