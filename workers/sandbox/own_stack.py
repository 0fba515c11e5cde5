"""An ``ExitStack`` that a fork of the process leaves alone.

The Python API runs inside a user's process. If that process forks in a callback, and the fork ends
in the ordinary way, it leaves the same ``with`` blocks as its parent, with the same children, leases
and folders, which the parent still uses.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

_LEFT_ALONE: list[contextlib.ExitStack] = []
"""Stacks of the parent, in a fork. They are kept: destroying a suspended generator ends its block."""


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
