"""What memory analysis found out about a kernel: how far it reaches into each buffer, and what steers it.

Owns the values and their evaluation for one launch. How they are found: ``workers/analysis``. An extent is in
elements of the declared pointee type, the largest index touched plus one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

ANALYSIS_VERSION = 3
"""Version of the analysis, raised when equal sources give other extents, roles or inputs. Part of the
plan hash where a plan needs analysis."""

VALUE_LIMIT = "value_limit"
"""The factor by which a target's bound names the limit of the values that index it."""


class ContentsRule(StrEnum):
    """How the contents of a buffer are made where the usual ones (workers/plan/inputs.py) will not do."""

    BOUNDED = "bounded"
    """Uniform in [0, limit)."""
    PREFIX = "prefix"
    """Sorted, from about 0 to about limit: row offsets of a sparse matrix."""
    FLAGS = "flags"
    """Whole numbers, uniform in [0, limit), of floating-point members, too: masks and states."""
    SIGNED = "signed"
    """Floating-point numbers of either sign, their magnitudes in [0.5, 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a buffer of one launch config holds: values in [0, ``limit``), or of ``SIGNED`` in (-``limit``, ``limit``)."""

    rule: ContentsRule
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """``coefficient`` times the product of ``factors``; a power repeats its factor."""

    factors: tuple[str, ...]
    coefficient: int


_MAX_TERMS, _MAX_DEGREE = 256, 16
"""Of a polynomial: those of an analysis have degree 3, and a stranger's is evaluated for each launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Polynomial:
    """``constant`` plus terms over ``global_size_0…2``, ``local_size_0…2``, ``num_groups_0…2`` and scalars."""

    constant: int
    terms: tuple[Term, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for more terms or factors than an analysis gives."""
        if len(self.terms) > _MAX_TERMS or any(
            len(one.factors) > _MAX_DEGREE for one in self.terms
        ):
            raise ValueError("an extent has more terms or factors than a memory analysis gives")

    def value(self, sizes: Mapping[str, int]) -> int:
        """Evaluate for one launch. Raises KeyError for a factor that ``sizes`` lacks.

        >>> Polynomial(constant=2, terms=(Term(factors=("n", "n"), coefficient=3),)).value({"n": 4})
        50
        """
        total = self.constant
        for term in self.terms:
            product = term.coefficient
            for factor in term.factors:
                product *= sizes[factor]
            total += product
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The extent of one buffer: ``min(form, cap)``, or no form and the ``reason``.

    ``validated``: held-out probes were predicted exactly, and the contents of no buffer change it. A form that
    is not validated is an upper bound of what the probes touched; ``reason`` says why it is not more.
    """

    position: int
    form: Polynomial | None
    cap: Polynomial | None = None
    validated: bool = False
    reason: str = ""

    def elements(self, sizes: Mapping[str, int]) -> int | None:
        """Return the elements touched by one launch, at least 0; None without a form."""
        if self.form is None:
            return None
        reach = self.form.value(sizes)
        return max(0, reach if self.cap is None else min(reach, self.cap.value(sizes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexTarget:
    """A buffer that is indexed by the values of another: its extent over the sizes and ``value_limit``."""

    position: int
    form: Polynomial


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRole:
    """A buffer whose values are used as an index or a loop bound, and what its values must respect.

    With the values in [0, value_limit) every target is touched in at most its form's elements. ``PREFIX``:
    neighbours ``p[i], p[i+1]`` bound a loop, so the values must not decrease (CSR).
    """

    position: int
    rule: ContentsRule
    targets: tuple[IndexTarget, ...] = ()


class ScalarChoice(StrEnum):
    """What an integer scalar gets in place of its role's value."""

    ZERO = "zero"
    LOW = "low"
    """1, so that ``if (i > k)`` leaves few work-items without work."""
    HIGH = "high"
    """``HIGH_FACTOR`` times global size 0, so that ``n / 4 / get_global_size(0)`` is not 0."""


