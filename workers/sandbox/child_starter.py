"""Start children for a device and clear away what ended ones have left.

Owns the scratch folders below one folder. A child's life is its pool's or slot's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from workers.device.interface import DeviceRef
from workers.sandbox.child import CACHE_FOLDER, Child
from workers.sandbox.processors import for_work_ahead

_SEED_FOLDER = "cache-seed"
_FEW_THREADS = {"POCL_MAX_PTHREAD_COUNT": "2", "POCL_CPU_MAX_CU_COUNT": "2"}
"""PoCL's name for it, old and new: each of a dozen children would else start a thread for each processor."""
_NICE = 10


class ChildStarter:
    """Starts children, each with a scratch folder of its own below ``scratch``."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._started: list[Child] = []

    def keep_cache_of(self, child: Child) -> None:
        """Give all later children a copy of what ``child``'s runtime has compiled: so far, our own kernels.

        Each would compile them anew: on PoCL that is a second of every task. The copies are apart, so a child
        that is killed in a build, or gone wild, spoils its own only.
        """
        cache, seed = child.scratch / CACHE_FOLDER, self._scratch / _SEED_FOLDER
        if cache.is_dir() and not seed.exists():
            shutil.copytree(cache, seed)

    def start(
        self, module: str, name: str, ref: DeviceRef, *, beside_timing: bool = False
    ) -> Child:
        """Start ``python -m module`` for the device ``ref``.

        Args:
            module: of the child.
            name: of its folder.
            ref: the device.
            beside_timing: it works while another child times: it must stay out of that one's way.
        """
        # What an ended child has left is of no more use once the next one starts: its end is reported by then.
        for ended in [child for child in self._started if child.has_ended]:
            shutil.rmtree(ended.scratch, ignore_errors=True)
            self._started.remove(ended)
        seed = self._scratch / _SEED_FOLDER
        if seed.is_dir():
            shutil.copytree(seed, self._scratch / name / CACHE_FOLDER)
        reference = json.dumps(dataclasses.asdict(ref))
        environment = {**self._cuda_cache(), **ref.environment}
        if beside_timing:
            environment = {**_FEW_THREADS, **_chosen(_FEW_THREADS), **environment}
        child = Child(module, reference, environment=environment, scratch=self._scratch / name)
        if beside_timing:
            _stand_back(child.pid)
        self._started.append(child)
        return child

    def _cuda_cache(self) -> dict[str, str]:
        """Return where NVIDIA's driver keeps what it has translated; a folder that the user named is kept.

        One for all children of a run: what a compile child has translated a run child need not translate again. Not the
        user's own: a second run would find the first one's work done.
        """
        if "CUDA_CACHE_PATH" in os.environ:
            return {}
        return {"CUDA_CACHE_PATH": str(self._scratch / "cuda"), "CUDA_CACHE_MAXSIZE": str(2**32)}


def _stand_back(pid: int) -> None:
    """Leave the child the processors of work ahead, at a low priority; its threads come after."""
    processors = for_work_ahead(os.sched_getaffinity(0))
    with contextlib.suppress(OSError):  # it has ended already
        mine = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, pid, max(mine, _NICE))
    if processors is not None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(pid, processors)


def _chosen(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those that the user has set, as they are set."""
    return {name: os.environ[name] for name in variables if name in os.environ}
