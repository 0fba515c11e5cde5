"""Remember the results of trials, so that a machine tries each CPU runtime once.

Owns the file of one verdict, what the verdict depends on (runtime, driver file, CPU, environment)
and how long it is valid. Verdicts on GPUs are never remembered, because a GPU may be busy, hidden
or gone the next time. If the cache folder is not writable, each process tries the runtimes itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import importlib.metadata
import json
import logging
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from llmperf_common.files.foreign_json import parse_json
from llmperf_common.files.plain_files import UnfitFileError, open_lock_file, read_plain
from llmperf_common.files.replacing import replacing
from workers.device.interface import DeviceRef
from workers.discovery.candidates import AbsentSource, Candidate, Source
from workers.discovery.cpu_model import read_cpu_model
from workers.discovery.runtime_trial import TO_MEND, RuntimeVerdict, TriedDevice, verdict_of

_SCHEMA = 1
_MAX_BYTES = 2**20
"""Maximum size of a verdict's file; one of a host with eight devices has some KiB."""
_AFTER_ANSWER_S = 30 * 86_400.0
"""Seconds for which a trial that ended by itself is remembered: 30 days."""

_AFTER_DEATH_S = 86_400.0
"""Seconds for which a crash or hang is remembered: a day, because a busy machine can cause it."""

_WHEELS = ("pyopencl", "pocl-binary-distribution", "intel-opencl-rt", "intel-cmplr-lib-rt", "tbb")
_CPU_SELECTORS = ("pocl", "cpu")
_VARIABLES = ("POCL_", "CL_CONFIG_")
_LOADER_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD")
_LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
    "/usr/local/lib",
)  # fmt: skip

_logger = logging.getLogger(__name__)


def default_folder() -> Path:
    """Return the folder of the verdicts: ``llmperf/opencl-probes`` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        cache = Path(base) if base else Path.home() / ".cache"
    except RuntimeError:  # a user without a home, as in some containers
        cache = _private(Path(tempfile.gettempdir()) / f"cache-{os.getuid()}")
    return cache / "llmperf" / "opencl-probes"


def _private(folder: Path) -> Path:
    """Return ``folder``, or a path that remembers nothing if other users may write to it."""
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if is_own and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return folder
    return Path(os.devnull)


def fingerprint(candidate: Candidate) -> str:
    """Return a hash of everything that a verdict about ``candidate`` depends on."""
    # A wheel's library is named by its path. The system's libraries depend on these variables.
    is_system = candidate.source is Source.SYSTEM_ICD
    variables = (*_VARIABLES, *(_LOADER_VARIABLES if is_system else ()))
    facts = {
        "schema": _SCHEMA,
        "probe": [
            resources.files("workers.discovery").joinpath(name).read_text()
            for name in ("trial.cl", "trial_child.py")
        ],
        "source": candidate.source.value,
        "environment": dict(sorted(candidate.environment.items())),
        "driver": _driver_files(candidate),
        "wheels": {name: _version(name) for name in _WHEELS},
        "cpu": read_cpu_model().description,
        "processors": sorted(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "variables": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(variables)
        },
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:20]


class VerdictFile:
    """The file in ``folder`` that remembers whether one candidate can be used.

    A candidate is an environment in which OpenCL devices may be found.
    """

    def __init__(self, candidate: Candidate, folder: Path) -> None:
        self._candidate = candidate
        self._path = folder / f"{fingerprint(candidate)}.json"

    @contextlib.contextmanager
    def alone(self, wait: Callable[[], None]) -> Iterator[None]:
        """Let one process at a time try the runtime; call ``wait`` if another process is trying."""
        with contextlib.ExitStack() as stack:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                lock = open_lock_file(self._path.with_suffix(".lock"), create=True)
                stack.callback(os.close, lock)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    wait()
                    fcntl.flock(lock, fcntl.LOCK_EX)
            except (OSError, UnfitFileError) as error:
                _logger.info("trial verdicts are not shared: %s", error)
            yield

    def read(self) -> RuntimeVerdict | None:
        """Return the remembered verdict; None if there is none, or it has expired or is damaged."""
        try:
            content = parse_json(read_plain(self._path, max_bytes=_MAX_BYTES))
            if content["schema"] != _SCHEMA or time.time() > content["until_s"]:
                return None
            return self._verdict(content)
        except (OSError, UnfitFileError, ValueError, KeyError, TypeError, OverflowError):
            return None

    def write(self, verdict: RuntimeVerdict) -> None:
        """Remember ``verdict``, unless it is about a GPU or a runtime whose GPU may be hidden."""
        refs = [tried.ref for tried in verdict.devices]
        is_hidden = not refs and self._candidate.may_have("cuda")
        if is_hidden or any(ref.selector not in _CPU_SELECTORS for ref in refs):
            return
        now_s = time.time()
        content = {
            "schema": _SCHEMA,
            "tried_at_s": now_s,
            "until_s": now_s + (_AFTER_ANSWER_S if verdict.ended_itself else _AFTER_DEATH_S),
            "ended_itself": verdict.ended_itself,
            "absent": None if verdict.absent is None else verdict.absent.reason,
            "devices": [
                {
                    "ref": [one.ref.selector, one.ref.platform, one.ref.name],
                    "reason": None if one.usable else one.reason,
                    "device": None if one.device is None else dataclasses.asdict(one.device),
                }
                for one in verdict.devices
            ],
        }
        try:
            with replacing(self._path) as temporary:
                temporary.write_text(json.dumps(content), encoding="utf-8")
            self._remove_old(now_s)
        except OSError as error:
            _logger.info("a trial verdict is not remembered: %s", error)

    def _remove_old(self, now_s: float) -> None:
        for path in self._path.parent.iterdir():
            if now_s - path.stat().st_mtime > _AFTER_ANSWER_S:
                path.unlink(missing_ok=True)

    def _verdict(self, content: dict[str, Any]) -> RuntimeVerdict:
        tried = time.strftime("%Y-%m-%d %H:%M", time.localtime(content["tried_at_s"]))
        note = f" (tried on {tried}; `llmperf doctor --again` tries once more)"
        devices = tuple(self._device(entry, note) for entry in content["devices"])
        absent = None
        if content["absent"] is not None:
            absent = AbsentSource(
                source=self._candidate.source,
                reason=content["absent"] + note,
                mend=TO_MEND,
            )
        return RuntimeVerdict(devices=devices, absent=absent, ended_itself=content["ended_itself"])

    def _device(self, entry: dict[str, Any], note: str) -> TriedDevice:
        selector, platform, name = entry["ref"]
        environment = dict(self._candidate.environment)
        ref = DeviceRef(selector=selector, platform=platform, name=name, environment=environment)
        if entry["reason"] is not None:
            entry = {**entry, "reason": entry["reason"] + note}
        return verdict_of(self._candidate, ref, entry)


def _driver_files(candidate: Candidate) -> list[list[str | int]]:
    """Return path, size in bytes and change time in ns of the ICD file and of its libraries."""
    icd = Path(candidate.environment["OCL_ICD_VENDORS"])
    paths = [icd]
    if icd.suffix == ".icd":
        with contextlib.suppress(OSError):
            name = icd.read_text(encoding="utf-8", errors="replace").strip()
            folders = [icd.parent, *map(Path, _LIBRARY_FOLDERS)]
            paths += [folder / name for folder in folders] if name else []
    found: list[list[str | int]] = []
    for path in dict.fromkeys(paths):
        with contextlib.suppress(OSError, ValueError):  # ValueError: the name holds a NUL
            status = path.stat()
            found.append([str(path), status.st_size, status.st_mtime_ns])
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
