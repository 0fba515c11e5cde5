"""One NVIDIA GPU as NVML reports it: clocks, temperature, power, processes and health.

Owns the queries; a query without an answer returns None. Changes no setting. ``nvml.py`` imports
the library and passes it in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from workers.device.nvidia.monitor import ClockReason, Reading

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeProcess:
    """A process with a compute context on a GPU.

    ``pid``: as the driver reports it; in a container with its own pids it can be a pid of the host.
    """

    pid: int
    used_memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLimits:
    """The limits of a card as set on this host; None if NVML does not report one."""

    max_sm_clock_mhz: float | None
    max_memory_clock_mhz: float | None
    power_limit_w: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """A card's health, as far as NVML reports it to a normal user.

    ``problems``: reasons not to use the card; empty if it is healthy. ``uncorrected_ecc_errors``:
    number since the driver was loaded, in all processes; None if not counted.
    """

    problems: tuple[str, ...]
    uncorrected_ecc_errors: int | None


class NvmlGpu:
    """One card, until ``close``; also the ``Source`` of a monitor. ``open_gpu`` makes it.

    A query for a figure that the card does not have returns None.
    """

    def __init__(self, library: Any, handle: Any) -> None:
        self._nvml = library
        self._handle = handle
        self._lacks = (library.NVML_ERROR_NOT_SUPPORTED, library.NVML_ERROR_FUNCTION_NOT_FOUND)
        self._lacking: set[str] = set()
        self._told: set[str] = set()

    @property
    def uuid(self) -> str:
        """The card's UUID as NVML writes it: ``GPU-…``."""
        return str(self._ask("nvmlDeviceGetUUID") or "")

    @property
    def pci_bus_id(self) -> str:
        """Domain, bus, device and function: ``00000000:1B:00.0``."""
        info = self._ask("nvmlDeviceGetPciInfo")
        return _text(info.busId) if info is not None else ""

    def read(self, at_s: float) -> Reading:
        """Return what can be read now, with one NVML call for each value."""
        return Reading(at_s=at_s, **{name: query() for name, query in self.queries().items()})

    def queries(self) -> Mapping[str, Callable[[], Any]]:
        """Return the queries of one poll, by the field of ``Reading`` that each fills."""
        return {
            "sm_clock_mhz": lambda: self._clock(self._nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": lambda: self._clock(self._nvml.NVML_CLOCK_MEM),
            "temperature_c": self._temperature_c,
            "power_w": lambda: _thousandth(self._ask("nvmlDeviceGetPowerUsage")),
            "reasons": self._reasons,
            "busy_share": self._busy_share,
        }

    def limits(self) -> GpuLimits:
        """Return the card's highest clocks and its power limit as set on this host."""
        most = "nvmlDeviceGetMaxClockInfo"
        return GpuLimits(
            max_sm_clock_mhz=_number(self._ask(most, self._nvml.NVML_CLOCK_SM)),
            max_memory_clock_mhz=_number(self._ask(most, self._nvml.NVML_CLOCK_MEM)),
            power_limit_w=_thousandth(self._ask("nvmlDeviceGetEnforcedPowerLimit")),
        )

    def compute_processes(self) -> tuple[ComputeProcess, ...] | None:
        """Return the processes with a compute context on the card; None if NVML does not say."""
        found = self._ask("nvmlDeviceGetComputeRunningProcesses")
        if found is None:
            return None
        return tuple(
            ComputeProcess(pid=int(one.pid), used_memory_bytes=one.usedGpuMemory) for one in found
        )

    def health(self) -> Health:
        """Return the card's health; to be called after a child was killed or has hung."""
        try:
            self._nvml.nvmlDeviceGetUtilizationRates(self._handle)
        except self._nvml.NVMLError as error:
            # A healthy card may lack this figure. Only errors of a lost card are a problem.
            if is_from_a_lost_card(self._nvml, error):
                return Health(
                    problems=(f"the GPU does not answer: {error}",), uncorrected_ecc_errors=None
                )
        problems = []
        if self._ask("nvmlDeviceGetRetiredPagesPendingStatus"):
            problems.append("memory pages wait to be retired: the GPU needs a reset")
        rows = self._ask("nvmlDeviceGetRemappedRows")  # cards since Ampere remap rows, not pages
        if rows is not None and (rows[2] or rows[3]):
            problems.append(
                "memory rows wait to be remapped, or could not be: the GPU needs a reset"
            )
        action = self._recovery_action()
        if action:
            problems.append(f"the driver asks for a recovery (action {action}, see nvidia-smi -q)")
        return Health(
            problems=tuple(problems),
            uncorrected_ecc_errors=self._ask(
                "nvmlDeviceGetTotalEccErrors",
                self._nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                self._nvml.NVML_VOLATILE_ECC,
            ),
        )

    def close(self) -> None:
        """Release NVML; the last user in this process unloads it."""
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError as error:
            _logger.warning("NVML did not shut down: %s", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _clock(self, which: int) -> float | None:
        return _number(self._ask("nvmlDeviceGetClockInfo", which))

    def _temperature_c(self) -> float | None:
        sensor = self._nvml.NVML_TEMPERATURE_GPU
        found = self._ask("nvmlDeviceGetTemperatureV", sensor)
        # The older name, for libraries before 13; announced to be removed in 14.
        return _number(self._ask("nvmlDeviceGetTemperature", sensor) if found is None else found)

    def _reasons(self) -> ClockReason | None:
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # drivers before 535 only know the older name
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if bits is None else ClockReason(bits)

    def _busy_share(self) -> float | None:
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        return None if rates is None else float(rates.gpu) / 100

    def _recovery_action(self) -> int | None:
        field = getattr(self._nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
        if field is None:
            return None
        answers = self._ask("nvmlDeviceGetFieldValues", [field])
        if answers is None or answers[0].nvmlReturn != self._nvml.NVML_SUCCESS:
            return None
        return int(answers[0].value.uiVal)

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Return the answer of one NVML function for this card, or None.

        A function that the library, the driver or the card does not have is called only once. Any
        other error may be temporary, so the function is called again. Each error is logged once.
        """
        key, nvml = f"{name}{arguments}", self._nvml
        if key in self._lacking:
            return None
        function = getattr(nvml, name, None)
        mismatch: type[Exception] = getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError)
        try:
            if function is not None:
                return function(self._handle, *arguments)
            lacks, why = True, "this nvidia-ml-py does not have it"
        except nvml.NVMLError as error:
            lacks, why = error.value in self._lacks, str(error)
        except mismatch as error:
            lacks, why = True, str(error)
        if lacks:
            self._lacking.add(key)
            _logger.info("NVML: %s: %s", name, why)
        elif key not in self._told:
            self._told.add(key)
            _logger.warning("NVML: %s: %s", name, why)
        return None


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _thousandth(value: Any) -> float | None:
    return None if value is None else float(value) / 1000


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def is_from_a_lost_card(nvml: Any, error: Any) -> bool:
    """Return whether an ``NVMLError`` means a lost card, not a card without the figure."""
    return error.value in (
        nvml.NVML_ERROR_GPU_IS_LOST,
        nvml.NVML_ERROR_RESET_REQUIRED,
        nvml.NVML_ERROR_UNKNOWN,
        nvml.NVML_ERROR_TIMEOUT,
    )
