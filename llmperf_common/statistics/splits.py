"""Splits of a dataset into train, validation, calibration and test, by family, kernel or config.

Owns the rule, its record (``split.json``) and the check that no family is in two parts. All
functions are pure functions of ids and a seed: the parts are the same on every machine, in
any row order.

=========  =======================================================================================
kind       parts
=========  =======================================================================================
family     train/validation/calibration/test = 80/8/4/8 % of the families, in the order of a seeded
           hash; every part has at least one. A family with a kernel of a public suite goes to test,
           in addition to those 8 %. The default.
kernel     80/6/4/10 % of the kernels: the paper's 90/10, where validation and calibration come out
           of the 90. Near duplicates may be in different parts; ``crossing_families`` lists them.
config     68/8/4/20 % of the rows, by the hash of sample_id. Kernels of test rows are in train too.
=========  =======================================================================================

With ``family`` and ``kernel`` a fifth part, ``seen_configs``, holds ``held_out.share`` of the rows
of the train part's kernels, by the same hash. No fit uses them: they show errors on new launches
of known kernels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from llmperf_common.errors import LlmperfError
from llmperf_common.files.json_numbers import number, whole

SPLIT_SCHEMA = 1


class SplitKind(StrEnum):
    """The unit that a split keeps in one part: a family, a kernel or a launch config."""

    FAMILY = "family"
    KERNEL = "kernel"
    CONFIG = "config"


class Part(StrEnum):
    """The part of a split that a row belongs to; it decides what the row is used for."""

    TRAIN = "train"
    VALIDATION = "validation"
    CALIBRATION = "calibration"
    TEST = "test"
    SEEN_CONFIGS = "seen_configs"


PARTS = (Part.TRAIN, Part.VALIDATION, Part.CALIBRATION, Part.TEST)

SHARES: dict[SplitKind, tuple[float, float, float, float]] = {
    SplitKind.FAMILY: (0.80, 0.08, 0.04, 0.08),
    SplitKind.KERNEL: (0.80, 0.06, 0.04, 0.10),
    SplitKind.CONFIG: (0.68, 0.08, 0.04, 0.20),
}
"""Shares of train, validation, calibration and test."""

DEFAULT_PUBLIC_SUITES = ("shoc", "rodinia")
DEFAULT_HELD_OUT_SHARE = 0.2


class SplitError(LlmperfError, ValueError):
    """A split is impossible or does not fit the dataset; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The record in ``split.json``.

    Attributes:
        kind: the unit that stays in one part.
        seed: seed of every hash.
        parts: sorted family ids or kernel ids by part; empty with kind ``config``.
        held_out_share: share of the train part's rows that no fit uses (0 with kind ``config``).
        public_suites: suites whose families all went to test.
    """

    kind: SplitKind
    seed: int
    parts: Mapping[Part, tuple[str, ...]]
    held_out_share: float = DEFAULT_HELD_OUT_SHARE
    public_suites: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the content of ``split.json``."""
        return {
            "schema": SPLIT_SCHEMA,
            "seed": self.seed,
            "kind": self.kind.value,
            "parts": {part.value: list(self.parts.get(part, ())) for part in PARTS},
            "shares": dict(zip((part.value for part in PARTS), SHARES[self.kind], strict=True)),
            "public_suites": list(self.public_suites),
            "held_out": {
                "part": Part.SEEN_CONFIGS.value,
                "of": Part.TRAIN.value,
                "share": self.held_out_share,
                "rule": "top 53 bits of sha256('{seed}:config:{sample_id}') / 2**53 < share",
            },
        }

    @classmethod
    def from_json(cls, content: Mapping[str, object]) -> Split:
        """Read the output of ``to_json``.

        Raises:
            SplitError: The schema is unknown, or a key is missing or has a wrong type.
        """
        if content.get("schema") != SPLIT_SCHEMA:
            raise SplitError(
                f"split.json has schema {content.get('schema')!r}, but this LLMPerf reads schema "
                f"{SPLIT_SCHEMA}: train the run again with this release"
            )
        parts, held_out = content.get("parts"), content.get("held_out")
        suites = content.get("public_suites", ())
        if not isinstance(parts, Mapping) or not isinstance(held_out, Mapping):
            raise SplitError("split.json: 'parts' and 'held_out' must be objects")
        try:
            return cls(
                kind=SplitKind(str(content["kind"])),
                seed=whole(content["seed"], "seed", least=-(2**63), most=2**63),
                parts={Part(str(name)): tuple(map(str, ids)) for name, ids in parts.items()},
                held_out_share=number(held_out["share"], "held_out: share", least=0, most=1),
                public_suites=tuple(map(str, suites)) if isinstance(suites, Sequence) else (),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SplitError(f"split.json: {error}") from None


def unit_hash(seed: int, scope: str, identity: str) -> float:
    """Return a hash of the three arguments as a number in [0, 1).

    >>> unit_hash(0, "config", "a") == unit_hash(0, "config", "a")
    True
    """
    digest = hashlib.sha256(f"{seed}:{scope}:{identity}".encode()).digest()
    # Use 53 bits, the precision of a float: more bits could be rounded up to 1.0.
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def unit_hashes(seed: int, scope: str, identities: Iterable[str]) -> npt.NDArray[np.float64]:
    """Return ``unit_hash`` of each identity, shape (n,)."""
    return np.array([unit_hash(seed, scope, item) for item in identities], dtype=np.float64)


def split_by_family(
    families: Mapping[str, Collection[str]],
    *,
    seed: int,
    public_suites: Sequence[str] = DEFAULT_PUBLIC_SUITES,
    held_out_share: float = DEFAULT_HELD_OUT_SHARE,
) -> Split:
    """Split by family.

    Args:
        families: the suites of each family's kernels, by family id.
        seed: seed of the order of the families.
        public_suites: if one kernel of a family belongs to one of these suites, the whole family
            goes to test. Names are compared without case and up to the first "/": "rodinia/bfs"
            counts as "rodinia".
        held_out_share: share of the train part's rows that becomes ``seen_configs``.

    Raises:
        SplitError: There are too few families without a kernel of a public suite: fewer than 4, or
            fewer than 3 if a family of a public suite goes to test.
    """
    public = {suite.casefold() for suite in public_suites}
    forced = {
        family
        for family, suites in families.items()
        if any(suite.casefold().split("/")[0] in public for suite in suites)
    }
    free = [family for family in families if family not in forced]
    parts = _cut(free, SplitKind.FAMILY, seed, test_is_filled=bool(forced))
    parts[Part.TEST] = tuple(sorted({*parts[Part.TEST], *forced}))
    return Split(
        kind=SplitKind.FAMILY,
        seed=seed,
        parts=parts,
        held_out_share=held_out_share,
        public_suites=tuple(public_suites),
    )


def split_by_kernel(
    kernel_ids: Collection[str], *, seed: int, held_out_share: float = DEFAULT_HELD_OUT_SHARE
) -> Split:
    """Split by kernel and ignore near duplicates; use this only for comparison with the paper.

    Raises:
        SplitError: There are fewer than 4 kernels.
    """
    return Split(
        kind=SplitKind.KERNEL,
        seed=seed,
        parts=_cut(sorted(set(kernel_ids)), SplitKind.KERNEL, seed, test_is_filled=False),
        held_out_share=held_out_share,
    )


def split_by_config(*, seed: int) -> Split:
    """Return the split of every kernel's rows by the hash of their sample_id."""
    return Split(kind=SplitKind.CONFIG, seed=seed, parts={}, held_out_share=0.0)


def _cut(
    ids: Sequence[str], kind: SplitKind, seed: int, *, test_is_filled: bool
) -> dict[Part, tuple[str, ...]]:
    """Divide the ids, in the order of their hashes, into parts by ``SHARES``.

    Validation, calibration and test get their rounded shares, at least one id each. Only if
    ``test_is_filled`` is set may the test part get no id. Train gets all other ids.
    """
    needed = 3 if test_is_filled else 4
    if len(ids) < needed:
        noun = "families" if kind is SplitKind.FAMILY else "kernels"
        raise SplitError(
            f"a split by {kind.value} needs at least {needed} {noun}, found {len(ids)}: collect "
            "more kernels, or set split.kind=config to hold out launch configs of the same kernels"
        )
    order = sorted(ids, key=lambda item: (unit_hash(seed, kind.value, item), item))
    parts: dict[Part, tuple[str, ...]] = {}
    start = 0
    for part, share in zip(PARTS[1:], SHARES[kind][1:], strict=True):
        fewest = 0 if part is Part.TEST and test_is_filled else 1
        size = max(fewest, round(share * len(ids)))
        parts[part] = tuple(sorted(order[start : start + size]))
        start += size
    parts[Part.TRAIN] = tuple(sorted(order[start:]))
    return parts


def assign_parts(
    split: Split,
    *,
    family_ids: Sequence[str],
    kernel_ids: Sequence[str],
    sample_ids: Sequence[str],
) -> npt.NDArray[np.str_]:
    """Return the part of each row, shape (n,); "" for a row whose family or kernel is in no part.

    Args:
        split: the record of the split.
        family_ids: shape (n,).
        kernel_ids: shape (n,).
        sample_ids: shape (n,).
    """
    draws = unit_hashes(split.seed, "config", sample_ids)
    if split.kind is SplitKind.CONFIG:
        _, validation, calibration, test = SHARES[SplitKind.CONFIG]
        # Test takes the lowest hashes, as seen_configs does with the other kinds of splits.
        edges = np.cumsum([test, validation, calibration])
        names = np.array([Part.TEST, Part.VALIDATION, Part.CALIBRATION, Part.TRAIN], dtype=str)
        return names[np.searchsorted(edges, draws, side="right")]
    owners = {identity: part.value for part, ids in split.parts.items() for identity in ids}
    ids = family_ids if split.kind is SplitKind.FAMILY else kernel_ids
    parts = np.array([owners.get(identity, "") for identity in ids], dtype="U16")
    held_out = (parts == Part.TRAIN.value) & (draws < split.held_out_share)
    return np.where(held_out, Part.SEEN_CONFIGS.value, parts)


def check_split(split: Split, kernel_families: Mapping[str, str]) -> None:
    """Check that a split is valid for a dataset.

    Args:
        split: the record.
        kernel_families: family id of every kernel of the dataset, by kernel id.

    Raises:
        SplitError: An id is in two parts. Or, with kind ``family``, two families of the record have
            been merged since, so that kernels of one family would be in different parts.
    """
    owner: dict[str, Part] = {}
    for part, ids in split.parts.items():
        for identity in ids:
            if owner.setdefault(identity, part) is not part:
                raise SplitError(
                    f"split: {split.kind.value} {identity} is in both {owner[identity]} and "
                    f"{part}: create a new split"
                )
    if split.kind is not SplitKind.FAMILY:
        return
    # A family_id is the smallest kernel_id of its family. If an id in the split is no longer a
    # family_id, the family was merged into another family after the split was made.
    for kernel, family in kernel_families.items():
        if kernel != family and kernel in owner and owner[kernel] is not owner.get(family):
            where = f"part {owner[family]}" if family in owner else "no part"
            raise SplitError(
                f"split: family {kernel} of part {owner[kernel]} was merged into family {family}, "
                f"which is in {where}: create a new split"
            )


def crossing_families(split: Split, kernel_families: Mapping[str, str]) -> list[str]:
    """Return the families whose kernels a split by kernel puts into several parts, sorted."""
    if split.kind is not SplitKind.KERNEL:
        return []
    owner = {kernel: part for part, ids in split.parts.items() for kernel in ids}
    seen: dict[str, set[Part]] = {}
    for kernel, family in kernel_families.items():
        if kernel in owner:
            seen.setdefault(family, set()).add(owner[kernel])
    return sorted(family for family, parts in seen.items() if len(parts) > 1)
