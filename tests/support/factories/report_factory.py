"""Schema-true tables of made-up numbers for reports, and a checker of the page made from them."""

from __future__ import annotations

import datetime as dt
import re
from html.parser import HTMLParser
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from llmperf.html_report import DatasetView, EvaluationView
from llmperf_common import schemas
from llmperf_common.records import SentinelReading

EVIL = "<script>alert('x')</script>\"&quot;\u202e\x00Ünïcode-核 </style></svg><img src=http://e.vil/a.png>"
STATUSES = (
    "build_error",
    "build_timeout",
    "device_fault",
    "hang",
    "over_time_budget",
    "out_of_memory",
    "launch_error",
    "quarantined",
    "a_code_of_tomorrow",
)
REGIMES = ("idle_sm", "under_utilised", "fully_utilised")
STRATEGIES = ("memory_analysis", "simple", "decoupled")
START = dt.datetime(2025, 11, 3, 9, 0, tzinfo=dt.UTC)


def make_kernels(num_kernels: int, *, evil: bool = False) -> pa.Table:
    rows = []
    for k in range(num_kernels):
        rows.append(  # noqa: PERF401
            {
                "task_id": f"t{k:019x}",
                "kernel_id": f"{k:020x}",
                "name": EVIL * 40
                if evil and k == 0
                else f"kernel_{['stencil', 'matmul', 'scan'][k % 3]}_{k}",
                "source": EVIL + "\n__kernel void f() {}\n" * 900
                if evil and k % 2 == 0
                else (
                    "__kernel void f(__global float *a) { a[get_global_id(0)] = 1; }"
                    if k % 3
                    else None
                ),
                "source_sha256": "0" * 64,
                "family_id": f"{k - k % 2:020x}",
                "suite": EVIL if evil else ("demo", "scraped", "polybench")[k % 3],
                "path": EVIL if evil else f"kernels/k{k}.cl",
                "dims": 1 + k % 3,
                "device_class": "h200",
                "args": [
                    {
                        "position": 0,
                        "name": "a",
                        "kind": "global_buffer",
                        "type_name": "float*",
                        "scalar_type": "float",
                        "vector_width": 1,
                        "element_bytes": 4,
                        "access": "read_write",
                    },
                    {
                        "position": 1,
                        "name": "n",
                        "kind": EVIL if evil else "scalar",
                        "type_name": "int",
                        "scalar_type": "int",
                        "vector_width": 1,
                        "element_bytes": 4,
                        "access": "none",
                    },
                ],
                "analysis": [],
                "build": None,
                "static_features": None,
            }
        )
    return pa.Table.from_pylist(rows, schema=schemas.KERNELS)


def make_devices(num_devices: int = 1, *, peaks: bool = True) -> pa.Table:
    rows = [
        {
            "device_id": f"d{d}",
            "device_class": "h200",
            "device_uuid": f"GPU-{d}",
            "name": "NVIDIA H200",
            "platform": "NVIDIA CUDA",
            "driver": "570.86",
            "compute_units": 132,
            "max_work_group_size": 1024,
            "max_work_item_sizes": [1024, 1024, 64],
            "max_clock_mhz": 1980.0 if peaks else None,
            "global_memory_bytes": 141 * 10**9,
            "max_allocation_bytes": 35 * 10**9,
            "local_memory_bytes": 49152,
            "last_level_cache_bytes": 50 * 2**20,
            "has_fp64": True,
            "has_half": True,
            "peak_dram_gbps": 4100.0 if peaks else None,
            "peak_l2_gbps": 9500.0 if peaks else None,
            "peak_fp32_gflops": 55000.0 if peaks else None,
            "launch_floor_ns": 1800.0 if peaks else None,
            "timer_step_ns": 32.0 if peaks else None,
        }
        for d in range(num_devices)
    ]
    return pa.Table.from_pylist(rows, schema=schemas.DEVICES)


def _lists(values: np.ndarray, lengths: np.ndarray, null: np.ndarray | None = None) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    mask = None if null is None else pa.array(null)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values), mask=mask)


