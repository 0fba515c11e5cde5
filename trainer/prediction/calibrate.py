"""Correction factors of kernels' predictions, computed from a dataset with measured launches.

Owns the choice of rows: ok rows that time one launch each, on a device class that the run knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from llmperf_common.files.plain_files import is_inside
from llmperf_common.files.visible import shortened
from llmperf_common.ids import sha256_hex
from llmperf_common.notebook import html_table
from llmperf_common.statistics.metrics import encode
from llmperf_common.statistics.splits import unit_hashes
from trainer.data.dataset import TrainingData
from trainer.data.foreign_files import read_table, reading
from trainer.errors import BadInput
from trainer.prediction.calibration_rows import USED_PREDICTIONS, calibration_rows
from trainer.prediction.few_shot import (
    MOST_ERROR_LOG2,
    Launches,
    fit_few_shot,
    launches_of,
    posterior,
)
from trainer.run.folder import CONFORMAL_FILE, PREDICTIONS_FILE
from trainer.run.folder_lock import locked
from trainer.run.harness import harness_notes
from trainer.run.kernel_factors import (
    FewShot,
    KernelFactor,
    KernelFactors,
    KernelKey,
    floor_ns,
    work_share,
)
from trainer.run.loaded import LoadedRun, published_marker
from trainer.run.shipped import SHIPPED_FOLDER

_LOCK_WAIT_S = 10.0
_MOST_KERNELS = 2_000
_MOST_LAUNCHES = 500_000
"""Maximum numbers of kernels and of launches in the calibration part of a predictions file. So many
take 10 s of one processor. Larger runs store ``few_shot.json`` instead. The model that comes with
LLMPerf had 200 kernels."""
_BEYOND = (
    "no factor of the predicted work (the time above the launch floor) explains the measured "
    f"times: half of them still differ by more than a factor of {2**MOST_ERROR_LOG2:.0f}. Check "
    "that the times are of this device, in ns"
)
_HEAD = ("kernel", "device", "launches", "factor", "times or over, 1 sd")


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationSummary:
    """The result of a calibration.

    Attributes:
        folder: the run that the factors were written to.
        factors: factors of the measured kernels.
        names: kernel names by kernel id.
        num_launches: number of launches used.
        num_left_out: number of rows with several launches per reading or with an unknown device
            class.
        notes: what a reader of the factors must know.
    """

    folder: Path
    factors: Sequence[KernelFactor]
    names: dict[str, str]
    num_launches: int
    num_left_out: int
    notes: Sequence[str]

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Return a table row for each kernel; the columns are ``TABLE_HEAD``."""
        return [
            (
                shortened(self.names.get(one.kernel_id, one.kernel_id)),
                shortened(one.device_class),
                str(one.num_launches),
                f"{2**one.log2_factor:.3g}",
                f"{2**one.sd_log2:.2f}",
            )
            for one in self.factors
        ]

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return html_table(f"factors of {len(self.factors)} kernels", _HEAD, self.rows()) + notes


TABLE_HEAD = _HEAD
"""The columns of ``CalibrationSummary.rows``."""


def calibrate_run(
    run: LoadedRun, data: TrainingData, *, launches: int | None = None
) -> CalibrationSummary:
    """Compute the factor of each kernel in ``data`` and write the factors into the run.

    Factors of other kernels in the run do not change.

    Args:
        run: the trained run.
        data: a dataset with measured launches.
        launches: maximum number of launches to use of each kernel, chosen by the hash of their
            ids; None uses all. ``evaluate`` can score the launches that are not used.

    Raises:
        BadInput: No row can be used, the run does not store how its errors vary by kernel, or the
            run comes with LLMPerf.
        RunExists: Another process is changing the run.
    """
    if is_inside(run.folder, SHIPPED_FOLDER):
        raise BadInput(
            f"{run.folder.name} comes with LLMPerf and is not changed: give the measured launches "
            "to `llmperf predict --measured DIR`, or calibrate a copy of the model's folder"
        )
    usable = _usable(run, data)
    if not usable.any():
        raise BadInput(_why_none(run, data, np.ones(len(data), dtype=bool)))
    index = np.flatnonzero(usable)
    if launches is not None:
        index = _first_by_hash(data, index, launches)
    few_shot = few_shot_of_run(run)
    factors, beyond = _factors(run, few_shot, data, index)
    _write_factors(run, few_shot, factors, beyond)
    if not factors:
        raise BadInput(f"--data: {_BEYOND}")
    kernels = data.rows.kernels
    names = zip(
        kernels.column("kernel_id").to_pylist(), kernels.column("name").to_pylist(), strict=True
    )
    return CalibrationSummary(
        folder=run.folder,
        factors=factors,
        names=dict(names),
        num_launches=sum(one.num_launches for one in factors),
        num_left_out=int(np.sum(~usable)),
        notes=[
            *harness_notes(run.harness_version, data.identity),
            *_notes(run, few_shot, factors, len(beyond)),
        ],
    )


