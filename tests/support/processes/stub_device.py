"""The device that a stub child shows."""

from __future__ import annotations

from workers.device.replay_file import ReplayDevice

DEVICE = ReplayDevice().record()
