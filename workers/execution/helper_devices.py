"""Find the devices that analyse kernels and count their work, for a device that times them.

Owns the search. The search tries the OpenCL runtimes of a host, which takes seconds. So it runs in
a thread, and the command line does not wait for it.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from pathlib import Path

from workers.config import LimitsConfig
from workers.device.interface import DeviceRef
from workers.device.replay_file import read_replay_file
from workers.device.selectors import is_replay, replay_path
from workers.discovery.find import NoDevice, choose
from workers.execution.analysing import analysis_device

_logger = logging.getLogger(__name__)

NO_CPU_DEVICE = "no CPU OpenCL device is usable on the collecting host"


class HelperDevices:
    """The devices on which the kernels that ``ref`` times are analysed and counted.

    Args:
        ref: the device that times them.
        limits: only ``analysis_device``, ``check_reach`` and ``work`` are read.

    Attributes:
        counts_work: whether the work of launches is counted.
        checks_access: whether virtual launches find the configs that would damage the context of a
            GPU.
    """

    def __init__(self, ref: DeviceRef, limits: LimitsConfig) -> None:
        self._ref = ref
        self._how = limits.analysis_device
        self.counts_work = limits.work == "auto" and _can_be_counted(ref)
        self.checks_access = limits.check_reach == "auto" and ref.selector.startswith("cuda")
        self._analysis: Future[DeviceRef] | None = None
        self._counting: Future[DeviceRef | str] = Future()

    @property
    def launches_virtually(self) -> bool:
        """Whether a device for virtual launches is needed."""
        return self.counts_work or self.checks_access

    def missing_without(self) -> str:
        """Return what is missing if nothing runs virtual launches."""
        missing = ["columns `work` stay empty"] if self.counts_work else []
        if self.checks_access:
            missing.append("no virtual launch shows which configs leave their buffers")
        return ", and ".join(missing)

    def look(self) -> None:
        """Begin the search; later calls do nothing."""
        if self._analysis is None:
            self._analysis = Future()
            threading.Thread(target=self._search, name="analysis-device", daemon=True).start()

    def analysis(self) -> DeviceRef:
        """Return the device that analyses kernels; waits until the search has found it."""
        self.look()
        assert self._analysis is not None, "it was looked for"
        return self._analysis.result()

    def await_known(self) -> None:
        """Wait until the search has ended, if it has begun: it launches kernels on the devices."""
        if self._analysis is not None:
            self._analysis.result()
            if self.launches_virtually:
                self._counting.exception()

    def counting(self) -> DeviceRef | str | None:
        """Return the device of virtual launches, or why there is none; None during the search."""
        self.look()
        return self._counting.result() if self._counting.done() else None

    def _search(self) -> None:
        assert self._analysis is not None, "begun by look()"
        try:
            self._analysis.set_result(analysis_device(self._ref, self._how))
        except BaseException as error:  # noqa: BLE001  (raised again where the answer is used)
            self._analysis.set_exception(error)
        if self.launches_virtually:
            try:
                self._counting.set_result(self._cpu())
            except BaseException as error:  # noqa: BLE001
                self._counting.set_exception(error)

    def _cpu(self) -> DeviceRef | str:
        if not (self._ref.selector.startswith("cuda") or is_replay(self._ref.selector)):
            return self._ref
        assert self._analysis is not None, "looked for before"
        analysis = self._analysis.result()
        if analysis != self._ref:
            return analysis  # a CPU device, because it is not the timed one
        found = choose(
            "cpu", tell=lambda line: _logger.warning("device for virtual launches: %s", line)
        )
        if isinstance(found, NoDevice):
            _logger.warning("%s: %s", self.missing_without(), NO_CPU_DEVICE)
            return NO_CPU_DEVICE
        return found


def _can_be_counted(ref: DeviceRef) -> bool:
    """Whether a device's launches are real, or its replay file asks to count their work."""
    if not is_replay(ref.selector):
        return True
    return read_replay_file(Path(replay_path(ref.selector))).counts_work
