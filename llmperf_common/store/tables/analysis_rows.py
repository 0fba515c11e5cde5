"""Convert a kernel's memory analysis to columns of its row in ``kernels``, and back.

Owns that conversion, so that all readers of a dataset (a run's summary, ``verify``, the trainer)
get the records of ``llmperf_common/analysis.py``, which evaluates extents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from llmperf_common.analysis import (
    Analysis,
    ChosenScalar,
    Contents,
    ContentsRule,
    Extent,
    IndexRole,
    IndexTarget,
    InputChoice,
    Polynomial,
    ScalarChoice,
    Term,
)
from llmperf_common.files.host_paths import without_host_paths

ANALYSIS_COLUMNS = (
    "analysis",
    "data_dependent",
    "index_roles",
    "analysis_failure",
    "overflowing_local_sizes",
)
"""The columns of ``kernels`` that ``analysis_from_row`` needs."""
INPUTS_COLUMN = "inputs"
"""A further column of ``kernels``, which ``analysis_from_row`` reads if it exists."""

_INT64 = range(-(2**63), 2**63)


def analysis_columns(analysis: Analysis | None) -> dict[str, Any]:
    """Return a row's ``ANALYSIS_COLUMNS`` and ``INPUTS_COLUMN``.

    If the kernel was not analysed, return only ``analysis``, as an empty list.
    """
    if analysis is None:
        return {"analysis": []}
    return {
        "analysis": [_extent_row(extent) for extent in analysis.extents],
        "data_dependent": analysis.data_dependent,
        "index_roles": [
            {
                "position": role.position,
                "rule": role.rule.value,
                "targets": [
                    {"position": target.position, **_polynomial_row(target.form)}
                    for target in role.targets
                ],
            }
            for role in analysis.index_roles
        ],
        "analysis_failure": without_host_paths(analysis.failure) or None,
        "overflowing_local_sizes": [list(one) for one in analysis.overflowing_local_sizes],
        INPUTS_COLUMN: _choice_row(analysis.inputs),
    }


def analysis_from_row(row: Mapping[str, Any]) -> Analysis | None:
    """Return the analysis in a row of ``kernels``; None if the kernel was not analysed.

    Args:
        row: a row with ``ANALYSIS_COLUMNS`` and perhaps ``INPUTS_COLUMN``. Columns that its schema
            version lacks may be missing or null.

    Raises:
        ValueError: A rule is unknown.
    """
    roles = row.get("index_roles")
    if not row.get("analysis") and roles is None:
        return None
    return Analysis(
        extents=tuple(extent_from_row(entry) for entry in row["analysis"] or ()),
        data_dependent=row.get("data_dependent"),
        index_roles=tuple(
            IndexRole(
                position=entry["position"],
                rule=ContentsRule(entry["rule"]),
                targets=tuple(
                    IndexTarget(
                        position=target["position"],
                        form=_polynomial(target["constant"], target["terms"]),
                    )
                    for target in entry["targets"] or ()
                ),
            )
            for entry in roles or ()
        ),
        failure=row.get("analysis_failure") or "",
        overflowing_local_sizes=tuple(
            tuple(int(side) for side in one) for one in row.get("overflowing_local_sizes") or ()
        ),
        inputs=_choice(row.get(INPUTS_COLUMN)),
    )


def extent_from_row(entry: Mapping[str, Any]) -> Extent:
    """Return one entry of ``kernels.analysis`` as a record; a null constant means no polynomial."""
    constant, cap = entry.get("constant"), entry.get("cap_constant")
    return Extent(
        position=entry.get("position", 0),
        form=None if constant is None else _polynomial(constant, entry.get("terms")),
        cap=None if cap is None else _polynomial(cap, entry.get("cap_terms")),
        validated=bool(entry.get("validated")),
        reason=entry.get("reason") or "",
    )


def storable(analysis: Analysis) -> Analysis:
    """Return ``analysis`` without numbers beyond 64 bits, which its columns cannot hold.

    Call it before planning, so that the plan follows from the stored row.
    """
    extents = tuple(
        extent
        if _fits(extent.form) and _fits(extent.cap)
        else Extent(position=extent.position, form=None, reason="a coefficient beyond 64 bits")
        for extent in analysis.extents
    )
    roles = tuple(
        replace(role, targets=tuple(one for one in role.targets if _fits(one.form)))
        for role in analysis.index_roles
    )
    return replace(analysis, extents=extents, index_roles=roles)


def _choice_row(choice: InputChoice | None) -> dict[str, Any] | None:
    if choice is None:
        return None
    return {
        "floats_free": choice.floats_free,
        "scalars": [{"position": one.position, "value": one.value.value} for one in choice.scalars],
        "contents": choice.contents.rule.value if choice.contents else None,
        "contents_limit": choice.contents.limit if choice.contents else None,
        "num_tried": choice.num_tried,
        "plain_share": choice.plain_share,
        "active_share": choice.active_share,
        "reason": without_host_paths(choice.reason) or None,
    }


def _choice(row: Mapping[str, Any] | None) -> InputChoice | None:
    if row is None:
        return None
    rule = row.get("contents")
    return InputChoice(
        floats_free=row.get("floats_free"),
        scalars=tuple(
            ChosenScalar(position=int(one["position"]), value=ScalarChoice(one["value"]))
            for one in row.get("scalars") or ()
        ),
        contents=Contents(rule=ContentsRule(rule), limit=int(row["contents_limit"]))
        if rule
        else None,
        num_tried=int(row.get("num_tried") or 0),
        plain_share=row.get("plain_share"),
        active_share=row.get("active_share"),
        reason=row.get("reason") or "",
    )


def _fits(polynomial: Polynomial | None) -> bool:
    if polynomial is None:
        return True
    numbers = (polynomial.constant, *(term.coefficient for term in polynomial.terms))
    return all(number in _INT64 for number in numbers)


def _extent_row(extent: Extent) -> dict[str, Any]:
    cap = _polynomial_row(extent.cap)
    return {
        "position": extent.position,
        **_polynomial_row(extent.form),
        "cap_constant": cap["constant"],
        "cap_terms": cap["terms"],
        "validated": extent.validated,
        "reason": without_host_paths(extent.reason) or None,
    }


def _polynomial_row(polynomial: Polynomial | None) -> dict[str, Any]:
    if polynomial is None:
        return {"constant": None, "terms": None}
    terms = [
        {"factors": list(term.factors), "coefficient": term.coefficient}
        for term in polynomial.terms
    ]
    return {"constant": polynomial.constant, "terms": terms}


def _polynomial(constant: int, terms: Sequence[Mapping[str, Any]] | None) -> Polynomial:
    return Polynomial(
        constant=int(constant),
        terms=tuple(
            Term(factors=tuple(term["factors"]), coefficient=int(term["coefficient"]))
            for term in terms or ()
        ),
    )
