"""``tracking.sinks = ["prometheus"]`` on a real Ray: the metrics port of the node shows the run's numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.request import urlopen

import ray

from rlep.actors.prometheus_gauges import PrometheusTracker, remove_targets, write_targets
from rlep.actors.ray_private import start_private_cluster
from rlep.core.paths import private_directory
from tests.waiting import wait_until


def test_numbers_of_a_step_are_scraped_from_rays_port(tmp_path: Path) -> None:
    home = private_directory("prometheus")
    start_private_cluster(home, "rlep-prometheus", 1, deadline_s=180)
    try:
        tracker = PrometheusTracker("scraped", every_s=1.0)
        tracker.log(41, {"ratio/max/replay": 2.5, "evaluation/AIME 24/avg": 0.125, "group/replays/0": 3.0})
        write_targets(tmp_path)
        ((target,),) = [one["targets"] for one in json.loads((tmp_path / "prometheus.json").read_text())]
        assert target.startswith("127.0.0.1:")
        url = f"http://{target}/metrics"
        found: dict[str, float] = {}

        def scraped() -> bool:
            with urlopen(url, timeout=10) as answer:
                text = answer.read().decode()
            for labels in ('run="scraped",source="replay"', 'data_source="AIME 24"', 'run="scraped"}'):
                for name, value in re.findall(
                    rf"^(ray_rlep_\w+){{[^\n]*{labels}[^\n]* ([\d.e+]+)$", text, re.MULTILINE
                ):
                    found[name] = float(value)
            return len(found) >= 4

        wait_until(scraped, "the run's numbers on Ray's metrics port")
        tracker.close()
        remove_targets(tmp_path)
        assert list(tmp_path.iterdir()) == []
    finally:
        ray.shutdown()
    assert found.pop("ray_rlep_last_progress_timestamp_seconds") > 1.7e9
    assert found == {"ray_rlep_ratio_max": 2.5, "ray_rlep_evaluation_avg": 0.125, "ray_rlep_step": 42.0}
