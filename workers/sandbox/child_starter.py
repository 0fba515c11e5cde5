"""Start children for a device, and remove the scratch folders of ended ones.

Owns the scratch folders below one folder. The pool or ``RunChild`` that uses a child ends it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from llmperf_common.installation import loaded_installation
from workers.device.interface import DeviceRef
from workers.sandbox.child import CACHE_FOLDER, Child
from workers.sandbox.confinement import runs_in_host
from workers.sandbox.processors import for_work_ahead
from workers.sandbox.scratch import check_space

_SEED_FOLDER = "cache-seed"
_ONE_THREAD = {"POCL_MAX_PTHREAD_COUNT": "1", "POCL_CPU_MAX_CU_COUNT": "1"}
"""PoCL's old and new variable. Without them each of a dozen children has a thread per processor.
The launches of an analysis or a count are so small that waking a second thread costs a sixth of
their processor time."""
_NICE = 10  # niceness of children that work during the timing; the parent's niceness if higher


class ChildStarter:
    """Starts children, each with its own scratch folder below ``scratch``."""

    def __init__(self, scratch: Path) -> None:
        loaded_installation()  # the first call notes LLMPerf's files, for later checks
        self._scratch = scratch
        self._started: list[Child] = []

    def keep_cache_of(self, child: Child) -> None:
        """Give all later children a copy of LLMPerf's own kernels as ``child`` has compiled them.

        Otherwise each child compiles them again, which costs a second per task on PoCL. The copies
        are separate, so a child that crashes or is killed in a build damages only its own copy.
        """
        cache, seed = child.scratch / CACHE_FOLDER, self._scratch / _SEED_FOLDER
        if cache.is_dir() and not seed.exists():
            shutil.copytree(cache, seed)

    def start(
        self,
        module: str,
        name: str,
        ref: DeviceRef,
        *,
        beside_timing: bool = False,
        is_timing: bool = False,
    ) -> Child:
        """Start ``python -m module`` for the device ``ref``.

        Args:
            module: the child's main module.
            name: name of the child's scratch folder.
            ref: the device.
            beside_timing: whether the child works while another child times; it must not slow down
                the timing.
            is_timing: whether the child times launches; if so, a CPU device has all its threads.

        Raises:
            StoreError: The scratch folder is full or gone, so the child would fail.
            InstallationChanged: LLMPerf's files are not those that this process has loaded.
        """
        check_space(self._scratch)
        loaded_installation().check()
        # The ends of earlier children have been reported by now, so their folders are not needed.
        for ended in [child for child in self._started if child.has_ended]:
            shutil.rmtree(ended.scratch, ignore_errors=True)
            self._started.remove(ended)
        seed = self._scratch / _SEED_FOLDER
        if seed.is_dir():
            shutil.copytree(seed, self._scratch / name / CACHE_FOLDER)
        reference = json.dumps(dataclasses.asdict(ref))
        environment = {**self._cuda_cache(), **ref.environment}
        if runs_in_host(ref):
            # The child's kernels may write only below this folder, so not into folders of other
            # children.
            environment["TMPDIR"] = str(self._scratch / name)
        if not is_timing:
            environment = {**_ONE_THREAD, **_chosen(_ONE_THREAD), **environment}
        child = Child(module, reference, environment=environment, scratch=self._scratch / name)
        if beside_timing:
            _stand_back(child.pid)
        self._started.append(child)
        return child

    def _cuda_cache(self) -> dict[str, str]:
        """Return where NVIDIA's driver caches compiled code, unless the user has named a folder.

        All children of a run share the folder, so a run child need not compile again what a compile
        child has compiled. The user's own cache would let a second run find the code of the first.
        """
        if "CUDA_CACHE_PATH" in os.environ:
            return {}
        return {"CUDA_CACHE_PATH": str(self._scratch / "cuda"), "CUDA_CACHE_MAXSIZE": str(2**32)}


def _stand_back(pid: int) -> None:
    """Move the child to processors not used for timing, at low priority; threads inherit both."""
    processors = for_work_ahead(os.sched_getaffinity(0))
    with contextlib.suppress(OSError):  # the child has ended already
        mine = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, pid, max(mine, _NICE))
    if processors is not None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(pid, processors)


def _chosen(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the user has set, with the user's values."""
    return {name: os.environ[name] for name in variables if name in os.environ}
