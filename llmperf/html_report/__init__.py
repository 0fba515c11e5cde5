"""One self-contained HTML page about a dataset, an evaluation, both, or a corpus.

Owns the page of ``llmperf report``: its input is tables, its output is HTML with charts as inline
SVG. Does not open datasets and does not define metrics. Only the report command imports it, so that
``import llmperf`` stays fast.
"""

from llmperf.html_report.kernel.choice import UnknownKernelError
from llmperf.html_report.views import CorpusView, DatasetView, EvaluationView, KernelChoice, Stamp
from llmperf.html_report.writer import (
    render_corpus_report,
    render_report,
    report_to_write,
    write_corpus_report,
    write_report,
)

__all__ = [
    "CorpusView",
    "DatasetView",
    "EvaluationView",
    "KernelChoice",
    "Stamp",
    "UnknownKernelError",
    "render_corpus_report",
    "render_report",
    "report_to_write",
    "write_corpus_report",
    "write_report",
]
