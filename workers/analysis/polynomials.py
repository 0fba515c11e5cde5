"""Find the sparse integer polynomial that matches all observations exactly.

Owns the search, not the observations. Tries simple forms first: linear in all sizes; one or two
monomials of degree up to 3; all monomials of degree 2; and, if there are enough rows, the products
of degree 3. A fit is accepted only if it matches every row and there are more rows than unknowns.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmperf_common.analysis import Polynomial, Term

Rows = npt.NDArray[np.int64]
Monomial = tuple[int, ...]
MAX_DEGREE = 3
_SPARE_ROWS = 3
"""Number of rows that must exist beyond the number of unknowns."""
_ROWS_PER_UNKNOWN = 3
"""Rows that are solved first. Most forms fail there, at a fraction of the cost of all rows."""
_RCOND, _EXACT = 1e-11, 1e-6
"""Singular values below ``_RCOND`` of the largest count as 0. The error of an exact solution is
below ``_EXACT`` of the largest value and coefficient (columns are scaled to at most 1)."""
_MOST_PAIRED = 90
_MOST_MIXED = 8
"""Maximum variables for which mixed forms are tried; more would give too many combinations."""
_LARGEST_COEFFICIENT = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A polynomial over numbered variables: a constant, and monomials with their coefficients."""

    constant: int
    terms: tuple[tuple[Monomial, int], ...]

    def values(self, rows: Rows) -> Rows:
        """Return the polynomial's value for each row of sizes, shape (n,)."""
        total = np.full(len(rows), self.constant, dtype=np.int64)
        for monomial, coefficient in self.terms:
            total += coefficient * rows[:, monomial].prod(axis=1)
        return total

    def named(self, names: Sequence[str]) -> Polynomial:
        """Return the polynomial over the variables' names, higher degrees first."""
        ordered = sorted(self.terms, key=lambda one: (-len(one[0]), one[0]))
        terms = tuple(
            Term(factors=tuple(names[index] for index in monomial), coefficient=coefficient)
            for monomial, coefficient in ordered
        )
        return Polynomial(constant=self.constant, terms=terms)

    @property
    def variables(self) -> frozenset[int]:
        """The variables that have a coefficient."""
        return frozenset(index for monomial, _ in self.terms for index in monomial)


class Basis:
    """The monomials of some variables.

    Args:
        num_variables: number of columns of the rows.
        identities: pairs of variables whose product is another variable (local size x groups).
    """

    def __init__(self, num_variables: int, identities: frozenset[tuple[int, int]]) -> None:
        self._num_variables = num_variables
        self._identities = identities

    def monomials(self, active: Sequence[int], degree: int, *, powers: bool) -> list[Monomial]:
        """Return the monomials of degree 1 to ``degree``; without ``powers``, products only."""
        choose = itertools.combinations_with_replacement if powers else itertools.combinations
        return [
            one
            for size in range(1, degree + 1)
            for one in choose(sorted(active), size)
            if not any(pair in self._identities for pair in itertools.combinations(one, 2))
        ]


def fit(rows: Rows, values: Rows, active: Sequence[int], basis: Basis) -> Fit | None:
    """Return the simplest polynomial that matches every row; None if there is none.

    Args:
        rows: sizes, shape (n, variables).
        values: the observations, shape (n,).
        active: the variables that may matter.
        basis: gives the monomials.
    """
    varying = [index for index in active if len(np.unique(rows[:, index])) > 1]
    if len(values) >= 1 + _SPARE_ROWS and (values == values[0]).all():
        return Fit(constant=int(values[0]), terms=())
    linear = basis.monomials(varying, 1, powers=True)
    found = _solved(rows, values, linear)
    if found is not None:
        return found
    cubic = basis.monomials(varying, MAX_DEGREE, powers=True)
    found = _sparse(rows, values, cubic, 1) or _sparse(rows, values, cubic, 2)
    if found is not None or len(varying) > _MOST_MIXED:
        return found
    for degree, powers in ((2, False), (2, True), (3, False)):
        found = _solved(rows, values, basis.monomials(varying, degree, powers=powers))
        if found is not None:
            return found
    return None


