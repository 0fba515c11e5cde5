"""``report --kernel``: maps of the memory accesses of a launch, or the reason why there are none, and a page in any case."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import llmperf as api
from llmperf.exits import Exit
from llmperf_common.config import ConfigError
from tests.support.collecting import Collect, replay_file, write_kernels
from tests.support.factories.report_factory import check_page
from tests.support.in_process import assert_refused, llmperf
from workers.discovery.find import NoDevice, choose

SMALL = (
    "--samples-per-kernel", "3", "--set", "timing.spin_up_ms=0", "--set", "plan.strategies=['simple']",
    "--set", "plan.max_work_items=16384",
)  # fmt: skip
ENDLESS = "__kernel void endless(__global float *a) { while (a[0] < 2.0f) a[1] += 1.0f; }"
HANGS = """__kernel void hangs(__global int *a) { __local int t[64]; int l = get_local_id(0) % 64; t[l] = 1;
 while (t[0] > 0) { barrier(CLK_LOCAL_MEM_FENCE); t[l] = 1; } a[get_global_id(0)] = t[l]; }
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of a map kernel and of two that never end, with times from a file."""
    folder = tmp_path_factory.mktemp("accesses")
    corpus = write_kernels(folder / "kernels", ["k0"])
    (corpus / "endless.cl").write_text(ENDLESS)
    (corpus / "hangs.cl").write_text(HANGS)
    done = Collect(corpus, folder / "data", replay_file(folder / "r.json"), SMALL).run()
    assert done.returncode == 0, done.stderr
    return folder / "data"


@pytest.fixture
def cpu() -> None:
    found = choose("cpu")
    if isinstance(found, NoDevice):
        pytest.skip(found.message())


def words_of(page: str) -> str:
    """Return what a reader of the page sees, its thin and firm spaces as plain ones."""
    return re.sub("[\u202f\u00a0]", " ", "".join(check_page(page).text))


@pytest.mark.opencl
@pytest.mark.usefixtures("cpu")
def test_a_kernel_that_is_asked_for_has_its_accesses_drawn(data: Path, tmp_path: Path) -> None:
    done = llmperf("report", data, "--out", tmp_path / "r.html", "--kernel", "k0")
    assert done.code == 0, done.err
    assert "tracing memory accesses of 1 kernels" in done.err
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    words = words_of(page)
    for one in ("a[]: loads", "b[]: stores", "Memory accesses of the launch"):
        assert one in words
    assert "not traced" not in words
    assert "times and falls 0 times" in words
    assert page.count('class="hit"') > 50


@pytest.mark.opencl
@pytest.mark.usefixtures("cpu")
@pytest.mark.slow
def test_kernels_that_never_end_cost_their_maps_only(data: Path, tmp_path: Path) -> None:
    out = api.report(data, tmp_path / "r.html", kernels=["endless", "hangs", "k0"])
    words = words_of(out.read_text(encoding="utf-8"))
    assert "This kernel's memory accesses were not traced: loops of more than" in words
    assert re.search(r"not traced: the trace was (killed after|ended after) \d+ s", words)
    assert "b[]: stores" in words


def test_without_a_cpu_device_the_page_says_so(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMPERF_POCL_ICD", "")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    if not isinstance(choose("cpu"), NoDevice):
        pytest.skip("Intel's runtime lies in this environment")
    done = llmperf("report", data, "--out", tmp_path / "r.html", "--kernel", "k0")
    assert done.code == 0, done.err
    words = words_of((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "not traced: there is no usable CPU OpenCL device (see `llmperf doctor`)." in words
    assert "Launches: 3 of 3 timed ones" in words


def test_off_traces_nothing(data: Path, tmp_path: Path) -> None:
    options = ("--kernel", "k0", "--accesses", "off")
    done = llmperf("report", data, "--out", tmp_path / "r.html", *options)
    assert done.code == 0, done.err
    assert "tracing" not in done.err
    words = words_of((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "not traced: tracing was switched off." in words


def test_kernels_that_were_not_asked_for_are_not_traced(data: Path, tmp_path: Path) -> None:
    done = llmperf("report", data, "--out", tmp_path / "r.html")
    assert "tracing" not in done.err
    words = words_of((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "not traced" not in words
    assert "that the command names (--kernel NAME)" in words


def test_another_word_than_auto_or_off_is_refused(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    done = llmperf("report", data, "--out", out, "--kernel", "k0", "--accesses", "yes")
    assert_refused(done, Exit.USAGE, "accesses 'yes'", "auto", "off")
    assert not out.exists()
    with pytest.raises(ConfigError, match="auto"):
        api.report(data, out, kernels=["k0"], accesses="no")


def test_a_name_that_no_kernel_has_is_refused_before_anything_is_traced(
    data: Path, tmp_path: Path
) -> None:
    options = ("--kernel", "k0", "--kernel", "k7")
    done = llmperf("report", data, "--out", tmp_path / "r.html", *options)
    assert_refused(done, Exit.BAD_INPUT, "'k7'", "did you mean k0")
    assert "tracing" not in done.err
