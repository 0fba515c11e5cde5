"""One self-contained HTML page about a dataset, an evaluation, both, or a corpus.

Owns ``llmperf report``'s page: tables in, HTML out, charts drawn here as inline SVG. Does not open
datasets, nor define metrics. Imported only by the command that needs it, so that ``import llmperf``
stays light.
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
