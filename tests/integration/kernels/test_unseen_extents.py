"""Kernels of many kinds that the analysis was not written with: what it calls validated is exact, whatever is planned.

The whole set is slow: some hundred kernels are probed, in killable children, so that one that ends its process fails
alone. Each fifth of them is probed at each change, the others at night. A few that stand for the others are probed in
this process.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import pytest

from llmperf_common.analysis import Analysis
from llmperf_common.records import Kernel
from tests.extents.known import FLAGS, PLANNED_SHORT, UNPROBED, VARYING, WRONG
from tests.extents.verdicts import WRONG_VERDICTS, Finding, Verdict, all_cases, judge, kernel_of
from tests.support.sampling import NIGHTLY, SLOW
from workers.analysis.analyse import analyse_kernel, probe_limits
from workers.analysis.opening import open_prober
from workers.corpus.parquet import Corpus
from workers.device.interface import DeviceRef, Prober
from workers.discovery.find import choose
from workers.execution.analyse_ahead import analyse_corpus

CASES = {one.name: one for one in all_cases()}
PAIRS = [f"{case.name}.{argument}" for case in CASES.values() for argument in case.truths]
LEAST_EXACT = 400
"""A little below what is measured, 412 of 605 pairs; raised when the analysis learns more."""
REPRESENTATIVE = (
    "axpy_increments", "value_times_stride", "pathfinder_row", "ghost_1d", "restrict_full_weight", "convolve_valid",
    "scan_blelloch", "haar_step", "move_particles", "shifted_vectors", "struct_by_value", "guard_of_sum",
)  # fmt: skip

SAMPLE = frozenset(list(CASES)[::5])
slow = [pytest.mark.slow, pytest.mark.opencl, pytest.mark.timeout(1800)]
Analysed = Callable[[str], tuple[Kernel, Analysis]]
Judged = Callable[[str], Mapping[str, Finding]]


@pytest.fixture(scope="module")
def prober() -> Iterator[Prober]:
    opened = open_prober(cpu())
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def analysed() -> Analysed:
    """Gives a case with its analysis; the sample or the rest is analysed when one of it is first asked for."""

    @functools.cache
    def share(is_sampled: bool) -> dict[str, tuple[Kernel, Analysis]]:
        chosen = [case for name, case in CASES.items() if (name in SAMPLE) == is_sampled]
        kernels = {one.kernel_id: one for one in map(kernel_of, chosen)}
        found = analyse_corpus(Corpus(kernels=tuple(kernels.values()), sha256=""), cpu())
        assert all(one.analysis is not None for one in found.kernels)
        return {one.name: (one, one.analysis) for one in found.kernels if one.analysis is not None}

    return lambda name: share(name in SAMPLE)[name]


@pytest.fixture(scope="module")
def judged(analysed: Analysed) -> Judged:
    """Judges a kernel when it is asked for, once."""
    findings: dict[str, Mapping[str, Finding]] = {}

    def findings_of(name: str) -> Mapping[str, Finding]:
        if name not in findings:
            findings[name] = judge(CASES[name], *analysed(name))
        return findings[name]

    return findings_of


def cpu() -> DeviceRef:
    ref = choose("cpu")
    assert isinstance(ref, DeviceRef), ref
    return ref


def marked(names: list[str], known: Mapping[str, str]) -> list[object]:
    """Return the names as parameters: what is known to fail must fail, and what is not in the sample runs at night."""
    marks = {one: [pytest.mark.xfail(strict=True, reason=known[one])] for one in known}
    return [
        pytest.param(
            one, marks=[*marks.get(one, []), *(SLOW if one.split(".")[0] in SAMPLE else NIGHTLY)]
        )
        for one in names
    ]


@pytest.mark.opencl
@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_a_few_kernels_are_claimed_exactly(prober: Prober, name: str) -> None:
    case = CASES[name]
    kernel = kernel_of(case)
    analysis = analyse_kernel(kernel, prober, probe_limits(prober.device))
    findings = judge(case, kernel, analysis, samples=10)
    assert {argument: one.verdict for argument, one in findings.items()} == dict.fromkeys(
        case.truths, Verdict.EXACT
    )
    assert {one.planned_short for one in findings.values()} == {""}
    assert analysis.data_dependent is case.is_steered


def test_what_is_known_to_fail_names_what_there_is() -> None:
    assert {*WRONG, *PLANNED_SHORT} <= set(PAIRS)
    assert {*FLAGS, *UNPROBED, *VARYING} <= set(CASES)


class TestWholeSet:
    pytestmark = slow

    @pytest.mark.parametrize("pair", marked(PAIRS, WRONG))
    def test_what_is_validated_is_exact(
        self, judged: Judged, pair: str, record_property: Callable[[str, object], None]
    ) -> None:
        name, argument = pair.split(".")
        finding = judged(name)[argument]
        record_property("verdict", finding.verdict.value)
        record_property("detail", finding.detail)
        assert finding.verdict not in WRONG_VERDICTS, finding.detail

    @pytest.mark.parametrize("pair", marked(PAIRS, PLANNED_SHORT))
    def test_a_planned_buffer_holds_what_is_touched(self, judged: Judged, pair: str) -> None:
        name, argument = pair.split(".")
        finding = judged(name)[argument]
        if finding.verdict is not Verdict.UNRESOLVED:
            assert finding.planned_short == ""

    @pytest.mark.parametrize("name", marked(list(CASES), FLAGS))
    def test_contents_are_noticed_where_they_decide(self, analysed: Analysed, name: str) -> None:
        _, analysis = analysed(name)
        expected = None if analysis.failure else CASES[name].is_steered
        assert analysis.data_dependent is expected

    @pytest.mark.parametrize("name", marked(list(CASES), UNPROBED))
    def test_it_can_be_probed(self, analysed: Analysed, name: str) -> None:
        assert analysed(name)[1].failure == ""

    @pytest.mark.parametrize("name", marked(sorted(VARYING), {}))
    def test_a_text_that_asks_for_the_device_is_never_validated(
        self, analysed: Analysed, name: str
    ) -> None:
        assert not any(one.validated for one in analysed(name)[1].extents)

    @pytest.mark.nightly
    def test_enough_is_exact(self, judged: Judged) -> None:
        verdicts = Counter(one.verdict for name in CASES for one in judged(name).values())
        assert verdicts.total() == len(PAIRS)
        assert verdicts[Verdict.EXACT] >= LEAST_EXACT, verdicts