def _write_factors(
    run: LoadedRun, few_shot: FewShot, factors: Sequence[KernelFactor], beyond: Sequence[KernelKey]
) -> None:
    """Write new factors into the run; remove old ones of kernels that no factor explains now."""
    found = KernelFactors(few_shot=few_shot, factors={one.key: one for one in factors})
    taken = f"{run.folder}: another process changes this run: try again when that process has ended"
    with locked(run.folder, taken, wait_s=_LOCK_WAIT_S):
        if published_marker(run.folder) != run.marker:
            raise BadInput(f"{run.folder}: was trained anew meanwhile: calibrate again")
        others = KernelFactors.load(run.folder)  # as they are now, and not as ``run`` knows them
        if others is not None:
            kept = {key: one for key, one in others.factors.items() if key not in beyond}
            found = replace(others, factors=kept).joined(found)
        if others is not None or factors:
            found.save(run.folder)


def factor_of(
    run: LoadedRun, data: TrainingData, *, kernel_id: str, name: str, source: str, device: str
) -> KernelFactors:
    """Return the factor of one kernel on one device class.

    Args:
        run: the trained run.
        data: a dataset with measured launches of the kernel.
        kernel_id: the kernel's id.
        name: the kernel's name; name and ``source`` also match a kernel built with other options.
        source: the kernel's source.
        device: the device class.

    Raises:
        BadInput: ``data`` has no usable launch of the kernel, or no factor explains its times;
            the message says why.
    """
    inside = _rows_of(data, kernel_id, name, source)
    on_device = inside & (data.texts("device_class") == device)
    usable = on_device & data.single_launch
    if not usable.any():
        raise BadInput(
            f"--measured: kernel {shortened(name)!r} on {device}: "
            f"{_why_none_of(data, inside, on_device, name)}"
        )
    few_shot = few_shot_of_run(run)
    factors, beyond = _factors(run, few_shot, data, np.flatnonzero(usable))
    if beyond:
        raise BadInput(f"--measured: kernel {shortened(name)!r} on {device}: {_BEYOND}")
    found = factors[0]
    return KernelFactors(few_shot=few_shot, factors={(kernel_id, device): found})


def few_shot_of_run(run: LoadedRun) -> FewShot:
    """Return how the run's errors vary between kernels: as stored, or from its predictions file.

    Raises:
        BadInput: The run has neither of the two files, or its predictions cannot be used.
    """
    if run.few_shot is not None:
        return run.few_shot
    path, level = run.folder / PREDICTIONS_FILE, run.conformal.level
    if not 0 < level < 1:
        raise BadInput(
            f"{run.folder / CONFORMAL_FILE}: its level {level} is not between 0 and 1: train the "
            "run again"
        )
    try:
        predictions = read_table(path, USED_PREDICTIONS)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise BadInput(
            f"{run.folder}: measured launches cannot be used, because the run does not store how "
            f"the model's errors vary between kernels and {PREDICTIONS_FILE} cannot be read "
            f"({error}): train the run again"
        ) from None
    floors = {name: floor_ns(device) for name, device in run.devices.items()}
    try:
        with reading("the errors of the model"):
            rows, source = calibration_rows(predictions, run.name, level)
            launches = launches_of(rows, floors)
            num_kernels = int(launches.kernel.max()) + 1
            if num_kernels > _MOST_KERNELS or len(rows) > _MOST_LAUNCHES:
                raise BadInput(
                    f"{len(rows):,} launches of {num_kernels:,} kernels in its calibration part "
                    f"are more than the {_MOST_LAUNCHES:,} of {_MOST_KERNELS:,} that are read: "
                    "train the run again, which stores what is needed of them"
                )
            return fit_few_shot(launches, level=level, source=source)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def _factors(
    run: LoadedRun, few_shot: FewShot, data: TrainingData, index: npt.NDArray[np.intp]
) -> tuple[list[KernelFactor], list[KernelKey]]:
    """Return the factor of each (kernel, device class) in the rows at ``index``.

    The second list has the keys of kernels whose launches no factor explains.
    """
    kernel_ids, classes = data.texts("kernel_id")[index], data.texts("device_class")[index]
    sample_ids = data.texts("sample_id")[index]
    codes = encode(kernel_ids, classes)
    said = run.predict(data.rows.take(index)).log2_ns
    floors = np.array([floor_ns(run.devices.get(name)) for name in classes.tolist()])
    launches = Launches(
        log2_measured=data.log2_ns[index],
        log2_predicted=said,
        share=work_share(said, floors),
        kernel=codes,
        family=codes,
    )
    _, first = np.unique(codes, return_index=True)
    known = posterior(few_shot, launches, len(first))
    factors = [
        KernelFactor(
            kernel_id=str(kernel_ids[place]),
            device_class=str(classes[place]),
            log2_factor=float(known.median[code]),
            sd_log2=float(known.sd[code]),
            num_launches=int(np.sum(codes == code)),
            sample_ids=tuple(sorted(sample_ids[codes == code].tolist())),
            scatter_log2=float(known.scatter[code]),
        )
        for code, place in enumerate(first.tolist())
        if not known.is_beyond[code]
    ]
    keys = [(str(kernel_ids[place]), str(classes[place])) for place in first.tolist()]
    return factors, [key for key, is_beyond in zip(keys, known.is_beyond, strict=True) if is_beyond]


