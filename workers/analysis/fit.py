"""Fit a buffer's extent as a polynomial of the launch sizes, or as the smaller of two polynomials.

Owns the search for guards; ``polynomials.py`` fits a single polynomial. It is unknown which probes
lie on which side of a guard. So candidates are fitted to groups of probes, and another form is
fitted to the probes that a candidate does not explain. Source: LLMPerf, arXiv 2503.11244 (affine
fit through two sizes, not validated); here a form must give the extent of every probe exactly.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workers.analysis.points import CHALLENGES
from workers.analysis.polynomials import MAX_DEGREE, Basis, Fit, Rows, fit

FEWEST_HELD_OUT = 2
_FEWEST_ON_A_SIDE = 4
_MOST_GROUPS, _MOST_POOLED = 72, 36
_LOOSEST = 64
"""Largest factor by which a bound may exceed the extent of any probe; a looser bound is useless."""
_LARGEST_BOUND = 2**36
"""Maximum extent in elements. A larger one, at a probe's small sizes, comes from a faulty kernel.
"""
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """The probes' observations of one buffer.

    ``rows``: sizes, shape (n, variables). ``extents``: elements, 0 if nothing was touched, shape
    (n,). ``tiers``: the side of the guards for which each probe was designed. ``held_out``: whether
    a probe is only for validation. ``identities``: pairs of variables whose product is another.
    """

    names: tuple[str, ...]
    rows: Rows
    extents: Rows
    tiers: npt.NDArray[np.str_]
    held_out: Mask
    identities: frozenset[tuple[int, int]] = frozenset()

    @property
    def challenges(self) -> Mask:
        """A mask of the held-out probes that are challenges."""
        return np.isin(self.tiers, CHALLENGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A fit: ``min(form, cap)`` is the extent of each probe (``is_exact``), or an upper bound."""

    form: Fit
    cap: Fit | None
    is_exact: bool


def explain(
    seen: Observations,
    thresholds: Sequence[int] = (),
    choices: Sequence[frozenset[int]] = (frozenset(),),
) -> Explained | None:
    """Return the exact form of an extent, else an upper bound, else None.

    Args:
        seen: the observations. No form is fitted to held-out probes, but they can refute a form.
        thresholds: constants that code compares with sizes.
        choices: sets of variables to leave out, tried in turn. If two variables are always
            proportional, one of them is left out.
    """
    searches = [_Search(seen, thresholds, left_out) for left_out in choices]
    for search in searches:
        found = search.single_or_pair()
        if found is not None:
            return found
    return searches[0].bound()


def active_variables(seen: Observations) -> list[int]:
    """Return the variables that may matter: all but those that changed alone without effect."""
    rows, extents = seen.rows, seen.extents
    derived = {one for pair in seen.identities for one in pair}
    plain = [index for index in range(rows.shape[1]) if index not in derived]
    found: list[int] = []
    for group in ([sorted(derived)] if derived else []) + [[index] for index in plain]:
        others = [index for index in plain if index not in group]
        if group[0] not in derived:
            others += sorted(one for one in derived if _is_local(seen.names[one]))
        if _changes(rows, extents, group, others):
            found += group
    return sorted(found)


def _is_local(name: str) -> bool:
    return name.startswith("local_size")


def _changes(rows: Rows, extents: Rows, group: list[int], others: list[int]) -> bool:
    """Whether a change of ``group`` alone changed the extent; True if no probe shows that."""
    seen: dict[tuple[int, ...], tuple[tuple[int, ...], int]] = {}
    is_tried = False
    for row, extent in zip(rows, extents, strict=True):
        key = tuple(int(row[index]) for index in others)
        own = tuple(int(row[index]) for index in group)
        first = seen.setdefault(key, (own, int(extent)))
        if first[0] != own:
            is_tried = True
            if first[1] != int(extent):
                return True
    return not is_tried


