"""Make sure that this machine has a usable OpenCL CPU device.

``python -m workers.discovery.provide [--intel] [COMMAND…]``. With ``--intel`` the device is that of
Intel's runtime, and COMMAND sees no other device, except a PoCL that ``LLMPERF_POCL_ICD`` names.

Owns the decision to install Intel's CPU runtime into the virtual environment if no other runtime is
usable: the pip PoCL cannot build on CPUs newer than its LLVM. Needs no root and no system package.
The exit code is 4 if there is no device. Otherwise COMMAND runs in the device's environment (ICD,
library path); without COMMAND the exit code is 0. The environment takes effect only when a process
starts, so tests that open the device themselves must run as COMMAND.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from workers.device.interface import DeviceRef
from workers.discovery.candidates import INTEL_PACKAGES, POCL_VARIABLE, Source, candidates
from workers.discovery.find import NoDevice, choose, try_all_runtimes
from workers.sandbox.child_environment import PYTHON

EXIT_OK = 0
EXIT_NO_DEVICE = 4


def main(arguments: Sequence[str]) -> int:
    """Find a CPU device, install Intel's runtime if there is none, then run the command.

    Args:
        arguments: optional ``--intel``, then the command with its arguments, if any.
    """
    intel_only = arguments[:1] == ["--intel"]
    command = arguments[intel_only:]
    chosen = _intel_device() if intel_only else choose("cpu", tell=_say)
    if isinstance(chosen, NoDevice):
        _say(chosen.message())
        _say(f"installing {' '.join(INTEL_PACKAGES)} into {sys.prefix}: 0.8 GB on disk")
        if not _install():
            return EXIT_NO_DEVICE
        chosen = _intel_device(again=True)
    if isinstance(chosen, NoDevice):
        _say(chosen.message())
        return EXIT_NO_DEVICE
    _say(f"chosen: --device {chosen.selector} ({chosen.platform}: {chosen.name})")
    if command:
        os.environ.update(chosen.environment)
        if intel_only:
            os.environ.setdefault(POCL_VARIABLE, "")
        os.execvp(command[0], list(command))  # noqa: S606  (the user's own command; no shell)
    return EXIT_OK


def _intel_device(*, again: bool = False) -> DeviceRef | NoDevice:
    present, absent = candidates()
    intel = tuple(one for one in present if one.source is Source.INTEL_RUNTIME)
    missing = tuple(one for one in absent if one.source is Source.INTEL_RUNTIME)
    return choose("cpu", try_all_runtimes((intel, missing), again=again, tell=_say))


def _install() -> bool:
    command = [*PYTHON, "-m", "pip", "install", "--quiet", *INTEL_PACKAGES]
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        _say(f"{' '.join(command)} failed with exit code {done.returncode}")
    return done.returncode == 0


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