def _usable(run: LoadedRun, data: TrainingData) -> npt.NDArray[np.bool_]:
    return data.single_launch & np.isin(data.texts("device_class"), sorted(run.devices))


def _first_by_hash(
    data: TrainingData, index: npt.NDArray[np.intp], launches: int
) -> npt.NDArray[np.intp]:
    """Return ``launches`` rows of each kernel, those with the smallest hashes of sample ids."""
    codes = data.kernel_codes()[index]
    draws = unit_hashes(0, "calibrate", data.texts("sample_id")[index].tolist())
    order = np.lexsort((draws, codes))
    _, first, counts = np.unique(codes[order], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(first, counts)
    return np.sort(index[order[rank < launches]])


def _rows_of(data: TrainingData, kernel_id: str, name: str, source: str) -> npt.NDArray[np.bool_]:
    """Return which rows belong to a kernel (by id, else by name and source hash), shape (n,)."""
    inside = np.asarray(data.texts("kernel_id") == kernel_id)
    if inside.any():
        return inside
    kernels = data.rows.kernels
    names, hashes = (kernels.column(one).to_pylist() for one in ("name", "source_sha256"))
    wanted = (name, sha256_hex(source.encode()))
    equal = np.array([pair == wanted for pair in zip(names, hashes, strict=True)], dtype=bool)
    return np.asarray(equal[data.rows.kernel_row])


def _why_none(run: LoadedRun, data: TrainingData, rows: npt.NDArray[np.bool_]) -> str:
    classes = set(data.texts("device_class")[rows].tolist())
    if not classes & set(run.devices):
        return (
            f"--data: the rows are of {', '.join(map(shortened, sorted(classes)))}, but the model was trained on "
            f"{', '.join(sorted(run.devices))}: measure on a device "
            "class that the model knows"
        )
    return (
        "--data: every ok row times several launches in one reading, so no time of a single launch "
        "is known: collect larger sizes"
    )


def _why_none_of(
    data: TrainingData,
    inside: npt.NDArray[np.bool_],
    on_device: npt.NDArray[np.bool_],
    name: str,
) -> str:
    if on_device.any():
        return (
            "each of its rows times several launches in one reading, so no time of a single launch "
            "is known: measure larger sizes"
        )
    if inside.any():
        classes = sorted(set(data.texts("device_class")[inside].tolist()))
        return (
            f"it was measured on {', '.join(map(shortened, classes))} only: measure it on this device, or choose "
            "that device class"
        )
    names = data.rows.kernels.column("name").to_pylist()
    if name in names:
        return (
            "the dataset has a kernel of this name, but no ok launch of this source: its launches "
            "failed, or its source is another version. See `llmperf dataset stats`"
        )
    few = ", ".join(map(shortened, sorted(set(names))[:5]))
    return (
        f"the dataset has no row of this kernel; its kernels are {few}"
        f"{' and others' if len(set(names)) > 5 else ''}"
    )


def _notes(
    run: LoadedRun, few_shot: FewShot, factors: Sequence[KernelFactor], num_beyond: int
) -> list[str]:
    notes = []
    if num_beyond:
        notes.append(f"kernels without a factor: {num_beyond}; {_BEYOND}")
    num_odd = sum(one.disagrees for one in factors)
    if num_odd:
        notes.append(
            f"kernels whose launches disagree with their factor, which widens the interval: "
            f"{num_odd}"
        )
    fitted = set(run.kernels.column("kernel_id").to_pylist())
    num_fitted = sum(one.kernel_id in fitted for one in factors)
    if num_fitted:
        notes.append(
            f"the model was trained on {num_fitted} of these kernels, but intervals are calibrated "
            "for unseen kernels only"
        )
    unsure = [one for one in few_shot.bands.values() if one.guarantee == "none"]
    if unsure:
        notes.append(
            f"intervals: {unsure[0].num_groups} calibration families are too few for "
            f"{few_shot.level:.0%}; the half width is the largest error seen, without guarantee"
        )
    if "validation" in few_shot.source:
        notes.append(
            "intervals were also calibrated on the validation part, which selected the model: they "
            "may be a little narrow"
        )
    return notes