def _columns(rows: Rows, monomials: Sequence[Monomial]) -> Rows:
    table = np.ones((len(rows), len(monomials) + 1), dtype=np.int64, order="F")
    known: dict[Monomial, int] = {(): 0}
    for column, monomial in enumerate(monomials, start=1):
        *others, last = monomial
        part = table[:, known[tuple(others)]]  # a basis has all parts of its monomials
        np.multiply(part, rows[:, last], out=table[:, column])
        known[monomial] = column
    return table


def _solved(rows: Rows, values: Rows, monomials: Sequence[Monomial]) -> Fit | None:
    """Solve for all monomials at once; None if the rows do not determine them."""
    if len(rows) < len(monomials) + 1 + _SPARE_ROWS:
        return None
    table = _columns(rows, monomials)
    scale = np.abs(table).max(axis=0).astype(float)
    scale[scale == 0] = 1.0
    scaled, targets = table / scale, values.astype(float)
    num_some = _ROWS_PER_UNKNOWN * table.shape[1]
    if len(rows) > 2 * num_some:
        some = np.argsort(values, kind="stable")[
            np.linspace(0, len(rows) - 1, num_some).astype(int)
        ]
        solution, _, rank, _ = np.linalg.lstsq(scaled[some], targets[some], rcond=_RCOND)
        if rank == table.shape[1]:
            errors = np.abs(scaled[some] @ solution - targets[some])
            if errors.max() > _EXACT * (np.abs(targets).max() + np.abs(solution).max()):
                return None  # no polynomial matches these rows, so none matches all
            found = _checked(table, values, solution / scale, monomials)
            if found is not None:
                return found
    solution, _, rank, _ = np.linalg.lstsq(scaled, targets, rcond=_RCOND)
    if rank < table.shape[1]:
        return None
    return _checked(table, values, solution / scale, monomials)


def _checked(
    table: Rows, values: Rows, solution: npt.NDArray[np.float64], monomials: Sequence[Monomial]
) -> Fit | None:
    if not np.isfinite(solution).all() or np.abs(solution).max() > _LARGEST_COEFFICIENT:
        return None
    rounded = np.rint(solution).astype(np.int64)
    if not (table @ rounded == values).all():
        return None
    terms = tuple(
        (monomial, int(coefficient))
        for monomial, coefficient in zip(monomials, rounded[1:], strict=True)
        if coefficient
    )
    return Fit(constant=int(rounded[0]), terms=terms)


def _sparse(rows: Rows, values: Rows, monomials: Sequence[Monomial], num_terms: int) -> Fit | None:
    """Try each choice of ``num_terms`` monomials and a constant: solve a few rows, check all."""
    unknowns = num_terms + 1
    if len(rows) < unknowns + _SPARE_ROWS or len(monomials) < num_terms:
        return None
    if num_terms > 1 and len(monomials) > _MOST_PAIRED:
        return None
    table = _columns(rows, monomials)
    choices = np.array(list(itertools.combinations(range(1, table.shape[1]), num_terms)))
    # Take rows that are far apart, so that the small systems are well conditioned.
    order = np.argsort(values, kind="stable")
    picked = order[np.linspace(0, len(order) - 1, unknowns).astype(int)]
    systems = np.ones((len(choices), unknowns, unknowns))
    for line, row in enumerate(picked):
        systems[:, line, 1:] = table[row][choices]
    scales = np.abs(systems).max(axis=1, keepdims=True)
    scales[scales == 0] = 1.0
    regular = np.abs(np.linalg.det(systems / scales)) > 1e-7
    if not regular.any():
        return None
    right = np.broadcast_to(
        values[picked].astype(float)[:, None], (int(regular.sum()), unknowns, 1)
    )
    solutions = np.linalg.solve(systems[regular], right)[:, :, 0]
    whole = (np.abs(solutions - np.rint(solutions)) < 1e-4).all(axis=1)
    for choice, solution in zip(choices[regular][whole], solutions[whole], strict=True):
        columns = np.concatenate(([0], choice))
        chosen = [monomials[index - 1] for index in choice]
        found = _checked(table[:, columns], values, solution, chosen)
        if found is not None:
            return found
    return None
