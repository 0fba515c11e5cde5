"""Open a device that is already known, in this process: its session or its compiler.

Each child process imports this module, so what a device needs is imported only when one is opened:
pyopencl for a real device, pydantic for a replay file. ``find.py`` finds the devices.
"""

from __future__ import annotations

import os

from workers.device.interface import Compiler, DeviceRef, Session
from workers.device.opencl.cache import use_private_cache
from workers.device.selectors import is_replay


def open_session(ref: DeviceRef) -> Session:
    """Open the device in this process; LookupError if it is absent, ValueError on a bad file."""
    if is_replay(ref.selector):
        from workers.device.replay import ReplaySession  # noqa: PLC0415

        return ReplaySession(ref)
    enter_environment(ref)
    from workers.device.opencl.session import OpenclSession  # noqa: PLC0415

    return OpenclSession(ref)


def open_compiler(ref: DeviceRef) -> Compiler:
    """Open the device's compiler in this process; raises the errors of ``open_session``."""
    if is_replay(ref.selector):
        from workers.device.replay import ReplayCompiler  # noqa: PLC0415

        return ReplayCompiler(ref)
    enter_environment(ref)
    from workers.device.opencl.session import OpenclCompiler  # noqa: PLC0415

    return OpenclCompiler(ref)


def enter_environment(ref: DeviceRef) -> None:
    """Set the OpenCL loader's variables; LD_LIBRARY_PATH must be set by the parent, before exec."""
    os.environ.update(ref.environment)
    use_private_cache()
