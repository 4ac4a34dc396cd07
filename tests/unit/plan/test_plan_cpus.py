"""Whether a run's actors fit, and the keys that help where they do not."""

from __future__ import annotations

from typing import Any

import pytest

from rlep.config.schema import Config
from rlep.config.settings import load_config, parse_config
from rlep.plan.devices import cpu_shortage, wanted_cpus


def config_of(**sections: dict[str, Any]) -> Config:
    return parse_config(sections)


def test_the_defaults_fit_two_cores_for_every_command() -> None:
    assert wanted_cpus(Config()) == 2
    assert wanted_cpus(Config(), learns=False) == 1
    assert cpu_shortage(Config(), 2) == ""
    assert cpu_shortage(Config(), 1, learns=False) == ""


def test_actors_that_share_devices_are_counted_once() -> None:
    config = config_of(
        cluster={"placement": "colocated"}, generator={"count": 2, "cpus": 3}, learner={"ranks": 2, "cpus": 1}
    )
    assert wanted_cpus(config) == 6
    assert cpu_shortage(config, 6) == ""
    assert cpu_shortage(config, 5).endswith(
        "one of these helps: --set cluster.cpus=6 (the actors then share the cores)"
    )


@pytest.mark.parametrize(
    ("sections", "have", "message"),
    [
        (
            {},
            1,
            "the actors ask for 2 CPUs (generator 1 x 1, learner 1 x 1), there is 1 CPU; "
            "one of these helps: --set cluster.cpus=2 (the actors then share the cores)",
        ),
        (  # 4 + 0.5 + 1: the generators may have 2.5 in all, or 0.62 each
            {"generator": {"count": 4}, "verifier": {"cpus": 0.5}},
            4,
            "the actors ask for 5.5 CPUs (generator 4 x 1, verifier 1 x 0.5, learner 1 x 1), there are 4 CPUs; one of these "
            "helps: --set generator.count=2, --set generator.cpus=0.62, --set cluster.cpus=6 (the actors then share the cores)",
        ),
        (
            {"verifier": {"cpus": 0.5}},
            2,
            "the actors ask for 2.5 CPUs (generator 1 x 1, verifier 1 x 0.5, learner 1 x 1), there are 2 CPUs; one of these "
            "helps: --set generator.cpus=0.5, --set verifier.cpus=0, --set learner.cpus=0.5, "
            "--set cluster.cpus=3 (the actors then share the cores)",
        ),
        (
            {"environment": {"factory": "rlep.environments.guess_number:GuessNumber", "count": 3, "cpus": 1}},
            4,
            "the actors ask for 5 CPUs (generator 1 x 1, environment 3 x 1, learner 1 x 1), there are 4 CPUs; one of these "
            "helps: --set environment.count=2, --set environment.cpus=0.66, "
            "--set cluster.cpus=5 (the actors then share the cores)",
        ),
    ],
)
def test_who_asks_for_what_and_what_helps(sections: dict[str, Any], have: int, message: str) -> None:
    assert cpu_shortage(config_of(**sections), have) == message


@pytest.mark.parametrize("have", [1, 2, 3, 5, 8])
def test_every_override_that_is_named_helps_alone(have: int) -> None:
    given = ["generator.count=3", "generator.cpus=2", "learner.ranks=2", "verifier.cpus=0.5", "verifier.count=4"]
    message = cpu_shortage(load_config([], given), have)
    helping = [word.strip(",") for word in message.split("--set ")[1:]]
    assert helping
    for override in helping:
        key, value = override.split(" ")[0].strip(",").split("=")
        changed = load_config([], [*given, f"{key}={value}"])
        assert cpu_shortage(changed, changed.cluster.cpus or have) == "", override