def make_samples(
    num_rows: int,
    num_kernels: int,
    *,
    seed: int = 0,
    share_failed: float = 0.12,
    evil: bool = False,
) -> pa.Table:
    """Return a samples table: times grow with work-groups, with noise and failures as on a GPU."""
    rng = np.random.default_rng(seed)
    kernel = np.sort(rng.integers(0, num_kernels, num_rows))
    regime = rng.integers(0, 3, num_rows)
    local = 2 ** rng.integers(4, 11, num_rows)
    groups = np.exp(
        rng.uniform(np.log([1, 132, 2640])[regime], np.log([132, 2640, 132_000])[regime])
    ).astype(np.int64)
    cost = np.exp(np.random.default_rng(7).normal(0, 1.6, num_kernels))
    floor = 1800 + 40 * rng.random(num_rows)
    median = (
        floor + cost[kernel] * (groups * local / 2e4 + 300) * rng.lognormal(0, 0.1, num_rows) * 10
    )
    failed = rng.random(num_rows) < share_failed
    failed |= median > 2.5e8
    codes = np.array(["ok", *STATUSES], dtype=object)
    status = codes[np.where(failed, 1 + (kernel + regime) % len(STATUSES), 0)]
    readings = np.where(
        median > 2e7, 1, np.where(median > 5e6, 3, 5 + rng.integers(0, 20, num_rows))
    )
    readings[failed] = 0
    spread = 0.002 + 60 / median
    ok = ~failed

    def nullable(values: np.ndarray) -> pa.Array:
        return pa.array(np.where(failed, 0, values), mask=failed)

    times = np.repeat(median, readings) * (
        1 + rng.normal(0, 1, int(readings.sum())) * np.repeat(spread, readings)
    )
    checked = rng.random(num_rows) < 0.03
    elements = groups * local
    args = pa.StructArray.from_arrays(
        [
            pa.array(np.tile([0, 1], num_rows).astype(np.int32)),
            pa.array(np.tile(np.array(["global_buffer", "scalar"], dtype=object), num_rows)),
            pa.array(np.repeat(elements, 2), mask=np.tile([False, True], num_rows)),
            pa.array(np.repeat(elements, 2).astype(float), mask=np.tile([True, False], num_rows)),
        ],
        names=["position", "kind", "elements", "value"],
    )
    null_bool = pa.array(np.zeros(num_rows, bool), mask=failed | ~checked)
    checks = pa.StructArray.from_arrays(
        [
            pa.array(rng.random(num_rows) < 0.95, mask=failed | ~checked),
            pa.array(rng.random(num_rows) < 0.9, mask=failed | ~checked),
            null_bool,
            pa.array(rng.random(num_rows) < 0.98, mask=failed),
            pa.array(kernel % 7 == 0),
            pa.array(rng.random(num_rows) < 0.995, mask=failed),
        ],
        fields=list(schemas.SAMPLES.field("checks").type),
    )
    strategy = np.array(STRATEGIES, dtype=object)[rng.integers(0, 3, num_rows)]
    reason = np.where(
        readings == 1,
        "long_launch",
        np.where(rng.random(num_rows) < 0.8, "relative_error", "sample_budget"),
    ).astype(object)
    detail = (EVIL * 300) if evil else "error: use of undeclared identifier 'N'\n"
    columns = {
        "sample_id": pa.array([f"{i:020x}" for i in range(num_rows)]),
        "task_id": pa.array([f"t{k:019x}" for k in kernel.tolist()]),
        "kernel_id": pa.array([f"{k:020x}" for k in kernel.tolist()]),
        "device_id": pa.array(np.array(["d0", "d1"], dtype=object)[rng.integers(0, 2, num_rows)]),
        "device_class": pa.array(np.full(num_rows, "h200", dtype=object)),
        "global_size": _lists(elements, np.ones(num_rows, int)),
        "local_size": _lists(local, np.ones(num_rows, int)),
        "args": pa.ListArray.from_arrays(
            pa.array(np.arange(num_rows + 1) * 2, pa.int32()), args
        ).cast(schemas.SAMPLES.field("args").type),
        "regime": pa.array(np.array(REGIMES, dtype=object)[regime], mask=status == "build_error"),
        "input_strategy": pa.array(strategy),
        "input_strategies": _lists(strategy, np.ones(num_rows, int)),
        "status": pa.array(status),
        "failure_detail": pa.array(np.where(failed, detail, ""), mask=ok),
        "time_ns": _lists(times, readings, failed),
        "median_ns": nullable(median),
        "iqr_ns": nullable(median * spread * 1.35),
        "first_ns": nullable(median * (1 + 4000 / median)),
        "cold_ns": _lists(
            np.repeat(median * 1.3, np.where(failed, 0, 3)), np.where(failed, 0, 3), failed
        ),
        "launches_per_reading": pa.array(
            np.where(median < 2000, 8, 1).astype(np.int32), mask=failed
        ),
        "stop_reason": pa.array(reason, mask=failed),
        "throttled": pa.array(np.zeros(num_rows, bool), mask=failed),
        "checks": checks,
        "seed": pa.array(np.zeros(num_rows, np.int64)),
        "harness_version": pa.array(np.ones(num_rows, np.int32)),
        "task_attempt": pa.array(np.ones(num_rows, np.int32)),
        "worker_id": pa.array(np.full(num_rows, "node/17", dtype=object)),
        "created_at": pa.array(
            np.full(num_rows, np.datetime64("2025-11-03T09:00:00", "us")), pa.timestamp("us", "UTC")
        ),
    }
    arrays = [
        columns[f.name].cast(f.type) if f.name in columns else pa.nulls(num_rows, f.type)
        for f in schemas.SAMPLES
    ]
    return pa.Table.from_arrays(arrays, schema=schemas.SAMPLES)


