"""The report page: self-contained, escaped, complete, bounded, whatever the dataset holds."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from llmperf.html_report import DatasetView, EvaluationView, Stamp, render_report, write_report
from llmperf.html_report.charts import quantities
from llmperf.html_report.charts.markup import escape
from llmperf.html_report.charts.scales import Scale, linear_scale, log_scale
from llmperf.html_report.columns import row_medians, row_products
from llmperf.html_report.dataset.facts import dataset_facts
from llmperf.html_report.dataset.footprint import footprint_bytes
from llmperf.html_report.dataset.scaling import choose_kernels
from llmperf.html_report.evaluation.calibration import bootstrap_share
from llmperf.html_report.evaluation.metric_blocks import find_blocks
from llmperf_common import schemas
from tests.support.factories.report_factory import (
    START,
    PageChecker,
    check_page,
    make_dataset,
    make_devices,
    make_evaluation,
    make_kernels,
    make_metrics,
    make_predictions,
    make_samples,
)

DATASET_IDS = {"overview", "coverage", "failures", "times", "scaling", "noise", "checks", "kernels"}
EVALUATION_IDS = {"evaluation", "errors", "calibration", "worst-kernels"}


def sections_of(page: str) -> dict[str, str]:
    pieces = re.split(r'<section id="([^"]+)">', page)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def check_complete(page: str, wanted: set[str]) -> None:
    """Every section is there with a figure or a table, or says why not."""
    found = sections_of(page)
    assert set(found) == wanted
    for name, body in found.items():
        assert "<svg" in body or "<table" in body or "nothing to show because" in body, name


def test_full_page_is_complete_and_self_contained() -> None:
    dataset = make_dataset()
    page = render_report(dataset=dataset, evaluation=make_evaluation(dataset))
    check_page(page)
    check_complete(page, DATASET_IDS | EVALUATION_IDS)
    text = "".join(check_page(page).text)
    assert "Every planned launch config is accounted for" in text
    assert "new metric of tomorrow" in text
    assert "nothing to show" not in text
    assert "has no metrics of its own" not in text
    assert "16.0 to 26.0" in text


@pytest.mark.parametrize("seed", [0, 1])
def test_hostile_text_is_escaped(seed: int) -> None:
    dataset = make_dataset(400, 12, evil=True, seed=seed)
    page = render_report(dataset=dataset, evaluation=make_evaluation(dataset, evil=True))
    checker = check_page(page)
    assert "<script" not in page.lower()
    assert "\u202e" not in page
    assert "\x00" not in page
    assert any("<script>alert" in piece for piece in checker.text)
    assert max(len(line) for line in "".join(checker.text).splitlines()) < 2_000_000
    check_complete(page, DATASET_IDS | EVALUATION_IDS)


def test_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    stamp = Stamp(made_at=START, version="0.1.0")
    for name in ("a.html", "b.html"):
        dataset = make_dataset(3000, 100)
        num_bytes = write_report(
            dataset=dataset, evaluation=make_evaluation(dataset), out=tmp_path / name, stamp=stamp
        )
        assert num_bytes == (tmp_path / name).stat().st_size
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html"]
    assert "Made 2025-11-03 09:00 UTC by LLMPerf 0.1.0" in (tmp_path / "a.html").read_text("utf-8")


def dataset_of(
    samples: pa.Table, kernels: pa.Table | None = None, devices: pa.Table | None = None
) -> DatasetView:
    return DatasetView(
        samples=samples,
        kernels=make_kernels(3) if kernels is None else kernels,
        devices=make_devices() if devices is None else devices,
    )


def test_empty_dataset_says_why_nothing_is_shown(tmp_path: Path) -> None:
    view = dataset_of(
        schemas.SAMPLES.empty_table(), schemas.KERNELS.empty_table(), schemas.DEVICES.empty_table()
    )
    write_report(dataset=view, evaluation=None, out=tmp_path / "deep" / "report.html")
    page = (tmp_path / "deep" / "report.html").read_text("utf-8")
    found = sections_of(page)
    assert set(found) == DATASET_IDS
    assert all("nothing to show because" in found[name] for name in DATASET_IDS)
    checker = PageChecker()
    checker.feed(page)
    assert checker.problems == []
    assert checker.open == []


def test_no_ok_row() -> None:
    samples = make_samples(200, 12, share_failed=1.0)
    page = render_report(dataset=dataset_of(samples), evaluation=None)
    check_page(page)
    assert "no row is ok" in page
    assert "Unknown code" in page


@pytest.mark.parametrize("seed", range(4))
def test_single_row(seed: int) -> None:
    samples = make_samples(1, 1, share_failed=0.0, seed=seed)
    page = render_report(dataset=dataset_of(samples, make_kernels(1)), evaluation=None)
    check_page(page)
    check_complete(page, DATASET_IDS)


def test_device_without_peaks_and_rows_without_devices() -> None:
    samples = make_samples(60, 3)
    check_page(
        render_report(
            dataset=dataset_of(samples, devices=make_devices(peaks=False)), evaluation=None
        )
    )
    page = render_report(
        dataset=dataset_of(samples, devices=schemas.DEVICES.empty_table()), evaluation=None
    )
    check_page(page)
    assert "the devices table has no row" in page


def test_a_peak_is_shown_with_the_spread_of_its_rounds() -> None:
    devices = make_devices()
    spread = devices.schema.get_field_index("peak_dram_spread")
    spreads = devices.set_column(spread, devices.schema.field(spread), [pa.array([0.685])])
    samples = make_samples(60, 3)
    page = render_report(dataset=dataset_of(samples, devices=spreads), evaluation=None)
    assert re.search(r"Peak DRAM, GB/s</t.><td[^>]*>4\D?100 \(68.5\D%\)</td>", page)
    assert re.search(r"Peak L2, GB/s</t.><td[^>]*>9\D?500</td>", page), (
        "not known: before version 4"
    )
    assert "(best - median round) / best" in page


def without_nullable(table: pa.Table, schema: pa.Schema) -> pa.Table:
    return table.select([field.name for field in schema if not field.nullable])


def test_older_dataset_without_nullable_columns() -> None:
    samples = make_samples(60, 3)
    older = without_nullable(samples, schemas.SAMPLES).append_column(
        "median_ns", samples["median_ns"]
    )
    view = dataset_of(
        older,
        without_nullable(make_kernels(3), schemas.KERNELS),
        without_nullable(make_devices(), schemas.DEVICES),
    )
    page = render_report(dataset=view, evaluation=None)
    check_page(page)
    check_complete(page, DATASET_IDS)


def test_odd_times_do_not_break_the_page() -> None:
    samples = make_samples(80, 3, share_failed=0.0)
    times = samples["median_ns"].to_pylist()
    times[:6] = [0.0, -5.0, float("nan"), float("inf"), 1e-9, 1e18]
    index = samples.schema.get_field_index("median_ns")
    odd = samples.set_column(
        index, schemas.SAMPLES.field("median_ns"), pa.array(times, pa.float64())
    )
    page = render_report(dataset=dataset_of(odd), evaluation=None)
    check_page(page)
    assert "4 ok rows without a positive time" in page


def test_without_a_plan_nothing_is_claimed_to_be_complete() -> None:
    page = render_report(dataset=dataset_of(make_samples(20, 3)), evaluation=None)
    assert "cannot be checked against the plan" in page
    assert "<b>\u2013</b><span>pending</span>" in page


def test_gap_between_plan_and_rows_is_shown() -> None:
    samples = make_samples(50, 3)
    view = DatasetView(
        samples=samples,
        kernels=make_kernels(3),
        devices=make_devices(),
        num_planned=60,
        num_pending=5,
    )
    assert "The rows do not add up to the plan" in render_report(dataset=view, evaluation=None)


def test_many_kernels_are_binned() -> None:
    view = make_dataset(8000, 900)
    page = render_report(dataset=view, evaluation=None)
    check_page(page)
    assert "Single kernels are drawn only in datasets of at most" in page
    assert len(page) < 2_500_000


@pytest.mark.slow
def test_large_dataset_is_small_and_quick() -> None:
    dataset = make_dataset(100_000, 2000)
    evaluation = make_evaluation(dataset)
    started = time.process_time()
    page = render_report(dataset=dataset, evaluation=evaluation)
    seconds = time.process_time() - started
    check_page(page)
    assert len(page.encode()) < 6_000_000
    assert seconds < 10
    assert "shows their number per bin" in page


@pytest.mark.slow
def test_400k_samples_stay_bounded() -> None:
    page = render_report(dataset=make_dataset(400_000, 5000), evaluation=None)
    assert len(page.encode()) < 6_000_000


def test_evaluation_alone(tmp_path: Path) -> None:
    view = EvaluationView(
        predictions=make_predictions(make_samples(500, 12)), metrics=make_metrics()
    )
    write_report(dataset=None, evaluation=view, out=tmp_path / "e.html")
    page = (tmp_path / "e.html").read_text("utf-8")
    check_page(page)
    check_complete(page, EVALUATION_IDS)
    assert "made without the dataset" in page
    assert "does not hold this kernel" in page


def test_evaluation_without_metrics_recomputes_them() -> None:
    dataset = make_dataset(400, 12)
    page = render_report(dataset=None, evaluation=make_evaluation(dataset, with_metrics=False))
    check_page(page)
    assert "has no metrics of its own" in page


def test_evaluation_without_rows_or_usable_times() -> None:
    predictions = make_predictions(make_samples(40, 3))
    for table in (
        predictions.slice(0, 0),
        predictions.drop_columns(["predicted_ns"]),
        predictions.slice(0, 1),
    ):
        page = render_report(dataset=None, evaluation=EvaluationView(predictions=table))
        checker = PageChecker()
        checker.feed(page)
        assert checker.problems == []
        assert checker.open == []
        check_complete(page, EVALUATION_IDS)


def test_neither_view_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs a dataset"):
        render_report(dataset=None, evaluation=None)


def test_metrics_of_any_nesting() -> None:
    listed = [
        {"model": "m", "split": "test", "mape": 0.2, "mape_ci": [0.1, 0.3]},
        {"model": "n", "split": "test", "mape": [0.2, 0.1, 0.3]},
    ]
    blocks = find_blocks({"rows": listed}, ["m", "n"], ["test"])
    assert [(b.model, b.split) for b in blocks] == [("m", "test"), ("n", "test")]
    assert blocks[1].values["mape"].high == 0.3
    nested = find_blocks(
        {"test": {"m": {"mape": {"value": 0.2, "low": 0.1, "high": 0.3}}}}, ["m"], ["test"]
    )
    assert nested[0].values["mape"].low == 0.1
    assert find_blocks({}, ["m"], ["test"]) == []


def test_row_functions_on_ragged_lists() -> None:
    lengths = np.array([2, 0, 3])
    values = np.array([2.0, 3.0, 9.0, 1.0, 5.0])
    np.testing.assert_equal(row_products(lengths, values), [6.0, np.nan, 45.0])
    np.testing.assert_equal(row_medians(lengths, values), [2.5, np.nan, 5.0])


def test_footprint_is_elements_times_element_bytes() -> None:
    dataset = make_dataset(40, 3)
    sizes = footprint_bytes(dataset_facts(dataset))
    elements = [row[0]["elements"] for row in dataset.samples["args"].to_pylist()]
    np.testing.assert_allclose(sizes, 4.0 * np.array(elements))


def test_chosen_kernels_span_times_and_families() -> None:
    facts = dataset_facts(make_dataset(3000, 60))
    chosen = choose_kernels(facts)
    names = [facts.samples.kernel.names[code] for code in chosen]
    assert len(chosen) == 9
    assert len({facts.kernels.by_id[name].family_id for name in names}) == 9


def test_bootstrap_share_needs_two_families() -> None:
    inside = np.array([True, False, True, True])
    assert np.isnan(bootstrap_share(inside, np.zeros(4, np.int64))[0])
    low, high = bootstrap_share(inside, np.array([0, 0, 1, 1]))
    assert 0.5 <= low <= 0.75 <= high <= 1.0


@pytest.mark.parametrize("values", [[], [5.0], [1e-9, 1e18], [3.0, 3.1], [np.nan, 0.0, -1.0]])
def test_log_scale_always_has_a_range_and_ticks(values: list[float]) -> None:
    scale = log_scale(np.array(values), "x", quantities.short)
    assert scale.low < scale.high
    assert len(scale.ticks()) >= 2
    assert scale.fraction(np.array([0.0, np.inf])).tolist() == [0.0, 1.0]


def test_scale_rejects_nonsense() -> None:
    with pytest.raises(ValueError, match="bad range"):
        Scale(low=2, high=1, is_log=False, label="x")
    assert linear_scale(np.nan, np.nan, "x").high == 1.0


def test_numbers_read_well() -> None:
    assert quantities.nanoseconds(4.2e9).split() == ["4.20", "s"]
    assert quantities.nanoseconds_tick(1e4).split() == ["10", "µs"]
    assert quantities.percent(0.00023).split() == ["0.023", "%"]
    assert quantities.count_tick(2_500_000) == "2.5M"
    assert escape("a\u202eb\x00") == "a\\u202eb\\u0000"


def test_importing_llmperf_does_not_load_the_report() -> None:
    code = "import sys, llmperf; assert not {'llmperf.html_report', 'numpy', 'pyarrow'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_two_device_classes_are_not_drawn_as_one_curve() -> None:
    samples = make_samples(600, 6)
    index = samples.schema.get_field_index("device_class")
    classes = pa.array(["h200" if i % 3 else "cpu" for i in range(600)])
    mixed = samples.set_column(index, schemas.SAMPLES.field("device_class"), classes)
    view = dataset_of(mixed, make_kernels(6))
    evaluation = EvaluationView(
        predictions=make_predictions(mixed), samples=mixed, kernels=make_kernels(6)
    )
    page = render_report(dataset=view, evaluation=evaluation)
    check_page(page)
    assert "pool the rows of 2 device classes" in page
    assert "Only device class h200" in page
    assert "00005 h200" in page


def test_stamp_and_metrics_without_model_names() -> None:
    predictions = make_predictions(make_samples(60, 3))
    metrics = {"all": {"mape_percent": 12.5}, "noise": 1.0}
    view = EvaluationView(
        predictions=predictions, metrics=metrics, run={"stamp": "SEEN: trained on"}
    )
    page = render_report(dataset=None, evaluation=view)
    check_page(page)
    assert '<p class="warning">SEEN: trained on</p>' in page
    assert "12.5" in page
    assert "has no metrics of its own" not in page
