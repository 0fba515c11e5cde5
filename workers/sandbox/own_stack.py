"""An ``ExitStack`` whose callbacks run only in the process that made it, not in a fork of it.

The Python API runs inside a user's process. If that process forks in a callback, and the fork ends
in the ordinary way, the fork leaves the same ``with`` blocks as its parent. These blocks must not
end the children, leases and folders that the parent still uses.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

_LEFT_ALONE: list[contextlib.ExitStack] = []
"""In a fork: the stacks of its parent. This list keeps them alive, because Python ends the ``with``
block of a suspended generator when it destroys the generator."""


class OwnStack(contextlib.ExitStack):
    """Calls its callbacks only in the process that has made it."""

    def __init__(self) -> None:
        super().__init__()
        self._creator_pid = os.getpid()

    def __exit__(self, *details: Any) -> bool | None:
        """Call the callbacks; in a fork do nothing."""
        if os.getpid() != self._creator_pid:
            _LEFT_ALONE.append(self.pop_all())
            return False
        return super().__exit__(*details)
