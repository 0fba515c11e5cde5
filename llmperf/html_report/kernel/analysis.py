"""The memory analysis of one kernel as text.

Owns the text form of an extent's polynomial; ``llmperf_common/analysis.py`` evaluates it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmperf.html_report.charts.markup import Html, paragraph, shorten, table
from llmperf.html_report.charts.quantities import MINUS, NO_VALUE, TIMES, count
from llmperf_common.analysis import Extent, Polynomial
from llmperf_common.store.tables.analysis_rows import extent_from_row

_REASON_CHARS = 160
_MAX_EXTENTS = 32
_BY = f" {TIMES} "


def polynomial_words(polynomial: Polynomial) -> str:
    """Return a polynomial in mathematical notation.

    >>> from llmperf_common.analysis import Term
    >>> form = Polynomial(constant=1, terms=(Term(factors=("n", "m"), coefficient=2),))
    >>> polynomial_words(form).replace(TIMES, "*")
    '2 * n * m + 1'
    """
    parts = [
        (term.coefficient, _BY.join([*_coefficient(term.coefficient), *term.factors]))
        for term in polynomial.terms
    ]
    if polynomial.constant or not parts:
        parts.append((polynomial.constant, count(abs(polynomial.constant))))
    words = "".join(f" {MINUS if sign < 0 else '+'} {text}" for sign, text in parts)
    return words[3:] if parts[0][0] >= 0 else words[1:]


def _coefficient(coefficient: int) -> list[str]:
    return [] if abs(coefficient) == 1 else [count(abs(coefficient))]


def extent_words(extent: Extent) -> str:
    """Return the number of elements that a launch touches as a formula; a dash if unknown."""
    if extent.form is None:
        return NO_VALUE
    words = polynomial_words(extent.form)
    return words if extent.cap is None else f"min({words}, {polynomial_words(extent.cap)})"


def extents_table(row: Mapping[str, Any]) -> Html:
    """Return a table of the extents of a kernel's buffers, or a sentence if there are none.

    Args:
        row: The kernel's row of ``kernels``; columns of later versions may be missing.
    """
    failure = row.get("analysis_failure")
    entries: Sequence[Mapping[str, Any]] = row.get("analysis") or ()
    if failure or not entries:
        reason = shorten(str(failure), _REASON_CHARS) if failure else "the kernel was not analysed"
        return paragraph(f"No extents of this kernel's buffers are known: {reason}.")
    names = {one["position"]: one["name"] for one in row.get("args") or ()}
    body = []
    for entry in entries[:_MAX_EXTENTS]:
        try:
            extent = extent_from_row(entry)
        except ValueError as error:  # LLMPerf did not write this row
            problem = shorten(str(error), _REASON_CHARS)
            return paragraph(f"The memory analysis of this kernel cannot be read: {problem}.")
        name = shorten(str(names.get(extent.position) or extent.position), 40)
        how = "exact on held-out probes" if extent.validated else extent.reason or "not validated"
        body.append(
            (name, shorten(extent_words(extent), _REASON_CHARS), shorten(how, _REASON_CHARS))
        )
    depends = " Buffer contents decide indices or loop counts." if row.get("data_dependent") else ""
    caption = f"Memory analysis: the elements of each buffer that a launch touches.{depends}"
    return table(caption, ("Buffer", "Elements", "Validation"), body, align="llp")
