"""Join a dataset's families with a run's families, to find near duplicates of the run's kernels.

A family is a group of near-duplicate kernels. A family id is the smallest kernel id of the family
*within one dataset*, so a renamed copy of a kernel in another dataset has another family id.
Therefore each kernel's source is compared to the sources that the run knows. The families within
the dataset are taken from its tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmperf_common.statistics.splits import Part
from trainer.data.dataset import TrainingData
from trainer.errors import BadInput
from trainer.run.folder import FAMILIES_FILE
from trainer.run.known_families import KnownFamilies
from trainer.run.loaded import LoadedRun

_PRECEDENCE = (Part.VALIDATION, Part.CALIBRATION, Part.TEST)
"""A family with near duplicates in several parts belongs to the first of these parts.

The model was selected on validation and its intervals come from calibration, so a family of one of
these two parts would make the test metrics look too good."""

_MOST_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The families of a dataset that have near duplicates in a run.

    Attributes:
        seen: families with a near duplicate of a fitted kernel.
        parts: maps each family that has a near duplicate in the run's validation, calibration or
            test part to that part.
        notes: checks that could not be made.
    """

    seen: frozenset[str]
    parts: Mapping[str, Part]
    notes: tuple[str, ...] = ()


def join_families(run: LoadedRun, data: TrainingData) -> Joined:
    """Compare the dataset's kernels to the run's kernels.

    Raises:
        BadInput: The run's record of its sources is damaged.
    """
    try:
        known = KnownFamilies.load(run.folder)
    except ValueError as error:
        raise BadInput(f"{error}; train it again, or copy the run anew") from None
    groups = _Groups()
    fitted: set[str] = set(run.split.parts.get(Part.TRAIN, ()))
    if known is not None:
        fitted |= {known.family_id[place] for place in np.flatnonzero(known.fitted).tolist()}
    for family, related in _relations(run, data, known):
        groups.unite(family, related)
    seen_roots = {groups.root(family) for family in fitted}
    seen_roots |= {groups.root(family) for family in _fitted_by_id(run, data)}
    parts_of: dict[str, Part] = {}
    for part in reversed(_PRECEDENCE):
        named = run.split.parts.get(part, ())
        parts_of.update(dict.fromkeys((groups.root(family) for family in named), part))
    families = np.unique(data.family_id).tolist()
    return Joined(
        seen=frozenset(one for one in families if groups.root(one) in seen_roots),
        parts={one: parts_of[groups.root(one)] for one in families if groups.root(one) in parts_of},
        notes=() if known is not None else (_not_checked(run),),
    )


def check_sources(data: TrainingData, index: npt.NDArray[np.intp]) -> None:
    """Reject rows whose kernels have no source, because near duplicates are found by source only.

    Args:
        data: the dataset.
        index: the rows to score.

    Raises:
        BadInput: A source is missing; the message says how many are missing and what to do.
    """
    kernels = data.rows.kernels
    sources = kernels.column("source").to_pylist()
    used = np.unique(data.rows.kernel_row[index]).tolist()
    missing = [row for row in used if not (sources[row] or "").strip()]
    if not missing:
        return
    ids = kernels.column("kernel_id").to_pylist()
    named = ", ".join(ids[row] for row in missing[:_MOST_NAMED])
    more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    raise BadInput(
        f"{len(missing)} of {len(used)} kernels have no source in the dataset ({named}{more}), so "
        "they cannot be compared to the train kernels. Evaluate on the dataset as it was "
        "collected, which holds the sources, or collect these kernels again from their corpus"
    )


def _relations(
    run: LoadedRun, data: TrainingData, known: KnownFamilies | None
) -> Iterator[tuple[str, str]]:
    """Yield (dataset's family, run's family) of families with equal or near-duplicate kernels."""
    kernels = data.rows.kernels
    by_hash = dict(
        zip(
            run.kernels.column("source_sha256").to_pylist(),
            run.kernels.column("family_id").to_pylist(),
            strict=True,
        )
    )
    if known is not None:
        by_hash |= dict(zip(known.sha256, known.family_id, strict=True))
    by_id = dict(
        zip(
            run.kernels.column("kernel_id").to_pylist(),
            run.kernels.column("family_id").to_pylist(),
            strict=True,
        )
    )
    columns = ("kernel_id", "family_id", "source_sha256", "source")
    values = [kernels.column(name).to_pylist() for name in columns]
    for row in np.unique(data.rows.kernel_row).tolist():
        kernel_id, family, sha256, source = (column[row] for column in values)
        same = {by_hash.get(sha256), by_id.get(kernel_id)} - {None}
        if same:
            yield from ((family, str(one)) for one in same)
        elif known is not None and source:
            yield from ((family, known.family_id[place]) for place in known.like(source))


def _fitted_by_id(run: LoadedRun, data: TrainingData) -> set[str]:
    """Return the families of the dataset that have a kernel with the id of a fitted kernel."""
    fitted = np.isin(data.texts("kernel_id"), run.kernels.column("kernel_id").to_pylist())
    return set(data.family_id[fitted].tolist())


def _not_checked(run: LoadedRun) -> str:
    return (
        "near duplicates of the train kernels were not searched for, because "
        f"{run.folder} was made by an earlier release and has no {FAMILIES_FILE}; only equal "
        "kernels and sources count as seen. Train it again to check near duplicates"
    )


class _Groups:
    """A union-find structure over family ids."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def root(self, family: str) -> str:
        while (parent := self._parents.get(family, family)) != family:
            family = parent
        return family

    def unite(self, first: str, second: str) -> None:
        one, other = sorted((self.root(first), self.root(second)))
        if one != other:
            self._parents[other] = one
