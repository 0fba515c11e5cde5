"""The functions that ``llmperf report`` calls to write a page from views.

Owns the list of sections of a page, and its atomic writing.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from llmperf.html_report.charts.markup import Html
from llmperf.html_report.charts.quantities import counted
from llmperf.html_report.corpus.failures import failures_section as corpus_failures_section
from llmperf.html_report.corpus.failures import macros_section
from llmperf.html_report.corpus.families import families_section
from llmperf.html_report.corpus.overview import overview_section as corpus_overview_section
from llmperf.html_report.corpus.shape import shape_section
from llmperf.html_report.dataset.checks import checks_section
from llmperf.html_report.dataset.coverage import coverage_section
from llmperf.html_report.dataset.facts import DatasetFacts, dataset_facts
from llmperf.html_report.dataset.failures import failures_section
from llmperf.html_report.dataset.noise import noise_section
from llmperf.html_report.dataset.overview import overview_section
from llmperf.html_report.dataset.scaling import scaling_section
from llmperf.html_report.dataset.times import times_section
from llmperf.html_report.evaluation.calibration import calibration_section
from llmperf.html_report.evaluation.errors import errors_section
from llmperf.html_report.evaluation.facts import EvaluationFacts, evaluation_facts
from llmperf.html_report.evaluation.kernels import kernels_section
from llmperf.html_report.evaluation.metrics import metrics_section
from llmperf.html_report.headline import headline, subtitle
from llmperf.html_report.kernel.sections import kernel_sections
from llmperf.html_report.page import document, is_report
from llmperf.html_report.views import CorpusView, DatasetView, EvaluationView, KernelChoice, Stamp
from llmperf_common.files.outputs import file_to_write
from llmperf_common.files.replacing import replacing
from workers.corpus.stats import corpus_stats

_NO_STAMP = Stamp()
_BY_RULE = KernelChoice()


def dataset_sections(facts: DatasetFacts) -> list[Html]:
    """Return the sections about a dataset."""
    makers = (
        overview_section,
        coverage_section,
        failures_section,
        times_section,
        scaling_section,
        noise_section,
        checks_section,
    )
    return [make(facts) for make in makers]


def evaluation_sections(facts: EvaluationFacts) -> list[Html]:
    """Return the sections about an evaluation."""
    makers = (metrics_section, errors_section, calibration_section, kernels_section)
    return [make(facts) for make in makers]


def corpus_sections(view: CorpusView) -> list[Html]:
    """Return the sections about a corpus."""
    stats = corpus_stats(view.corpus)
    makers = (
        corpus_overview_section,
        shape_section,
        families_section,
        corpus_failures_section,
        macros_section,
    )
    return [make(view, stats) for make in makers]


def render_corpus_report(view: CorpusView, *, stamp: Stamp = _NO_STAMP) -> str:
    """Return the page about a corpus as text."""
    sections = corpus_sections(view)
    title = f"{view.title}: {counted(len(view.corpus.kernels), 'kernel')}"
    return str(document(title, "LLMPerf corpus report", sections, stamp, has_times=False))


def render_report(
    *,
    dataset: DatasetView | None,
    evaluation: EvaluationView | None,
    stamp: Stamp = _NO_STAMP,
    kernels: KernelChoice = _BY_RULE,
) -> str:
    """Return the page about a dataset, an evaluation or both as text.

    Raises:
        ValueError: Neither a dataset nor an evaluation was given, or the dataset lacks a kernel
            that ``kernels`` names (``UnknownKernelError``).
    """
    if dataset is None and evaluation is None:
        raise ValueError("a report needs a dataset, an evaluation or both")
    measured = dataset_facts(dataset) if dataset is not None else None
    scored = evaluation_facts(evaluation) if evaluation is not None else None
    last: list[Html] = []
    if measured is not None:
        one_by_one, shown = kernel_sections(measured, scored, kernels)
        last = [one_by_one]
        # The tables of kernels link to these sections.
        measured = replace(measured, kernels=replace(measured.kernels, shown=shown))
        scored = scored and replace(scored, kernels=replace(scored.kernels, shown=shown))
    sections = dataset_sections(measured) if measured is not None else []
    sections += evaluation_sections(scored) if scored is not None else []
    title, below = headline(measured, scored), subtitle(measured, scored)
    return str(document(title, below, [*sections, *last], stamp))


def write_report(
    *,
    dataset: DatasetView | None,
    evaluation: EvaluationView | None,
    out: Path,
    stamp: Stamp = _NO_STAMP,
    kernels: KernelChoice = _BY_RULE,
) -> int:
    """Write one self-contained HTML page and return its size in bytes.

    The page is a function of its arguments: the same views and stamp give the same bytes. It is
    written to a temporary file and renamed, so a reader never sees half a page. Missing folders
    above ``out`` are created.

    Raises:
        ValueError: Same as ``render_report``.
        OutputTaken: ``out`` exists and is not a report.
        OSError: ``out`` cannot be written.
    """
    page = render_report(dataset=dataset, evaluation=evaluation, stamp=stamp, kernels=kernels)
    return _write(page, out)


def write_corpus_report(view: CorpusView, *, out: Path, stamp: Stamp = _NO_STAMP) -> int:
    """Write one page about a corpus, as ``write_report`` does; return its size in bytes."""
    return _write(render_corpus_report(view, stamp=stamp), out)


def report_to_write(path: Path) -> Path:
    """Return the file to write a report to: ``path``, with symbolic links followed.

    Raises:
        OutputTaken: ``path`` exists and is not a report.
    """
    return file_to_write(path, is_ours=is_report, what="report")


def _write(text: str, path: Path) -> int:
    page = text.encode("utf-8", "replace")
    out = report_to_write(path)
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as partial:
        partial.write_bytes(page)
    return len(page)
