"""A report's sections of single kernels: which there are, what they hold, and how one gets the others."""

from __future__ import annotations

import csv
import dataclasses
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from llmperf.cli.main import app
from llmperf.exits import CommandError, Exit
from llmperf.html_report import DatasetView, KernelChoice, UnknownKernelError, render_report
from llmperf.html_report.dataset.facts import dataset_facts
from llmperf.html_report.kernel.analysis import extent_words, polynomial_words
from llmperf.html_report.kernel.work import bound_ns
from llmperf_common import schemas
from llmperf_common.analysis import Extent, Polynomial, Term
from llmperf_common.store.tables.rows import devices_table, kernels_table, samples_table
from tests.support.factories import dataset_factory
from tests.support.factories.report_factory import (
    check_page,
    make_dataset,
    make_devices,
    make_evaluation,
    make_kernels,
    make_samples,
)
from tests.support.factories.synthetic_dataset import make_dataset as synthetic_dataset
from tests.unit.common.features.test_work_features import GPU, work


def kernel_parts(page: str) -> dict[str, str]:
    """Return each kernel's section by its id."""
    pieces = page.split('<details class="kernel">')[1:]
    return {re.findall(r'id="kernel-([^"]+)"', piece)[0]: piece for piece in pieces}


def test_every_kernel_has_a_section_and_the_index_links_to_it() -> None:
    dataset = make_dataset(1500, 30)
    page = render_report(dataset=dataset, evaluation=make_evaluation(dataset))
    checker = check_page(page)
    parts = kernel_parts(page)
    assert set(parts) == set(dataset.kernels["kernel_id"].to_pylist())
    index = page.partition('<section id="kernels">')[2].partition("</table>")[0]
    assert re.findall(r'href="#kernel-([^"]+)"', index) == list(parts)
    worst = page.partition('<section id="worst-kernels">')[2].partition("</section>")[0]
    assert len(re.findall(r'href="#kernel-', worst)) == 9
    assert "Source of" not in worst
    for part in parts.values():
        assert "time against work-items" in part
        assert "Launches: " in part
        assert "Back to the index" in part
        assert "No extents" in part
        assert "Source" in part
    assert "All 30 kernels, largest median error of small first" in "".join(checker.text)


def counted_dataset() -> DatasetView:
    """Return a kernel of four launches, three of them counted."""
    made = synthetic_dataset(num_kernels=1, num_configs=4)
    task = made.tasks[0]
    samples = [
        dataclasses.replace(
            one,
            work=work(fp32_ops=1e9, int_ops=2e9, global_loads=1e9, global_load_sectors=1e9)
            if number
            else None,
        )
        for number, one in enumerate(task.samples)
    ]
    task = dataclasses.replace(task, samples=tuple(samples))
    return DatasetView(
        samples=samples_table([task]), kernels=kernels_table([task]), devices=devices_table([GPU])
    )


def test_counted_launches_have_a_bound_and_work_by_kind() -> None:
    view = counted_dataset()
    page = render_report(dataset=view, evaluation=None)
    check_page(page)
    (part,) = kernel_parts(page).values()
    assert "Work by kind" in part
    assert "integer: 2" in part
    assert "(50.0 %)" in part.replace("\u202f", " ").replace("\u00a0", " ")
    facts = dataset_facts(view)
    (kernel_id,) = set(view.kernels["kernel_id"].to_pylist())
    bound = bound_ns(facts, kernel_id, np.arange(view.samples.num_rows))
    assert np.isnan(bound[0])
    # 32 GB through a last-level cache of 200 GB/s.
    assert bound[1:] == pytest.approx(32e9 / 200)
    assert "2 analytic bounds." in part


def test_launches_that_were_not_counted_say_so() -> None:
    page = render_report(dataset=make_dataset(200, 3), evaluation=None)
    parts = kernel_parts(page)
    assert all("was not counted, so there is no analytic bound" in one for one in parts.values())


def test_order_is_largest_error_first_without_predictions_most_rows() -> None:
    dataset = make_dataset(1500, 12)
    scored = kernel_parts(render_report(dataset=dataset, evaluation=make_evaluation(dataset)))
    errors = [
        float(found.group(1).replace("\u202f", ""))
        for part in scored.values()
        if (found := re.search(r"median error ([\d.\u202f]+)", part))
    ]
    assert len(errors) == 12
    assert errors == sorted(errors, reverse=True)
    bare = kernel_parts(render_report(dataset=dataset, evaluation=None))
    rows = dict.fromkeys(bare, 0)
    for kernel_id in dataset.samples["kernel_id"].to_pylist():
        rows[kernel_id] += 1
    assert list(rows.values()) == sorted(rows.values(), reverse=True)
    assert all("predicted" not in part for part in bare.values())


def test_the_data_of_a_kernel_are_all_its_launches() -> None:
    dataset = make_dataset(300, 3)
    page = render_report(dataset=dataset, evaluation=make_evaluation(dataset))
    files = [list(csv.DictReader(text.splitlines())) for text in check_page(page).downloads]
    launches = [rows for rows in files if rows and "global_size" in rows[0]]
    assert sum(map(len, launches)) == 300
    found = sorted(float(row["median_ns"]) for rows in launches for row in rows if row["median_ns"])
    wanted = sorted(filter(None, dataset.samples["median_ns"].to_pylist()))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    row = launches[0][0]
    assert row["device_class"] == "h200"
    assert float(row["a[]"]) == float(row["global_size"])
    assert (
        float(row["low_ns"] or 0) <= float(row["predicted_ns"] or 0) <= float(row["high_ns"] or 0)
    )


