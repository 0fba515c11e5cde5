"""Which rows a model may see: parts by family (the default), by kernel, or by launch config.

Owns the rule, its record (``split.json``) and the check that no family crosses. Pure functions of ids and a
seed: the same dataset gives the same parts on every machine, whatever the order of its rows.

=========  ==================================================================================================
kind       parts
=========  ==================================================================================================
family     train/validation/calibration/test = 80/8/4/8 % of the families, in the order of a seeded hash; every
           part has at least one. A family that touches a public suite belongs to test, beside those 8 %.
kernel     80/6/4/10 % of the kernels: the paper's 90/10, with the parts that choose and calibrate taken from
           its 90. Near duplicates may cross; ``crossing_families`` says how many do.
config     rows by the hash of their sample_id: 68/8/4/20 %. Kernels are seen, launch configs are not.
=========  ==================================================================================================

With ``family`` and ``kernel`` a fifth part, ``seen_configs``, holds ``held_out.share`` of the rows of the
train part's kernels, by the same hash: never fitted, they show what is learnt about kernels that were seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from llmperf_common.errors import LlmperfError

SPLIT_SCHEMA = 1


class SplitKind(StrEnum):
    """What is kept together: a family, a kernel, or nothing but one launch config."""

    FAMILY = "family"
    KERNEL = "kernel"
    CONFIG = "config"


class Part(StrEnum):
    """What a row may be used for."""

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
    """A split that cannot be made or that does not hold; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The record in ``split.json``.

    Attributes:
        kind: what is kept together.
        seed: of every hash.
        parts: part to sorted ids: family ids, kernel ids, or nothing with kind ``config``.
        held_out_share: share of the train part's rows that is never fitted (0 with kind ``config``).
        public_suites: suites whose families were put into test whole.
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
        """Read what ``to_json`` wrote.

        Raises:
            SplitError: It is of another schema, or a key is missing or of the wrong kind.
        """
        if content.get("schema") != SPLIT_SCHEMA:
            raise SplitError(f"split.json: schema {content.get('schema')!r} is not {SPLIT_SCHEMA}")
        parts, held_out = content.get("parts"), content.get("held_out")
        suites = content.get("public_suites", ())
        if not isinstance(parts, Mapping) or not isinstance(held_out, Mapping):
            raise SplitError("split.json: 'parts' and 'held_out' must be objects")
        try:
            return cls(
                kind=SplitKind(str(content["kind"])),
                seed=int(str(content["seed"])),
                parts={Part(str(name)): tuple(map(str, ids)) for name, ids in parts.items()},
                held_out_share=float(held_out["share"]),
                public_suites=tuple(map(str, suites)) if isinstance(suites, Sequence) else (),
            )
        except (KeyError, ValueError) as error:
            raise SplitError(f"split.json: {error}") from None


def unit_hash(seed: int, scope: str, identity: str) -> float:
    """Return a number in [0, 1) that depends on the three arguments only.

    >>> unit_hash(0, "config", "a") == unit_hash(0, "config", "a")
    True
    """
    digest = hashlib.sha256(f"{seed}:{scope}:{identity}".encode()).digest()
    # 53 bits: more would round up to 1.0.
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
        families: family id to the suites its kernels come from.
        seed: of the order of the families.
        public_suites: a family that touches one of these belongs wholly to test. Compared without
            case and up to the first "/", so "rodinia/bfs" counts as "rodinia".
        held_out_share: share of train's rows that becomes ``seen_configs``.

    Raises:
        SplitError: Fewer than 4 families (3 where a public suite fills test).
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
    """Split by kernel, near duplicates or not: for comparison with the paper only.

    Raises:
        SplitError: Fewer than 4 kernels.
    """
    return Split(
        kind=SplitKind.KERNEL,
        seed=seed,
        parts=_cut(sorted(set(kernel_ids)), SplitKind.KERNEL, seed, test_is_filled=False),
        held_out_share=held_out_share,
    )


def split_by_config(*, seed: int) -> Split:
    """Split rows of every kernel by the hash of their sample_id."""
    return Split(kind=SplitKind.CONFIG, seed=seed, parts={}, held_out_share=0.0)


def _cut(
    ids: Sequence[str], kind: SplitKind, seed: int, *, test_is_filled: bool
) -> dict[Part, tuple[str, ...]]:
    """Deal ids in hash order: each part its rounded share, at least one, train what is left."""
    needed = 3 if test_is_filled else 4
    if len(ids) < needed:
        noun = "families" if kind is SplitKind.FAMILY else "kernels"
        raise SplitError(
            f"a split by {kind.value} needs at least {needed} {noun}, found {len(ids)}: collect more "
            "kernels, or set split.kind=config to hold out launch configs of the same kernels"
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
        split: the rule.
        family_ids: shape (n,).
        kernel_ids: shape (n,).
        sample_ids: shape (n,).
    """
    draws = unit_hashes(split.seed, "config", sample_ids)
    if split.kind is SplitKind.CONFIG:
        _, validation, calibration, test = SHARES[SplitKind.CONFIG]
        # Test first, so that it holds the rows that seen_configs would hold in the other kinds.
        edges = np.cumsum([test, validation, calibration])
        names = np.array([Part.TEST, Part.VALIDATION, Part.CALIBRATION, Part.TRAIN], dtype=str)
        return names[np.searchsorted(edges, draws, side="right")]
    owners = {identity: part.value for part, ids in split.parts.items() for identity in ids}
    ids = family_ids if split.kind is SplitKind.FAMILY else kernel_ids
    parts = np.array([owners.get(identity, "") for identity in ids], dtype="U16")
    held_out = (parts == Part.TRAIN.value) & (draws < split.held_out_share)
    return np.where(held_out, Part.SEEN_CONFIGS.value, parts)


def check_split(split: Split, kernel_families: Mapping[str, str]) -> None:
    """Assert that a split can be trusted for a dataset.

    Args:
        split: the record.
        kernel_families: kernel id to family id of every kernel of the dataset.

    Raises:
        SplitError: An id is in two parts, or (kind ``family``) two kernels of a family would be in
            different parts because the record knows the family under another id.
    """
    owner: dict[str, Part] = {}
    for part, ids in split.parts.items():
        for identity in ids:
            if owner.setdefault(identity, part) is not part:
                raise SplitError(
                    f"split: {split.kind.value} {identity} is in both {owner[identity]} and {part}"
                )
    if split.kind is not SplitKind.FAMILY:
        return
    # family_id is the smallest kernel_id of the family: a listed id that is now a mere member was
    # merged into another family after the split was made.
    for kernel, family in kernel_families.items():
        if kernel != family and kernel in owner and owner[kernel] is not owner.get(family):
            raise SplitError(
                f"split: family {kernel} ({owner[kernel]}) is now part of family {family} "
                f"({owner.get(family, 'no part')}): make the split anew"
            )


def crossing_families(split: Split, kernel_families: Mapping[str, str]) -> list[str]:
    """Return the families with kernels in more than one part of a split by kernel, sorted."""
    if split.kind is not SplitKind.KERNEL:
        return []
    owner = {kernel: part for part, ids in split.parts.items() for kernel in ids}
    seen: dict[str, set[Part]] = {}
    for kernel, family in kernel_families.items():
        if kernel in owner:
            seen.setdefault(family, set()).add(owner[kernel])
    return sorted(family for family, parts in seen.items() if len(parts) > 1)
