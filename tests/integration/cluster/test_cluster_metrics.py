"""Prometheus metrics, heartbeats and event log of actors on a real local Ray, while a run goes on."""

from __future__ import annotations

import json
import os
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import llmperf
from cluster.telemetry.metrics import METRICS
from llmperf_common.extras import require
from llmperf_common.ledger.holder import boot_clock_s
from llmperf_common.ledger.looking import look_at_sqlite
from tests.support.collecting import replay_file, write_kernels

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
NUM_KERNELS = 30


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A local Ray without GPUs whose metrics come every second."""
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    module = require("ray", "cluster")
    module.init(
        address="local",
        num_cpus=2,
        num_gpus=0,
        include_dashboard=False,
        log_to_driver=False,
        _system_config={"metrics_report_interval_ms": 1000},
    )
    yield module
    module.shutdown()


def scraped(ray: Any) -> str:
    """What Prometheus would read of the one node."""
    (node,) = ray.nodes()
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read(), "utf-8")


def test_a_run_can_be_watched_by_prometheus(ray: Any, tmp_path: Path) -> None:
    names = [f"k{n}" for n in range(NUM_KERNELS)]
    slow = [{"kernel": name, "action": "slow", "seconds": 0.015} for name in names]
    ended: list[Any] = []
    told: list[llmperf.CollectProgress] = []

    def collect() -> None:
        ended.append(
            llmperf.collect_on_cluster(
                write_kernels(tmp_path / "kernels", names),
                tmp_path / "data",
                device=replay_file(tmp_path / "r.json", behaviours=slow),
                samples_per_kernel=6,
                overrides={"timing.spin_up_ms": 0, "store.commit_interval_s": 0.2},
                progress=told.append,
            )
        )

    run = threading.Thread(target=collect)
    run.start()
    wanted = {one.name for one in METRICS if not one.name.startswith("llmperf_device_")}
    text, found = "", set[str]()
    deadline_s = time.monotonic() + 90
    while not wanted <= found and time.monotonic() < deadline_s:
        time.sleep(1)
        text = scraped(ray)
        found = {
            name for name in wanted if re.search(rf"^ray_{name}(_total|_bucket)?{{", text, re.M)
        }
        if ended:
            break
    assert wanted == found
    (line,) = re.findall(r'^ray_llmperf_samples_total{.*status="ok".*$', text, re.M)[:1]
    assert 'device_class="replay"' in line
    assert re.search(r'seat="[^"]+/cpu0"', line)
    assert float(line.split()[-1]) > 0
    (state,) = re.findall(r'^ray_llmperf_worker_state{.*state="collecting".*$', text, re.M)[:1]
    assert float(state.split()[-1]) == 1
    assert re.search(r'^ray_llmperf_ledger_seconds_count{.*call="commit"', text, re.M)
    run.join(timeout=100)
    assert ended[0].num_ok == NUM_KERNELS * 6
    assert (told[-1].num_tasks_done, told[-1].num_ok) == (NUM_KERNELS, NUM_KERNELS * 6)
    assert told[-1].eta_s == 0
    view = look_at_sqlite(tmp_path / "data" / "ledger", [range(NUM_KERNELS)], now_s=boot_clock_s())
    assert view is not None
    heartbeats = [json.loads(one.document) for one in view.workers]
    (driver,) = (one for one in heartbeats if one.get("role") == "driver")
    assert (driver["state"], driver["seats"], driver["not_collecting"]) == (
        "ended",
        {"done": 1},
        [],
    )
    (report,) = (one for one in heartbeats if one.get("role") != "driver")
    assert (report["state"], report["ok"]) == ("ended", NUM_KERNELS * 6)
    assert report["seat"].endswith("/cpu0")
    assert report["actor_id"]
    assert report["node_id"]
    assert len(json.dumps(report)) < 2048
