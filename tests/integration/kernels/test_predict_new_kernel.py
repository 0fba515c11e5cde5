"""``predict`` about kernels that no dataset has: probed on the CPU device, asked as ``collect`` would have asked."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import llmperf as api
from llmperf.exits import Exit
from llmperf.prediction.analysing import Analyst
from llmperf.prediction.analysis_cache import AnalysisCache
from llmperf_common.records import Kernel
from tests.integration.conftest import Trained
from tests.support.collecting import KERNELS
from tests.support.in_process import assert_refused, llmperf
from trainer.run.loaded import load_run
from workers.config import PlanConfig
from workers.corpus.one_source import file_of_text, read
from workers.corpus.read import read_sources
from workers.device.device_class import device_class_of
from workers.device.interface import DeviceRef
from workers.discovery.find import NoDevice, choose
from workers.execution.analyse_ahead import analyse_corpus
from workers.plan.launch_plan import plan_configs

pytestmark = pytest.mark.opencl

SIZES = {"global_size": 65536, "local_size": 64}
OPTIONS = ("--global-size", 65536, "--local-size", 64)
FILL = "__kernel void fill(__global float *a) { a[get_global_id(1) * get_global_size(0) + get_global_id(0)] = 1; }\n"
ROWS = """__kernel void rows(__global float *c, int w)
{ int x = get_global_id(0), y = get_global_id(1); c[y * w + x] = 1; }
"""
TILE = """__kernel void tile(__global float *c, __local float *t)
{ int i = get_local_id(0); t[i] = 1; barrier(1); c[get_global_id(0)] = t[i]; }
"""


@pytest.fixture(scope="module")
def cpu() -> DeviceRef:
    found = choose("cpu")
    if isinstance(found, NoDevice):
        pytest.skip(found.message())
    return found


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No analysis of an earlier test is there."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def csr(tmp_path: Path) -> Path:
    """A sparse product under another name: no dataset has it."""
    return write_csr(tmp_path)


def write_csr(folder: Path) -> Path:
    text = (KERNELS / "csr_spmv.cl").read_text(encoding="utf-8")
    path = folder / "product.cl"
    path.write_text(text.replace("csr_spmv", "product"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def analysed(cpu: DeviceRef, tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    """The sparse product with the analysis that ``collect`` would make: ten seconds of a processor."""
    path = write_csr(tmp_path_factory.mktemp("analysed"))
    (kernel,) = analyse_corpus(read_sources([path]), cpu, num_children=1).kernels
    return kernel


def taken(warnings: list[str]) -> dict[str, float]:
    """Return what was taken for arguments that were left out."""
    pattern = re.compile(r"argument '(\w+)' not given: using (?:value )?(\S+)")
    return {match[1]: float(match[2]) for one in warnings if (match := pattern.match(one))}


def test_missing_arguments_are_those_that_collect_plans(
    analysed: Kernel, trained: Trained, csr: Path
) -> None:
    model, kernel = api.load_model(trained.run), analysed
    device = next(iter(model._run.devices.values()))
    config = PlanConfig(samples_per_kernel=8)
    planned = plan_configs(kernel, device_class_of(device), config, kernel.analysis)
    assert kernel.signature is not None
    assert len(planned) == 8
    names = [one.name for one in kernel.signature.arguments]
    for one in planned:
        found = model.predict(csr, global_size=one.global_size, local_size=one.local_size)
        assert taken(found["warnings"]) == {
            name: arg.elements if arg.elements is not None else arg.value
            for name, arg in zip(names, one.args, strict=True)
        }
    filled = (
        "missing arguments get the values that `llmperf collect` would use, based on a memory "
        "analysis made now on"
    )
    assert any(text.startswith(filled) for text in found["warnings"])
    # A second process knows what the first one found out.
    again = api.load_model(trained.run).predict(csr, **SIZES)
    assert any("made by an earlier prediction" in text for text in again["warnings"])


def test_given_arguments_lead_the_others(
    analysed: Kernel, trained: Trained, csr: Path, tmp_path: Path
) -> None:
    model = api.load_model(trained.run)
    assert analysed.analysis is not None
    kept = AnalysisCache(tmp_path / "state" / "llmperf" / "analyses")
    kept.write(analysed.kernel_id, analysed.analysis)
    by_scalar = taken(model.predict(csr, **SIZES, args={"num_offsets": 1001})["warnings"])
    assert by_scalar["row_offsets"] == 1001
    assert by_scalar["y"] == 1000
    assert by_scalar["vals"] == by_scalar["cols"] == 16 * 1001
    by_buffer = taken(model.predict(csr, **SIZES, args={"row_offsets": 501})["warnings"])
    assert by_buffer["vals"] == by_buffer["cols"] == 16 * 501


def test_a_buffer_that_the_launch_overruns_is_warned_about(
    cpu: DeviceRef, trained: Trained, tmp_path: Path
) -> None:
    (tmp_path / "fill.cl").write_text(FILL, encoding="utf-8")
    asked = ("predict", tmp_path / "fill.cl", "--model", trained.run)
    sizes = ("--global-size", "64,64", "--local-size", "8,8")
    done = llmperf(*asked, *sizes, "--arg", "a=5")
    assert done.code == 0, done.err
    assert "buffer 'a' has 5 elements, but the launch accesses 4096" in done.err
    done = llmperf(*asked, *sizes, "--arg", "a=4096")
    assert "accesses" not in done.err


@pytest.mark.parametrize(
    ("source", "sizes", "args", "warning"),
    [
        (ROWS, ((64, 64), (8, 8)), {"w": 1024, "c": 4096}, "'c' has 4096 elements, but the launch"),
        (TILE, (4096, 64), {"c": 4096, "t": 16}, "'t' has 16 elements, but the launch accesses 64"),
    ],
)
def test_an_overrun_is_warned_about_at_the_first_question(
    cpu: DeviceRef,
    trained: Trained,
    source: str,
    sizes: tuple[int | tuple[int, ...], int | tuple[int, ...]],
    args: dict[str, int],
    warning: str,
) -> None:
    """Buffers as large as the NDRange, or in local memory: nothing else asks for a probe here."""
    model = api.load_model(trained.run)
    found = model.predict(source, global_size=sizes[0], local_size=sizes[1], args=args)
    assert any(warning in one for one in found.warnings), found.warnings


def test_without_a_device_the_simple_rule_stands_in_and_that_is_said(
    trained: Trained, csr: Path
) -> None:
    model = api.load_model(trained.run, analyse=False)
    found = model.predict(csr, **SIZES)
    assert taken(found["warnings"])["vals"] == 65536
    assert any("memory accesses are not known" in one for one in found["warnings"])


@pytest.mark.slow
def test_a_probe_that_does_not_end_is_killed(
    cpu: DeviceRef, trained: Trained, csr: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmperf.prediction.analysing.ANALYSIS_TIMEOUT_S", 0.05)
    found = api.load_model(trained.run).predict(csr, **SIZES)
    assert any("the analysis was killed after 0.05 s" in one for one in found["warnings"])
    assert taken(found["warnings"])["vals"] == 65536
    # A later process does not wait for it again, until a day has gone.
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(csr.parent / "state"))
    again = api.load_model(trained.run).predict(csr, **SIZES)
    assert again["warnings"] == found["warnings"]
    (kept,) = (csr.parent / "state" / "llmperf" / "analyses").glob("*.json")
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "until_s": 1.0}), encoding="utf-8")
    late = api.load_model(trained.run).predict(csr, **SIZES)
    assert any("a memory analysis made now on" in one for one in late["warnings"])


def test_an_analysis_that_fails_is_not_made_again(cpu: DeviceRef, trained: Trained) -> None:
    source = "__kernel void odd(__global int *a) { a[get_global_id(0)] = __made_up(1); }"
    lines: list[str] = []
    first, again = (
        api.load_model(trained.run, progress=lines.append).predict(source, **SIZES)
        for _ in range(2)
    )
    assert any("the kernel's memory analysis failed" in one for one in first.warnings), (
        first.warnings
    )
    assert again.warnings == first.warnings
    assert [one for one in lines if "probing" in one] == lines[1:]


@pytest.mark.parametrize("icd", ["/nonexistent.icd", ""])
def test_a_device_that_cannot_be_opened_is_said_in_a_line(
    trained: Trained, caplog: pytest.LogCaptureFixture, icd: str
) -> None:
    """A remembered verdict can name a device that is gone."""
    (source,) = read(Path("x"), (file_of_text(FILL.replace("fill", "unheard"), "x"),))
    gone = {"OCL_ICD_VENDORS": icd} if icd else {}
    analyst = Analyst(load_run(trained.run).kernels)
    analyst._device = DeviceRef(selector="cpu", platform="gone", name="gone", environment=gone)
    known = analyst.find_out(source.kernel)
    assert known.analysis is None
    assert known.said == "the CPU OpenCL device cannot be opened: see `llmperf doctor --again`"
    assert caplog.records == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("a[0] = 1 }", ("bad.cl:2: error: expected ';'", "correct the source")),
        ("a[0] = unknown; }", ("bad.cl:2: error: use of undeclared identifier 'unknown'",)),
        ("a[0] = unknown(1); }", ("bad.cl:2: error:", "'unknown'")),
        ("if (1) { a[0] = 1; }", ("bad.cl:", "error: expected '}'")),
    ],
)
def test_a_source_that_does_not_compile_exits_3(
    trained: Trained, tmp_path: Path, body: str, words: tuple[str, ...]
) -> None:
    path = tmp_path / "bad.cl"
    path.write_text(f"__kernel void k(__global float *a) {{\n{body}\n", encoding="utf-8")
    done = llmperf("predict", path, "--model", trained.run, *OPTIONS)
    assert_refused(done, Exit.BAD_INPUT, *words)