def make_sentinel(num_readings: int = 60) -> list[SentinelReading]:
    return [
        SentinelReading(
            device_id=f"d{i % 2}",
            at_us=1_762_160_000_000_000 + i * 9_000_000,
            median_ns=52_000 * (1 + 0.002 * np.sin(i / 5) + 1e-4 * i),
        )
        for i in range(num_readings)
    ]


def make_dataset(
    num_rows: int = 1500, num_kernels: int = 30, *, evil: bool = False, seed: int = 0
) -> DatasetView:
    return DatasetView(
        samples=make_samples(num_rows, num_kernels, evil=evil, seed=seed),
        kernels=make_kernels(num_kernels, evil=evil),
        devices=make_devices(2),
        title=EVIL if evil else "demo",
        run={"corpus": EVIL if evil else "kernels/", "plan_hash": "5f0d3a"},
        manifest_version=7,
        num_planned=num_rows + 20,
        num_pending=20,
        sentinel=make_sentinel(),
    )


def make_predictions(
    samples: pa.Table,
    models: tuple[str, ...] = ("small", "gbdt", "roofline"),
    *,
    evil: bool = False,
) -> pa.Table:
    ok = samples.filter(pa.compute.equal(samples["status"], "ok"))
    tables = []
    for m, model in enumerate(models):
        rng = np.random.default_rng(m)
        measured = ok["median_ns"].to_numpy()
        kernel = np.array([int(k, 16) for k in ok["kernel_id"].to_pylist()])
        bias = np.random.default_rng(3).normal(0, 0.3 + 0.2 * m, 100_000)[kernel]
        predicted = measured * np.exp(bias + rng.normal(0, 0.15, len(measured)))
        has_interval = model != "roofline"
        width = np.exp(0.6)
        nulls = pa.nulls(len(measured), pa.float64())
        tables.append(
            pa.table(
                {
                    "sample_id": ok["sample_id"],
                    "kernel_id": ok["kernel_id"],
                    "family_id": pa.array([f"{k - k % 2:020x}" for k in kernel.tolist()]),
                    "suite": pa.array([EVIL if evil else f"suite{k % 4}" for k in kernel.tolist()]),
                    "split": pa.array(
                        np.where(kernel % 3 == 0, "validation", "test").astype(object)
                    ),
                    "model": pa.array(np.full(len(measured), model, dtype=object)),
                    "device_class": ok["device_class"],
                    "median_ns": ok["median_ns"],
                    "predicted_ns": pa.array(predicted),
                    "low_ns": pa.array(predicted / width) if has_interval else nulls,
                    "high_ns": pa.array(predicted * width) if has_interval else nulls,
                }
            )
        )
    return pa.concat_tables(tables)


