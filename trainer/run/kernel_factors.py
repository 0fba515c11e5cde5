"""What a few measured launches of a kernel say about it: its own factor, kept beside the model.

Owns ``few_shot.json`` (what training learnt about how kernels differ), ``kernel_factors.json`` (the factors of kernels that
were measured since) and how a factor corrects a prediction. Does not own how both are worked out
(``trainer/prediction/few_shot.py``).

A factor scales the *work* of a launch, not its launch floor: a kernel that takes twice as long as predicted at large
sizes still starts as fast at small ones. So predicted = floor + work becomes floor + work x 2^factor.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from llmperf_common.records import Device
from llmperf_common.statistics.conformal import Band
from trainer.errors import BadInput
from trainer.interface import Floats
from trainer.run.folder import FACTORS_FILE, FEW_SHOT_FILE, read_json

SMALLEST_WORK_SHARE = 0.05
"""Smallest share of a predicted time that counts as work: a launch predicted at the floor may do
some, and less is timer noise."""

_SCHEMA = 1
KernelKey = tuple[str, str]
"""Kernel id and device class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FewShot:
    """How the kernels of the calibration part differ from their predictions.

    Attributes:
        scales_log2: standard deviations of the normal parts that factors are a mixture of, about 0.
        weights: of these parts; their sum is 1.
        noise_log2: scale of a single launch's own error, besides its kernel's factor.
        level: wanted coverage.
        bands: number of measured launches to the half width of the interval, in multiples of the expected error
            (``Corrected``).
        source: parts of the split that this was learnt from.
    """

    scales_log2: tuple[float, ...]
    weights: tuple[float, ...]
    noise_log2: float
    level: float
    bands: Mapping[int, Band]
    source: str

    def band(self, num_launches: int) -> Band:
        """Return the band for so many measured launches, or for the next smaller number that has one."""
        known = [number for number in self.bands if number <= num_launches]
        return self.bands[max(known) if known else min(self.bands)]

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``few_shot.json``."""
        bands = {str(number): asdict(band) for number, band in sorted(self.bands.items())}
        return {
            "schema": _SCHEMA,
            "scales_log2": list(self.scales_log2),
            "weights": list(self.weights),
            "noise_log2": self.noise_log2,
            "level": self.level,
            "bands": bands,
            "source": self.source,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> FewShot:
        """Read what ``to_json`` wrote.

        Raises:
            ValueError: It is of another schema or lacks a key.
        """
        if content.get("schema") != _SCHEMA:
            raise ValueError(f"{FEW_SHOT_FILE}: schema {content.get('schema')!r} is not {_SCHEMA}")
        try:
            return cls(
                scales_log2=tuple(map(float, content["scales_log2"])),
                weights=tuple(map(float, content["weights"])),
                noise_log2=float(content["noise_log2"]),
                level=float(content["level"]),
                bands={int(number): Band(**band) for number, band in content["bands"].items()},
                source=str(content["source"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{FEW_SHOT_FILE}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFactor:
    """What measured launches of one kernel on one device class say.

    Attributes:
        kernel_id: of the kernel.
        device_class: where it was measured.
        log2_factor: median of the posterior: the kernel's work takes 2**log2_factor times what is predicted.
        sd_log2: standard deviation of the posterior.
        num_launches: how many launches were used.
        sample_ids: which: they are no test of the corrected prediction.
    """

    kernel_id: str
    device_class: str
    log2_factor: float
    sd_log2: float
    num_launches: int
    sample_ids: tuple[str, ...] = ()

    @property
    def key(self) -> KernelKey:
        """Kernel id and device class."""
        return self.kernel_id, self.device_class

    def said(self) -> str:
        """Return what a user reads beside a corrected prediction."""
        launches = (
            "1 measured launch"
            if self.num_launches == 1
            else f"{self.num_launches} measured launches"
        )
        return f"corrected by the kernel's own factor of {2**self.log2_factor:.3g}, from {launches} of it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """Predictions with the factor in them, shape (n,) each.

    Attributes:
        log2_ns: log2 of the corrected times.
        half_width_log2: of their intervals.
    """

    log2_ns: Floats
    half_width_log2: Floats


def work_share(log2_ns: Floats, floor_ns: float | Floats) -> Floats:
    """Return which share of each predicted time is work and not launch floor, between 0.05 and 1, shape (n,)."""
    share = 1.0 - np.asarray(floor_ns, dtype=np.float64) / np.exp2(log2_ns)
    return np.asarray(np.clip(share, SMALLEST_WORK_SHARE, 1.0), dtype=np.float64)


def rescaled(share: Floats, log2_factor: float | Floats) -> tuple[Floats, Floats]:
    """Return by how much log2 of a time changes where its work is scaled, and how fast that changes.

    Args:
        share: share of the time that is work.
        log2_factor: broadcast against ``share``.

    Returns:
        log2(1 - share + share * 2**factor), and its derivative by the factor (between 0 and 1).
    """
    work = share * np.exp2(log2_factor)
    total = 1.0 - share + work
    return np.log2(total), work / total


def corrected(
    few_shot: FewShot, factor: KernelFactor, log2_ns: Floats, floor_ns: float
) -> Corrected:
    """Correct the predicted times of launches of one kernel.

    The expected error of a launch joins its own (``noise_log2``) to what is not known of the factor, as far as the
    launch depends on it; the interval is the calibrated multiple of that.

    Args:
        few_shot: of the run.
        factor: of the kernel.
        log2_ns: what the model says, shape (n,).
        floor_ns: time of an empty launch on the device; 0 where it is not known.
    """
    change, slope = rescaled(work_share(log2_ns, floor_ns), factor.log2_factor)
    expected = expected_error(few_shot.noise_log2, slope, factor.sd_log2)
    half = few_shot.band(factor.num_launches).half_width_log2 * expected
    return Corrected(log2_ns=log2_ns + change, half_width_log2=half)


def expected_error(noise_log2: float, slope: Floats, sd_log2: float | Floats) -> Floats:
    """Return the error to expect of corrected predictions, in log2, shape (n,)."""
    return np.sqrt(noise_log2**2 + (slope * sd_log2) ** 2)


def floor_ns(device: Device | None) -> float:
    """Return the time of an empty launch; 0 where it was not measured."""
    return 0.0 if device is None or device.launch_floor_ns is None else device.launch_floor_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFactors:
    """The factors of the kernels that were measured, and what they are applied with."""

    few_shot: FewShot
    factors: Mapping[KernelKey, KernelFactor] = field(default_factory=dict)

    def joined(self, newer: KernelFactors) -> KernelFactors:
        """Return both, the newer one's where both have a kernel."""
        return KernelFactors(few_shot=newer.few_shot, factors={**self.factors, **newer.factors})

    def save(self, run: Path) -> None:
        """Write ``kernel_factors.json`` into the folder of a run: whole or not at all."""
        content = {
            "schema": _SCHEMA,
            "few_shot": self.few_shot.to_json(),
            "factors": [asdict(one) for _, one in sorted(self.factors.items())],
        }
        descriptor, name = tempfile.mkstemp(dir=run, prefix=f".{FACTORS_FILE}.new-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=1, allow_nan=False)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o644)
            os.replace(name, run / FACTORS_FILE)
        finally:
            Path(name).unlink(missing_ok=True)

    @classmethod
    def load(cls, run: Path) -> KernelFactors | None:
        """Read ``kernel_factors.json`` of a run; None where no kernel was measured.

        Raises:
            BadInput: It is damaged.
        """
        path = run / FACTORS_FILE
        if not path.exists():
            return None
        content = read_json(path)
        try:
            if content["schema"] != _SCHEMA:
                raise ValueError(f"schema {content['schema']!r} is not {_SCHEMA}")
            rows = [
                KernelFactor(**{**row, "sample_ids": tuple(row["sample_ids"])})
                for row in content["factors"]
            ]
            few_shot = FewShot.from_json(content["few_shot"])
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(
                f"{path}: {error}; delete it, or measure again with `llmperf calibrate`"
            ) from None
        return cls(few_shot=few_shot, factors={one.key: one for one in rows})
