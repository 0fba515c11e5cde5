"""Factors of kernels: corrections from a few measured launches, stored beside the model.

Owns ``few_shot.json`` (the distribution of factors over kernels, learnt in training),
``kernel_factors.json`` (the factors of measured kernels) and the correction of a prediction by a
factor. ``trainer/prediction/few_shot.py`` computes the contents of both files.

A factor scales the *work* of a launch and not its launch floor, because the floor belongs to the
device and not to the kernel: predicted = floor + work becomes floor + work x 2^factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from llmperf_common.files.json_numbers import number, numbers, share, whole
from llmperf_common.records import Device
from llmperf_common.statistics.conformal import Band
from trainer.errors import BadInput
from trainer.interface import Floats
from trainer.run.folder import FACTORS_FILE, FEW_SHOT_FILE, read_json, write_json

SMALLEST_WORK_SHARE = 0.05
"""Smallest share of a predicted time that counts as work. Even a launch that is predicted at the
launch floor may do some work; a share below 5 % could not be told from timer noise."""

MEDIAN_OF_T3 = 0.7649
"""Median of the absolute value of Student's t with 3 degrees of freedom and scale 1."""
_DISAGREEMENT_LOG2 = float(np.log2(1.5))
"""If the median error of measured launches is above this even with the factor, a note says so."""
_MOST_LOG2 = 64.0
"""Limit of the numbers in ``kernel_factors.json``; factors and errors are far smaller."""
_LEAST_LOG2 = 1e-6
"""Smallest scale of factors and errors in ``few_shot.json``; it is a divisor."""
_MOST_LAUNCHES = 2**53
_SCHEMA = 1
KernelKey = tuple[str, str]
"""Kernel id and device class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FewShot:
    """The distribution of kernels' factors, and interval widths by number of measured launches.

    Attributes:
        scales_log2: standard deviations of the mixture of normal distributions, all with mean 0,
            that factors (log2) follow.
        weights: weights of the mixture's components; their sum is 1.
        noise_log2: scale of the error of a single launch that its kernel's factor does not explain.
        level: wanted coverage.
        bands: half width of the interval by number of measured launches, in multiples of the
            expected error (``expected_error``).
        source: parts of the split that this was learnt from.
    """

    scales_log2: tuple[float, ...]
    weights: tuple[float, ...]
    noise_log2: float
    level: float
    bands: Mapping[int, Band]
    source: str

    def band(self, num_launches: int) -> Band:
        """Return the band for ``num_launches``, or for the next smaller number that has a band."""
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
            ValueError: The content has another schema, lacks a key or has a bad value.
        """
        if content.get("schema") != _SCHEMA:
            raise ValueError(
                f"{FEW_SHOT_FILE} has schema {content.get('schema')!r}, but this LLMPerf reads "
                f"schema {_SCHEMA}: train the run again"
            )
        try:
            scales = numbers(
                content["scales_log2"], "scales_log2", least=_LEAST_LOG2, most=_MOST_LOG2
            )
            weights = numbers(content["weights"], "weights", least=0, most=1)
            bands = {_launches(name): band for name, band in content["bands"].items()}
            if not bands or not len(scales) == len(weights) > 0:
                raise ValueError("bands, scales_log2 or weights is empty or of another length")
            return cls(
                scales_log2=tuple(scales.tolist()),
                weights=tuple(weights.tolist()),
                noise_log2=number(
                    content["noise_log2"], "noise_log2", least=_LEAST_LOG2, most=_MOST_LOG2
                ),
                level=share(content["level"], "level"),
                bands={key: Band.from_json(one, f"bands: {key}") for key, one in bands.items()},
                source=str(content["source"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{FEW_SHOT_FILE}: {error}") from None


def _launches(text: str) -> int:
    """Return the number of measured launches that a key of the file's bands says."""
    if not (text.isascii() and text.isdigit() and len(text) < 10 and text[0] != "0"):
        raise ValueError(f"bands has the key {text[:40]!r}, which is not a number of launches")
    return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFactor:
    """The factor of one kernel on one device class, from its measured launches.

    Attributes:
        kernel_id: id of the kernel.
        device_class: device class of the measured launches.
        log2_factor: median of the posterior: the kernel's work takes 2**log2_factor times the
            predicted work.
        sd_log2: standard deviation of the posterior.
        num_launches: number of measured launches.
        sample_ids: the measured launches; an evaluation does not score them.
        scatter_log2: scale of the errors of the measured launches after the factor (Student's t);
            it widens the interval if it is larger than for other kernels. 0 if unknown.
    """

    kernel_id: str
    device_class: str
    log2_factor: float
    sd_log2: float
    num_launches: int
    sample_ids: tuple[str, ...] = ()
    scatter_log2: float = 0.0

    @property
    def disagrees(self) -> bool:
        """Whether half of the measured launches are wrong by 1.5 times or more after the factor."""
        return self.median_error_log2 > _DISAGREEMENT_LOG2

    @property
    def median_error_log2(self) -> float:
        """Median error of the measured launches after the factor, in log2."""
        return self.scatter_log2 * MEDIAN_OF_T3

    def check(self) -> None:
        """Raise ValueError if a value from a file is not one that ``calibrate`` can write."""
        number(self.log2_factor, "log2_factor", least=-_MOST_LOG2, most=_MOST_LOG2)
        number(self.sd_log2, "sd_log2", least=0, most=_MOST_LOG2)
        number(self.scatter_log2, "scatter_log2", least=0, most=_MOST_LOG2)
        whole(self.num_launches, "num_launches", least=1, most=_MOST_LAUNCHES)
        for text in (*self.key, *self.sample_ids):
            if not isinstance(text, str):
                raise ValueError(f"{text!r:.40} is not an id")

    @property
    def key(self) -> KernelKey:
        """Kernel id and device class."""
        return self.kernel_id, self.device_class

    def said(self) -> str:
        """Return the note that a user reads beside a corrected prediction."""
        launches = (
            "1 measured launch"
            if self.num_launches == 1
            else f"{self.num_launches} measured launches"
        )
        return (
            f"corrected by the kernel's own factor of {2**self.log2_factor:.3g}, from {launches} "
            "of the kernel"
            + (
                f"; half of these launches are still {2**self.median_error_log2:.2g} times off, "
                "which widens the interval"
                if self.disagrees
                else ""
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """Predictions corrected by a factor, shape (n,) each.

    Attributes:
        log2_ns: log2 of the corrected times in ns.
        half_width_log2: half widths of their intervals, in log2.
    """

    log2_ns: Floats
    half_width_log2: Floats


def work_share(log2_ns: Floats, floor_ns: float | Floats) -> Floats:
    """Return the share of work (not launch floor) in each predicted time, 0.05 to 1, shape (n,)."""
    share = 1.0 - np.asarray(floor_ns, dtype=np.float64) / np.exp2(log2_ns)
    return np.asarray(np.clip(share, SMALLEST_WORK_SHARE, 1.0), dtype=np.float64)


def rescaled(share: Floats, log2_factor: float | Floats) -> tuple[Floats, Floats]:
    """Return the change of log2(time) when its work is scaled, and the change's derivative.

    Args:
        share: share of the time that is work.
        log2_factor: broadcast against ``share``.

    Returns:
        log2(1 - share + share * 2**log2_factor), and its derivative by ``log2_factor`` (0 to 1).
    """
    work = share * np.exp2(log2_factor)
    total = 1.0 - share + work
    return np.log2(total), work / total


def corrected(
    few_shot: FewShot, factor: KernelFactor, log2_ns: Floats, floor_ns: float
) -> Corrected:
    """Correct the predicted times of n launches of one kernel.

    The expected error of a launch combines its own error (``noise_log2``, or the kernel's
    ``scatter_log2`` if that is larger) with the uncertainty of the factor, multiplied by the
    launch's sensitivity to the factor. The half width of the interval is a calibrated multiple of
    the expected error.

    Args:
        few_shot: distribution of factors, from the run.
        factor: factor of the kernel.
        log2_ns: log2 of the predicted times in ns, shape (n,).
        floor_ns: time of an empty launch on the device; 0 if unknown.
    """
    change, slope = rescaled(work_share(log2_ns, floor_ns), factor.log2_factor)
    noise_log2 = max(few_shot.noise_log2, factor.scatter_log2)
    expected = expected_error(noise_log2, slope, factor.sd_log2)
    half = few_shot.band(factor.num_launches).half_width_log2 * expected
    return Corrected(log2_ns=log2_ns + change, half_width_log2=half)


def expected_error(noise_log2: float | Floats, slope: Floats, sd_log2: float | Floats) -> Floats:
    """Return the expected error of corrected predictions, in log2, shape (n,)."""
    return np.sqrt(noise_log2**2 + (slope * sd_log2) ** 2)


def floor_ns(device: Device | None) -> float:
    """Return the time of an empty launch in ns; 0 where it was not measured."""
    return 0.0 if device is None or device.launch_floor_ns is None else device.launch_floor_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFactors:
    """The factors of the measured kernels, and the ``FewShot`` for applying them."""

    few_shot: FewShot
    factors: Mapping[KernelKey, KernelFactor] = field(default_factory=dict)

    def joined(self, newer: KernelFactors) -> KernelFactors:
        """Return the factors of both; ``newer`` wins where both have a kernel."""
        return KernelFactors(few_shot=newer.few_shot, factors={**self.factors, **newer.factors})

    def save(self, run: Path) -> None:
        """Write ``kernel_factors.json`` into the folder of a run, atomically.

        The caller holds the folder's lock.
        """
        content = {
            "schema": _SCHEMA,
            "few_shot": self.few_shot.to_json(),
            "factors": [asdict(one) for _, one in sorted(self.factors.items())],
        }
        write_json(run / FACTORS_FILE, content)

    @classmethod
    def load(cls, run: Path) -> KernelFactors | None:
        """Read ``kernel_factors.json`` of a run; None where no kernel was measured.

        Raises:
            BadInput: The file is damaged.
        """
        path = run / FACTORS_FILE
        if not path.exists():
            return None
        content = read_json(path)
        try:
            if content["schema"] != _SCHEMA:
                raise ValueError(
                    f"it has schema {content['schema']!r}, but this LLMPerf reads schema {_SCHEMA}"
                )
            rows = [
                KernelFactor(**{**row, "sample_ids": tuple(row["sample_ids"])})
                for row in content["factors"]
            ]
            for one in rows:
                one.check()
            few_shot = FewShot.from_json(content["few_shot"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadInput(
                f"{path}: {error}; delete it, or measure again with `llmperf calibrate`"
            ) from None
        return cls(few_shot=few_shot, factors={one.key: one for one in rows})
