"""The results of memory analysis: the extent of each buffer, and inputs that let a kernel work.

Owns these records and their evaluation for one launch; ``workers/analysis`` finds them. An extent
is the largest index touched plus one, in elements of the declared pointee type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

ANALYSIS_VERSION = 5
"""Version of the analysis. Raise it when the same source gives other extents, roles or inputs than
before. It is part of the plan hash of plans that need analysis."""

VALUE_LIMIT = "value_limit"
"""A name that the polynomial of an ``IndexTarget`` may use beside launch sizes and scalars. It
stands for the upper limit of the values that index the target."""


class ContentsRule(StrEnum):
    """How a buffer is filled where the usual values (workers/plan/inputs.py) are not suitable."""

    BOUNDED = "bounded"
    """The values are uniform in [0, limit)."""
    PREFIX = "prefix"
    """The values rise from about 0 to about limit, as the row offsets of a sparse matrix do."""
    FLAGS = "flags"
    """The values are whole numbers, uniform in [0, limit), even in floating-point members. They
    suit masks and states."""
    SIGNED = "signed"
    """The values are floating-point numbers of both signs with magnitudes in [0.5, 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A buffer's values: in [0, ``limit``) or, with ``SIGNED``, in (-``limit``, ``limit``)."""

    rule: ContentsRule
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """``coefficient`` times the product of ``factors``; n squared has the factors ``n, n``."""

    factors: tuple[str, ...]
    coefficient: int


_MAX_TERMS, _MAX_DEGREE = 256, 16
"""Maximum number of terms of a polynomial, and of factors of a term. An analysis gives at most
degree 3. The limits are for datasets of unknown origin, because each launch evaluates the
polynomial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Polynomial:
    """``constant`` plus ``terms`` over scalar arguments and launch sizes (``launch_sizes``)."""

    constant: int
    terms: tuple[Term, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError if there are more terms or factors than the limits allow."""
        if len(self.terms) > _MAX_TERMS or any(
            len(one.factors) > _MAX_DEGREE for one in self.terms
        ):
            raise ValueError("an extent has more terms or factors than a memory analysis gives")

    def value(self, sizes: Mapping[str, int]) -> int:
        """Return the value for one launch. Raises KeyError for a factor that ``sizes`` lacks.

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

    def powers_of(self, name: str, sizes: Mapping[str, int]) -> list[int]:
        """Return the value as a polynomial in ``name``: its coefficients, lowest power first.

        Raises:
            KeyError: A factor is neither ``name`` nor in ``sizes``.

        >>> Polynomial(constant=2, terms=(Term(factors=("n", "v"), coefficient=3),)).powers_of(
        ...     "v", {"n": 4}
        ... )
        [2, 12]
        """
        found = [self.constant]
        for term in self.terms:
            product, power = term.coefficient, 0
            for factor in term.factors:
                if factor == name:
                    power += 1
                else:
                    product *= sizes[factor]
            found += [0] * (power + 1 - len(found))
            found[power] += product
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The extent of one buffer, ``min(form, cap)``; ``form`` is None where no formula was found.

    ``validated`` means that the form predicted held-out probes exactly, and that no buffer's
    contents change the extent. A form that is not validated is only an upper bound of what the
    probes touched. ``reason`` says why there is no form, or why it is not validated.
    """

    position: int
    form: Polynomial | None
    cap: Polynomial | None = None
    validated: bool = False
    reason: str = ""

    def elements(self, sizes: Mapping[str, int]) -> int | None:
        """Return how many elements one launch touches, at least 0; None without a form."""
        if self.form is None:
            return None
        reach = self.form.value(sizes)
        return max(0, reach if self.cap is None else min(reach, self.cap.value(sizes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexTarget:
    """A buffer that another buffer's values index; ``form`` may contain ``value_limit``."""

    position: int
    form: Polynomial


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRole:
    """A buffer whose values serve as an index or a loop bound, and the rule that they must follow.

    If the values lie in [0, value_limit), the kernel touches at most ``form`` elements of each
    target. With ``PREFIX``, ``p[i]`` and ``p[i+1]`` bound a loop, so the values must not decrease
    (as in the sparse format CSR).
    """

    position: int
    rule: ContentsRule
    targets: tuple[IndexTarget, ...] = ()


class ScalarChoice(StrEnum):
    """The value that a scalar gets instead of the usual one.

    A floating-point scalar gets ``SIDE`` or ``ROOT``, and only if the kernel uses it as a size.
    """

    ZERO = "zero"
    LOW = "low"
    """The value 1, so that ``if (i > k)`` leaves few work-items without work."""
    HIGH = "high"
    """The value ``HIGH_FACTOR`` times global size 0, so that ``n / 4 / get_global_size(0)`` is not
    0."""
    SIDE = "side"
    """Global size 0, for a size that is passed as a floating-point number."""
    ROOT = "root"
    """The square root of the number of work-items, rounded down, so that ``i < width * height``
    holds for most work-items and the product does not overflow."""


HIGH_FACTOR = 4
"""The value 4 = ``sizeof(float)``, by which kernels divide a size in bytes. The quotient fits the
buffers of the strategy ``simple``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenScalar:
    """One scalar and the value chosen for it."""

    position: int
    value: ScalarChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class InputChoice:
    """Changes to the usual inputs that keep a kernel's work-items busy, and their effect.

    Attributes:
        floats_free: whether floating-point scalars changed no index or loop count in the probes.
        scalars: the scalars whose value is not the one that their role suggests.
        contents: contents of all buffers without an index role; None: the usual contents.
        num_tried: number of candidate inputs that were run; 0 where no other inputs were needed, or
            no candidate could run.
        plain_share: share of work-items active with the usual values; None where it was not
            observed.
        active_share: share of work-items active with the chosen values; None where no values were
            chosen.
        reason: why no inputs were chosen, although many work-items are idle with the usual inputs.
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
        """Whether nothing differs from the usual values."""
        return not self.scalars and self.contents is None

    def of_scalar(self, position: int) -> ScalarChoice | None:
        """Return the value chosen for one scalar; None where the scalar keeps its role's value."""
        return next((one.value for one in self.scalars if one.position == position), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What is known about one kernel's memory accesses.

    Attributes:
        extents: one for each pointer argument, in position order.
        data_dependent: whether buffer contents decide an index or the trip count of a loop.
        index_roles: buffers whose values index other buffers or bound loops.
        failure: why the analysis failed (a probe hung or crashed). No extent has a form then.
        overflowing_local_sizes: the smallest local sizes at which the kernel indexes an array of
            fixed size (``__local float tile[16][16]``) beyond its end, which is undefined
            behaviour.
        inputs: inputs that keep the work-items busy; None where they were not searched for.
    """

    extents: tuple[Extent, ...]
    data_dependent: bool | None = None
    index_roles: tuple[IndexRole, ...] = ()
    failure: str = ""
    overflowing_local_sizes: tuple[tuple[int, ...], ...] = ()
    inputs: InputChoice | None = None

    def extent(self, position: int) -> Extent | None:
        """Return the extent of one argument; None where the argument is not a pointer."""
        return next((one for one in self.extents if one.position == position), None)

    def allows(self, local_size: Sequence[int]) -> bool:
        """Whether every array of fixed size is large enough for this local size.

        >>> tiled = Analysis(extents=(), overflowing_local_sizes=((17, 1), (1, 17)))
        >>> tiled.allows((16, 16)), tiled.allows((32, 8))
        (True, False)
        """
        return not any(
            all(side >= least for side, least in zip(local_size, smallest, strict=False))
            for smallest in self.overflowing_local_sizes
        )

    def with_usual_inputs(self, reason: str = "") -> Analysis:
        """Return the analysis with the usual inputs, and why they stay; ``floats_free`` is kept."""
        known = self.inputs.floats_free if self.inputs else None
        return replace(self, inputs=InputChoice(floats_free=known, reason=reason))

    def index_role(self, position: int) -> IndexRole | None:
        """Return the role of a buffer's values; None if no value is an index or a loop bound."""
        return next((one for one in self.index_roles if one.position == position), None)


def launch_sizes(
    global_size: Sequence[int], local_size: Sequence[int], scalars: Mapping[str, float]
) -> dict[str, int]:
    """Return the value of every name that a polynomial may use; unused dimensions have size 1.

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
