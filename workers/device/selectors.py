"""What the selector of a device (``--device``) says about the device.

Imports little: each child process asks before it imports what opens the device.
"""

from __future__ import annotations

REPLAY_PREFIX = "replay:"
"""The selector of a replay device is this prefix and the path of its file (``replay.py``)."""


def is_replay(selector: str) -> bool:
    """Return whether the device replays a file.

    >>> is_replay("replay:gpu.json"), is_replay("cuda:0")
    (True, False)
    """
    return selector.startswith(REPLAY_PREFIX)


def replay_path(selector: str) -> str:
    """Return the path of a replay device's file.

    >>> replay_path("replay:gpu.json")
    'gpu.json'
    """
    return selector.removeprefix(REPLAY_PREFIX)
