"""Numbers of a dataset that cannot be measured, found before a model is fitted to them.

Owns the limits of times and features. ``launch_columns.py`` owns those of a device's record.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from llmperf_common.features.features import feature_names
from llmperf_common.features.launch_columns import device_from_mapping
from trainer.errors import BadInput
from trainer.interface import Floats

_LEAST_NS, _MOST_NS = 1e-9, 1e18
"""Limits of a launch's median time: far below any timer's step, and 31 years."""
_MOST = 1e30
"""Limit of a feature's magnitude. Features are logarithms, counts and shares."""
_MEND = (
    "correct or remove it in the program that wrote the dataset (`llmperf dataset verify` lists "
    "rows that contradict themselves)"
)


def check_devices(devices: pa.Table) -> None:
    """Check the numbers of every device.

    Raises:
        BadInput: A number is missing, not finite, negative or too large.
    """
    for row in devices.to_pylist():
        try:
            device_from_mapping(row)
        except ValueError as error:
            name = str(row.get("device_id"))[:40]
            raise BadInput(f"table devices, row of device {name!r}: {error}: {_MEND}") from None


def check_times(samples: pa.Table, median_ns: Floats, is_ok: npt.NDArray[np.bool_]) -> None:
    """Check the median time of every ok row with an NDRange.

    Raises:
        BadInput: A time is null, not finite, not positive or impossible.
    """
    with np.errstate(invalid="ignore"):
        wrong = is_ok & ~((median_ns >= _LEAST_NS) & (median_ns <= _MOST_NS))
    if not wrong.any():
        return
    place = int(np.flatnonzero(wrong)[0])
    value = median_ns[place]
    raise BadInput(
        f"table samples, column median_ns, row of sample {_sample(samples, place)}: "
        f"{'null' if np.isnan(value) else f'{value:g}'} ({int(wrong.sum()):,} such rows): an ok "
        f"row needs a time from {_LEAST_NS:g} to {_MOST_NS:g} ns; {_MEND}"
    )


def check_features(features: Floats, samples: pa.Table) -> None:
    """Check that every feature is a number of a possible size, or NaN for unknown.

    Raises:
        BadInput: A feature is infinite or too large, because a number of its row is.
    """
    with np.errstate(invalid="ignore"):
        wrong = np.abs(features) > _MOST
    if not wrong.any():
        return
    place, column = (int(found[0]) for found in np.nonzero(wrong))
    raise BadInput(
        f"row of sample {_sample(samples, place)}: feature {feature_names()[column]} is "
        f"{features[place, column]:g}, because a size, an argument, a count of work or a static "
        f"feature of its kernel is impossible: {_MEND}"
    )


def _sample(samples: pa.Table, place: int) -> str:
    return str(samples.column("sample_id")[place].as_py())[:40]