def make_metrics(models: tuple[str, ...] = ("small", "gbdt", "roofline")) -> dict[str, object]:
    def block(value: float) -> dict[str, object]:
        return {
            "num_rows": 800,
            "num_kernels": 20,
            "mape_percent": value,
            "median_ape_percent": value * 0.8,
            "spearman_mean": 0.9,
            "coverage": 0.88,
            "new_metric_of_tomorrow": 3.25,
            "interval_width_ratio": None,
            "ci_level": 0.95,
            "ci": {
                "mape_percent": [value * 0.8, value * 1.3],
                "median_ape_percent": [value * 0.7, value],
                "spearman_mean": None,
            },
        }

    return {
        "models": {
            model: {
                "test": {
                    "all": block(20.0 + 9 * i),
                    "from_10_us": block(18.0 + 9 * i),
                    "by": {"regime": {r: block(17.0) for r in REGIMES}},
                }
            }
            for i, model in enumerate(models)
        },
        "schema": 1,
    }


def make_evaluation(
    dataset: DatasetView, *, evil: bool = False, with_metrics: bool = True
) -> EvaluationView:
    models = (EVIL, "gbdt") if evil else ("small", "gbdt", "roofline")
    return EvaluationView(
        predictions=make_predictions(dataset.samples, models, evil=evil),
        metrics=make_metrics(models) if with_metrics else {},
        title=EVIL if evil else "demo model",
        run={"preset": "demo"},
        interval_level=0.9,
        samples=dataset.samples,
        kernels=dataset.kernels,
    )


CSV_ADDRESS = "data:text/csv;charset=utf-8,"


class PageChecker(HTMLParser):
    """Checks that tags are balanced and collects what a browser could load or run."""

    VOID = frozenset({"meta", "br", "hr", "col", "img", "input", "link"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.problems: list[str] = []
        self.tags: dict[str, int] = {}
        self.ids: list[str] = []
        self.links: list[str] = []
        self.svg_titles: list[bool] = []
        self.downloads: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        for name, value in attrs:
            if name in {"src", "href", "srcset", "action", "data", "xlink:href"} and not (
                value or ""
            ).startswith(("#", CSV_ADDRESS)):
                self.problems.append(f"{tag} {name}={value}")
            if name == "href" and (value or "").startswith(CSV_ADDRESS):
                self.downloads.append(unquote((value or "").removeprefix(CSV_ADDRESS)))
                if "download" not in dict(attrs):
                    self.problems.append("a data: address that a browser would not open")
            if name.startswith("on"):
                self.problems.append(f"handler {name} on {tag}")
            if name == "id":
                self.ids.append(value or "")
            if name == "href" and (value or "").startswith("#"):
                self.links.append((value or "")[1:])
            if name in {
                "x",
                "y",
                "x1",
                "x2",
                "y1",
                "y2",
                "width",
                "height",
                "d",
                "viewbox",
            } and re.search(r"nan|inf|none", value or "", re.IGNORECASE):
                self.problems.append(f"{tag} {name}={value}")
        if tag == "svg":
            self.svg_titles.append(False)
        if tag == "title" and self.open and self.open[-1] == "svg":
            self.svg_titles[-1] = True
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"unbalanced </{tag}>")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def check_page(page: str) -> PageChecker:
    checker = PageChecker()
    checker.feed(page)
    checker.close()
    assert checker.problems == []
    assert checker.open == []
    assert not {"script", "img", "iframe", "link", "object"} & set(checker.tags)
    assert checker.svg_titles
    assert all(checker.svg_titles)
    assert len(set(checker.ids)) == len(checker.ids)
    assert set(checker.links) <= set(checker.ids)
    style = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert len(style) == 1
    assert "@import" not in style[0]
    assert "url(" not in style[0]
    return checker
