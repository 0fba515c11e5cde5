"""The title of a dataset's or an evaluation's page: name, device class, sizes and scored model."""

from __future__ import annotations

from llmperf.html_report.charts.markup import shorten
from llmperf.html_report.charts.quantities import count, counted
from llmperf.html_report.dataset.facts import DatasetFacts
from llmperf.html_report.evaluation.facts import EvaluationFacts

_NAME_CHARS = 60


def headline(dataset: DatasetFacts | None, evaluation: EvaluationFacts | None) -> str:
    """Return the title: name, device class, kernels, samples, model."""
    if dataset is not None:
        view, classes = dataset.view.title, dataset.samples.device_class.counts()
        num_kernels = len(dataset.kernels.by_id) or len(dataset.samples.kernel.counts())
        num_samples = dataset.samples.num_rows
    elif evaluation is not None:
        view, classes = evaluation.view.title, evaluation.device_class.counts()
        rows = evaluation.rows_of(evaluation.primary_model)
        num_kernels = len(evaluation.kernel.counts(rows))
        num_samples = int(rows.sum())
    else:
        return ""
    parts = [counted(num_kernels, "kernel"), counted(num_samples, "sample")]
    if evaluation is not None and evaluation.primary_model:
        parts.append(f"model {shorten(evaluation.primary_model, _NAME_CHARS)}")
    return f"{shorten(view, _NAME_CHARS)}{_on(classes)}: {', '.join(parts)}"


def _on(classes: dict[str, int]) -> str:
    named = [name for name in classes if name]
    if not named:
        return ""
    return f" on {named[0]}" if len(named) == 1 else f" on {count(len(named))} device classes"


def subtitle(dataset: DatasetFacts | None, evaluation: EvaluationFacts | None) -> str:
    """Return the line below the title: the kind of page, and the scored split."""
    kinds = [
        words
        for words, facts in (("dataset", dataset), ("evaluation", evaluation))
        if facts is not None
    ]
    text = f"LLMPerf {' and '.join(kinds)} report"
    if evaluation is None:
        return text
    rows = evaluation.rows_of(evaluation.primary_model)
    kernels = counted(len(evaluation.kernel.counts(rows)), "kernel")
    launches = counted(int(rows.sum()), "launch", "launches")
    return f"{text}; scored on the {evaluation.shown_split} split: {launches} of {kernels}"