class _Search:
    def __init__(
        self, seen: Observations, thresholds: Sequence[int], left_out: frozenset[int]
    ) -> None:
        self._seen = seen
        self._thresholds = thresholds
        self._basis = Basis(seen.rows.shape[1], seen.identities)
        self._active = [one for one in active_variables(seen) if one not in left_out]
        self._touched = seen.extents > 0
        self._candidates: list[Fit] = []

    def single_or_pair(self) -> Explained | None:
        """Return an exact form, or the smaller of two forms; None if none matches every probe."""
        if not self._touched.any():
            return Explained(form=Fit(constant=0, terms=()), cap=None, is_exact=True)
        for group in itertools.islice(self._groups(), _MOST_GROUPS):
            one = self._fitted(group)
            if one is None or one in self._candidates:
                continue
            if self._meets(one.values(self._seen.rows)):
                return Explained(form=one, cap=None, is_exact=True)
            self._candidates.append(one)
            if self._meets(one.values(self._seen.rows), but=self._seen.challenges):
                return None  # all other probes match, so challenges refute the form
        for one in tuple(self._candidates):
            rest = self._unexplained(one)
            other = self._fitted(rest) if rest is not None else None
            if other is None:
                continue
            if other not in self._candidates:
                self._candidates.append(other)
            values = self._smaller(one, other)
            if self._meets(values):
                return self._pair(one, other, is_exact=True)
            if self._meets(values, but=self._seen.challenges):
                return None
        return None

    def bound(self) -> Explained | None:
        """Return the tightest upper bound made from candidates, their sums, or single monomials."""
        rows, extents = self._seen.rows, self._seen.extents
        if extents.max() > _LARGEST_BOUND:
            return None
        options = self._monomial_bounds()
        pool = [*self._candidates, *self._monomials()][:_MOST_POOLED]
        evaluated = [(one, one.values(rows)) for one in pool]
        for one, values in evaluated:
            if one in self._candidates and (values >= extents).all():
                options.append((_looseness(values, extents), one, None))
            for other, others in evaluated:
                smaller = np.minimum(values, others)
                is_close = (smaller <= _LOOSEST * np.maximum(extents, 1)).all()
                if other != one and is_close and (smaller >= extents).all():
                    options.append((_looseness(smaller, extents), one, other))
                if (np.maximum(values, others) == extents).all():
                    total = _sum(one, other)
                    options.append((_looseness(total.values(rows), extents), total, None))
        if not options:
            options = self._sums_of_monomials()
        if not options:
            return None
        _, form, cap = min(options, key=lambda one: (round(one[0], 3), one[2] is not None))
        if cap is None:
            return Explained(form=form, cap=None, is_exact=False)
        return self._pair(form, cap, is_exact=False)

    def _monomial_bounds(self) -> list[tuple[float, Fit, Fit | None]]:
        found: list[tuple[float, Fit, Fit | None]] = []
        rows, extents = self._seen.rows, self._seen.extents
        for one in (Fit(constant=1, terms=()), *self._monomials(MAX_DEGREE)):
            values = one.values(rows)
            factor = int(np.max(-(-extents // np.maximum(values, 1))))
            values = values * factor
            # A bound that is far from the extent of any probe is useless.
            if (values >= extents).all() and (values <= _LOOSEST * np.maximum(extents, 1)).all():
                scaled = Fit(
                    constant=one.constant * factor,
                    terms=tuple((monomial, by * factor) for monomial, by in one.terms),
                )
                found.append((_looseness(values, extents), scaled, None))
        return found

    def _sums_of_monomials(self) -> list[tuple[float, Fit, Fit | None]]:
        """Return upper bounds that are sums of two monomials, as for ``a[i + (far ? n : 0)]``."""
        rows, extents = self._seen.rows, self._seen.extents
        most = _LOOSEST * np.maximum(extents, 1)
        found: list[tuple[float, Fit, Fit | None]] = []
        evaluated = [(one, one.values(rows)) for one in self._monomials()[:_MOST_POOLED]]
        for (one, values), (other, others) in itertools.combinations(evaluated, 2):
            total = values + others
            if (total >= extents).all() and (total <= most).all():
                found.append((_looseness(total, extents), _sum(one, other), None))
        return found

    def _monomials(self, degree: int = MAX_DEGREE - 1) -> list[Fit]:
        found = self._basis.monomials(self._active, degree, powers=True)
        return [Fit(constant=0, terms=((one, 1),)) for one in found]

    def _groups(self) -> Iterator[Mask]:
        """Yield groups of probes that may lie on one side of every guard, likelier groups first."""
        known: set[bytes] = set()
        for group in self._likely_groups():
            key = group.tobytes()
            if key not in known:
                known.add(key)
                yield group

    def _likely_groups(self) -> Iterator[Mask]:
        seen = self._seen
        yield np.ones(len(seen.extents), dtype=bool)
        tiers = list(dict.fromkeys(seen.tiers.tolist()))
        for tier in tiers:
            yield seen.tiers == tier
        for threshold in self._thresholds:
            for index in self._active:
                below = seen.rows[:, index] < threshold
                yield below
                yield ~below
        for first in self._active:
            for second in self._active:
                if first < second:
                    below = seen.rows[:, first] < seen.rows[:, second]
                    yield below
                    yield ~below
        for threshold in self._thresholds:
            for index in self._active:
                below = seen.rows[:, index] < threshold
                for tier in ("below", "above"):
                    yield below & (seen.tiers == tier)
                    yield ~below & (seen.tiers == tier)

    def _fitted(self, group: Mask) -> Fit | None:
        chosen = group & self._touched & ~self._seen.held_out
        if chosen.sum() < _FEWEST_ON_A_SIDE:
            return None
        return fit(self._seen.rows[chosen], self._seen.extents[chosen], self._active, self._basis)

    def _unexplained(self, one: Fit) -> Mask | None:
        """Return the probes whose extent is below the form ``one``; None if any is above it."""
        values = np.maximum(one.values(self._seen.rows), 0)
        extents = self._seen.extents
        if (extents > values).any():
            return None
        rest: Mask = values > extents
        return rest

    def _smaller(self, one: Fit, other: Fit) -> Rows:
        rows = self._seen.rows
        return np.minimum(one.values(rows), other.values(rows))

    def _meets(self, values: Rows, but: Mask | None = None) -> bool:
        met = np.maximum(values, 0) == self._seen.extents
        return bool((met if but is None else met | but).all())

    def _pair(self, one: Fit, other: Fit, *, is_exact: bool) -> Explained:
        """Return the pair as form and cap; the form is the polynomial with more NDRange sizes."""
        if self._num_ids(one) < self._num_ids(other):
            one, other = other, one
        return Explained(form=one, cap=other, is_exact=is_exact)

    def _num_ids(self, one: Fit) -> int:
        sizes = ("global_size", "local_size", "num_groups")
        return sum(self._seen.names[index].startswith(sizes) for index in one.variables)


def num_held_out(seen: Observations) -> int:
    """Return the number of held-out probes."""
    return int(seen.held_out.sum())


def is_validated(seen: Observations, found: Explained) -> bool:
    """Whether a form is exact and was tested by enough held-out probes."""
    return found.is_exact and num_held_out(seen) >= FEWEST_HELD_OUT


def _sum(one: Fit, other: Fit) -> Fit:
    terms: dict[tuple[int, ...], int] = {}
    for monomial, coefficient in (*one.terms, *other.terms):
        terms[monomial] = terms.get(monomial, 0) + coefficient
    kept = tuple((monomial, value) for monomial, value in terms.items() if value)
    return Fit(constant=one.constant + other.constant, terms=kept)


def _looseness(values: Rows, extents: Rows) -> float:
    return float(np.mean(np.log((np.maximum(values, 0) + 1.0) / (extents + 1.0))))
