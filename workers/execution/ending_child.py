"""A killed run child that may still hold the device, until it has ended.

Waits for its end without delaying other lanes, and then checks that the card is sound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmperf_common.records import Device
from workers.device.nvidia.nvml import problems_of
from workers.sandbox.child import Child
from workers.sandbox.run_children import DeviceLostError

SHORT_END_S = 0.01
"""Seconds to wait at once for a killed child. After that, other lanes go on until its end: a GPU's
driver takes at least 0.1 s to end a context, and up to 2 s on a host with busy cards."""

ENDING_POLL_S = 0.01
"""Seconds between two looks at a killed child that has not ended yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingChild:
    """A child after ``Child.begin_kill``; ``then`` is what its lane does after its end."""

    child: Child
    device: Device
    then: Callable[[], None]

    def has_ended(self, wait_s: float) -> bool:
        """Return whether the child has ended; wait at most ``wait_s`` s for its end.

        Raises:
            DeviceLostError: The child has ended and the card is unsound. Then another device times
                all configs of the task in hand, including those that were timed here.
        """
        if not self.child.has_gone(wait_s):
            return False
        problems = problems_of(self.device)
        if problems:
            what = f"{self.device.name} is not sound after a process died on it"
            raise DeviceLostError(f"{what}: {'; '.join(problems)}")
        return True