HIGH_FACTOR = 4
"""What ``sizeof(float)`` divides away; a buffer of the simple rule holds what comes of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenScalar:
    """One integer scalar whose value is chosen."""

    position: int
    value: ScalarChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class InputChoice:
    """The inputs with which a kernel works: what replaces the usual values, and what was seen of it.

    Attributes:
        floats_free: whether floating-point scalars changed neither indices nor turns of loops in the probes.
        scalars: those that get another value than their role's.
        contents: of all buffers whose values steer nothing that is known; None: the usual ones.
        num_tried: how many candidates ran; 0 where none had to, or none could.
        plain_share: of work-items that are active with the usual values; None where that was not seen.
        active_share: of work-items that are active with what was chosen; None where nothing was.
        reason: why nothing was chosen although many work-items are idle.
    """

    floats_free: bool | None = None
    scalars: tuple[ChosenScalar, ...] = ()
    contents: Contents | None = None
    num_tried: int = 0
    plain_share: float | None = None
    active_share: float | None = None
    reason: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether all values are the usual ones."""
        return not self.scalars and self.contents is None

    def of_scalar(self, position: int) -> ScalarChoice | None:
        """Return what one scalar gets; None: its role's value."""
        return next((one.value for one in self.scalars if one.position == position), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What is known about one kernel's memory; one extent for each pointer argument, by position.

    ``data_dependent``: an index or the number of turns of a loop follows from buffer contents. ``failure`` says
    why there is nothing to know (then no extent has a form): a probe that hung or ended its process.
    ``overflowing_local_sizes``: the smallest local sizes at which an array of fixed size (``__local float
    tile[16][16]``) is indexed beyond its end, which is undefined. ``inputs``: the values with which it works; None where
    they were not looked for.
    """

    extents: tuple[Extent, ...]
    data_dependent: bool | None = None
    index_roles: tuple[IndexRole, ...] = ()
    failure: str = ""
    overflowing_local_sizes: tuple[tuple[int, ...], ...] = ()
    inputs: InputChoice | None = None

    def extent(self, position: int) -> Extent | None:
        """Return the extent of one argument; None where it is no pointer."""
        return next((one for one in self.extents if one.position == position), None)

    def allows(self, local_size: Sequence[int]) -> bool:
        """Whether no array of fixed size is too small for this local size.

        >>> tiled = Analysis(extents=(), overflowing_local_sizes=((17, 1), (1, 17)))
        >>> tiled.allows((16, 16)), tiled.allows((32, 8))
        (True, False)
        """
        return not any(
            all(side >= least for side, least in zip(local_size, smallest, strict=False))
            for smallest in self.overflowing_local_sizes
        )

    def with_usual_inputs(self, reason: str = "") -> Analysis:
        """Return the analysis with a choice that changes nothing, but keeps what is known of floating-point scalars."""
        known = self.inputs.floats_free if self.inputs else None
        return replace(self, inputs=InputChoice(floats_free=known, reason=reason))

    def index_role(self, position: int) -> IndexRole | None:
        """Return the role of one buffer's values; None for values that steer nothing."""
        return next((one for one in self.index_roles if one.position == position), None)


def launch_sizes(
    global_size: Sequence[int], local_size: Sequence[int], scalars: Mapping[str, float]
) -> dict[str, int]:
    """Return every name a polynomial may use with its value; unused dimensions have size 1.

    >>> launch_sizes((64,), (16,), {"n": 60})["num_groups_0"]
    4
    """
    sizes: dict[str, int] = {}
    for axis in range(3):
        total = global_size[axis] if axis < len(global_size) else 1
        local = local_size[axis] if axis < len(local_size) else 1
        sizes[f"global_size_{axis}"] = total
        sizes[f"local_size_{axis}"] = local
        sizes[f"num_groups_{axis}"] = -(-total // local)
    sizes.update({name: int(value) for name, value in scalars.items()})
    return sizes