@pytest.mark.parametrize(
    ("choice", "num_shown", "words"),
    [
        (KernelChoice(limit=5, limit_bytes=None), 5, "15 are left out: the limit is 5 kernels."),
        (KernelChoice(limit_bytes=30_000), None, "or 30\u00a0kB of them"),
        (KernelChoice(limit_bytes=1), 1, "--kernel NAME for single kernels, or with --kernels all"),
        (KernelChoice(limit=None, limit_bytes=1), 20, "All 20 kernels, most rows first."),
        (KernelChoice(names=("kernel_scan_2", f"{7:020x}")), 2, "selected by name"),
    ],
)
def test_the_rule_is_kept_and_stated(
    choice: KernelChoice, num_shown: int | None, words: str
) -> None:
    page = render_report(dataset=make_dataset(400, 20), evaluation=None, kernels=choice)
    checker = check_page(page)
    assert words in "".join(checker.text)
    parts = kernel_parts(page)
    if num_shown is not None:
        assert len(parts) == num_shown
    if choice.names:
        assert set(parts) == {f"{2:020x}", f"{7:020x}"}
    if choice.limit is not None and choice.limit_bytes is not None and not choice.names:
        assert len(parts) == 1 or sum(map(len, parts.values())) <= choice.limit_bytes


def test_an_unknown_name_says_what_comes_near() -> None:
    with pytest.raises(UnknownKernelError, match=r"'kernel_scam_2'.*did you mean kernel_scan_2"):
        render_report(
            dataset=make_dataset(100, 4),
            evaluation=None,
            kernels=KernelChoice(names=("kernel_scam_2",)),
        )


def test_failures_of_a_kernel_are_in_its_section() -> None:
    samples = make_samples(60, 2, share_failed=1.0)
    view = DatasetView(samples=samples, kernels=make_kernels(2), devices=make_devices())
    page = render_report(dataset=view, evaluation=None)
    check_page(page)
    for part in kernel_parts(page).values():
        assert "No launch of this kernel was timed" in part
        assert "use of undeclared identifier" in part


def test_extents_read_like_formulas() -> None:
    sizes = Polynomial(constant=-1, terms=(Term(factors=("global_size_0", "k"), coefficient=2),))
    assert polynomial_words(sizes) == "2 \u00d7 global_size_0 \u00d7 k \u2212 1"
    assert polynomial_words(Polynomial(constant=0)) == "0"
    negative = Polynomial(constant=3, terms=(Term(factors=("n",), coefficient=-1),))
    assert polynomial_words(negative) == "\u2212 n + 3"
    capped = Extent(position=0, form=Polynomial(constant=17), cap=negative)
    assert extent_words(capped) == "min(17, \u2212 n + 3)"
    assert extent_words(Extent(position=0, form=None)) == "\u2013"


def test_extents_are_shown_by_buffer() -> None:
    rows = make_kernels(1).to_pylist()
    rows[0]["analysis"] = [
        {
            "position": 0,
            "constant": 4,
            "terms": [{"factors": ["global_size_0"], "coefficient": 1}],
            "cap_constant": None,
            "cap_terms": None,
            "validated": True,
            "reason": None,
        }
    ]
    kernels = pa.Table.from_pylist(rows, schema=schemas.KERNELS)
    view = DatasetView(samples=make_samples(20, 1), kernels=kernels, devices=make_devices())
    page = render_report(dataset=view, evaluation=None)
    assert "global_size_0 + 4" in page
    assert "exact on held-out probes" in page


def test_an_analysis_that_no_reader_accepts_is_said_to_be_so() -> None:
    factors = [{"factors": ["global_size_0"] * 200, "coefficient": 1}] * 50
    entry = {"position": 0, "constant": 4, "terms": factors, "validated": True}
    rows = make_kernels(1).to_pylist()
    rows[0]["analysis"] = [entry]
    kernels = pa.Table.from_pylist(rows, schema=schemas.KERNELS)
    view = DatasetView(samples=make_samples(20, 1), kernels=kernels, devices=make_devices())
    page = render_report(dataset=view, evaluation=None)
    assert "The memory analysis of this kernel cannot be read: an extent has more terms" in page


def test_the_command_names_kernels(tmp_path: Path) -> None:
    data = dataset_factory.make_dataset(tmp_path / "runs" / "mine" / "data", kernels=3)
    out = tmp_path / "r.html"

    def report(*options: str) -> Exit | None:
        done = CliRunner().invoke(app, ["report", str(data), "--out", str(out), *options])
        if isinstance(done.exception, CommandError):
            return done.exception.exit_code
        assert done.exit_code == 0, done.output
        return None

    assert report() is None
    page = out.read_text("utf-8")
    assert len(kernel_parts(page)) == 3
    assert "<title>mine on replay: 3 kernels, 12 samples · LLMPerf</title>" in page
    assert report("--kernel", "scale_1") is None
    assert len(kernel_parts(out.read_text("utf-8"))) == 1
    assert report("--kernels", "2") is None
    assert len(kernel_parts(out.read_text("utf-8"))) == 2
    assert report("--kernels", "all") is None
    assert report("--kernel", "scale_9") is Exit.BAD_INPUT
    assert report("--kernels", "0") is Exit.USAGE
    assert report("--kernels", "some") is Exit.USAGE
    assert report("--kernels", "2", "--kernel", "scale_1") is Exit.USAGE
