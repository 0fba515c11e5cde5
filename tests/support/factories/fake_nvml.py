"""A fake driver for the real ``pynvml``: the answers of NVML's C library, in Python.

``pynvml`` calls functions of ``libnvidia-ml.so.1`` with a handle and pointers to fill; here these
functions are closures. Therefore the wrappers, structures and error classes are the real ones; only
the card is fake.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

UUID = "GPU-0a1b2c3d-0001-0002-0003-0123456789ab"
PCI = "00000000:1B:00.0"
SUCCESS, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE, GPU_IS_LOST = 0, 3, 6, 7, 15


@dataclass
class FakeCard:
    """The answers of one card; ``errors`` maps names of failing NVML functions to their status."""

    clocks_mhz: tuple[int, int] = (1905, 3201)
    max_clocks_mhz: tuple[int, int] = (1980, 3201)
    temperature_c: int = 61
    power_mw: int = 512_345
    power_limit_mw: int = 700_000
    reasons: int = 0
    busy_percent: int = 97
    pids: Sequence[int] = ()
    retired_pending: int = 0
    remapped: tuple[int, int, int, int] = (0, 0, 0, 0)
    recovery_action: int = 0
    ecc_errors: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    lacks: frozenset[str] = frozenset()


class FakeDriver:
    """The loaded library: ``getattr`` returns a function or raises AttributeError, as in ctypes."""

    def __init__(self, pynvml: ModuleType, card: FakeCard) -> None:
        self._pynvml = pynvml
        self.card = card
        self.num_inits = 0
        answers = self._answers()
        for name, answer in answers.items():
            if name not in card.lacks:
                setattr(self, name, self._function(name, answer))

    def _function(self, name: str, answer: Callable[..., int | None]) -> Callable[..., int]:
        def function(*arguments: Any) -> int:
            if name in self.card.errors:
                return self.card.errors[name]
            # byref() hides its object; all other arguments are plain ctypes values.
            return answer(*(getattr(one, "_obj", one) for one in arguments)) or SUCCESS

        return function

    def _answers(self) -> Mapping[str, Callable[..., int | None]]:
        card = self.card

        def init(_flags: Any) -> None:
            self.num_inits += 1

        def shutdown() -> None:
            self.num_inits -= 1

        def by_uuid(name: Any, _handle: Any) -> int:
            return SUCCESS if name.value.decode() == UUID else NOT_FOUND

        def by_pci(name: Any, _handle: Any) -> int:
            return SUCCESS if name.value.decode() == PCI else NOT_FOUND

        def text(value: str) -> Callable[..., None]:
            def fill(_handle: Any, buffer: Any, _length: Any) -> None:
                buffer.value = value.encode()

            return fill

        def pci_info(_handle: Any, info: Any) -> None:
            info.busId = PCI.encode()

        def clock(which: tuple[int, int]) -> Callable[..., None]:
            def fill(_handle: Any, kind: Any, out: Any) -> None:
                out.value = which[0 if kind.value == self._pynvml.NVML_CLOCK_SM else 1]

            return fill

        def temperature(_handle: Any, out: Any) -> None:
            out.temperature = card.temperature_c

        def temperature_old(_handle: Any, _sensor: Any, out: Any) -> None:
            out.value = card.temperature_c

        def number(attribute: str) -> Callable[..., None]:
            def fill(_handle: Any, out: Any) -> None:
                out.value = getattr(card, attribute)

            return fill

        def rates(_handle: Any, out: Any) -> None:
            out.gpu = card.busy_percent

        def processes(_handle: Any, count: Any, out: Any) -> int:
            if out is None:
                count.value = len(card.pids)
                return INSUFFICIENT_SIZE if card.pids else SUCCESS
            count.value = len(card.pids)
            for slot, pid in zip(out, card.pids, strict=False):
                slot.pid, slot.usedGpuMemory = pid, 2**20
            return SUCCESS

        def rows(_handle: Any, *outs: Any) -> None:
            for out, value in zip(outs, card.remapped, strict=True):
                out.value = value

        def fields(_handle: Any, count: Any, values: Any) -> None:
            for slot in values[: count.value]:
                slot.nvmlReturn, slot.value.uiVal = SUCCESS, card.recovery_action

        def ecc(_handle: Any, _kind: Any, _counter: Any, out: Any) -> None:
            out.value = card.ecc_errors

        def device_count(out: Any) -> None:
            out.value = 1

        return {
            "nvmlInitWithFlags": init,
            "nvmlShutdown": shutdown,
            "nvmlErrorString": lambda _code: b"(in words)",
            "nvmlDeviceGetCount_v2": device_count,
            "nvmlDeviceGetHandleByIndex_v2": lambda _index, _handle: SUCCESS,
            "nvmlDeviceGetHandleByUUID": by_uuid,
            "nvmlDeviceGetHandleByPciBusId_v2": by_pci,
            "nvmlDeviceGetUUID": text(UUID),
            "nvmlDeviceGetPciInfo_v3": pci_info,
            "nvmlDeviceGetClockInfo": clock(card.clocks_mhz),
            "nvmlDeviceGetMaxClockInfo": clock(card.max_clocks_mhz),
            "nvmlDeviceGetTemperatureV": temperature,
            "nvmlDeviceGetTemperature": temperature_old,
            "nvmlDeviceGetPowerUsage": number("power_mw"),
            "nvmlDeviceGetEnforcedPowerLimit": number("power_limit_mw"),
            "nvmlDeviceGetCurrentClocksEventReasons": number("reasons"),
            "nvmlDeviceGetCurrentClocksThrottleReasons": number("reasons"),
            "nvmlDeviceGetUtilizationRates": rates,
            "nvmlDeviceGetComputeRunningProcesses_v3": processes,
            "nvmlDeviceGetRetiredPagesPendingStatus": number("retired_pending"),
            "nvmlDeviceGetRemappedRows": rows,
            "nvmlDeviceGetFieldValues": fields,
            "nvmlDeviceGetTotalEccErrors": ecc,
        }


@contextlib.contextmanager
def driver_with(pynvml: ModuleType, card: FakeCard) -> Iterator[FakeDriver]:
    """Let ``pynvml`` use a driver with ``card``; check at the end that NVML was shut down."""
    driver = FakeDriver(pynvml, card)
    before = pynvml.nvmlLib
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib = driver
    try:
        yield driver
        assert driver.num_inits == 0, "NVML was left initialised"
    finally:
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()
