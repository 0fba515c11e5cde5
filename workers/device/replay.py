"""A device that answers from a file, to test scheduling, crash handling and storage without a GPU.

Owns the replay session and compiler. The file (``replay_file.py``) can make the device hang, fault,
die and report wrong times. Answers are a pure function of file, kernel and launch config.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from llmperf_common.analysis import Analysis
from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.files.plain_files import is_own_file, open_to_append
from llmperf_common.ids import content_id
from llmperf_common.records import Access, ArgumentKind, Device, Kernel, LaunchConfig
from llmperf_common.store.tables.foreign_analysis import check_positions
from workers.device.interface import DeviceFailure, DeviceRef, Program
from workers.device.replay_file import (
    ANALYSIS_ACTIONS,
    COMPILE_ACTIONS,
    Action,
    Behaviour,
    ReplayFile,
    read_replay_file,
)
from workers.device.selectors import REPLAY_PREFIX, replay_path

_DEATH_AFTER_RESULT_S = 0.02
_SENTINEL_WORK_ITEMS = 65_536


def replay_ref(selector: str) -> DeviceRef:
    """Return the reference of ``replay:FILE``, with an absolute path; ValueError on a bad file."""
    path = Path(replay_path(selector)).resolve()
    file = read_replay_file(path)
    device = file.device
    _check_storable(file)
    count = _sentinel_count(path)
    if file.sentinel_factors and is_own_file(count) is False:
        raise ValueError(f"{count} is a link or not a regular file: remove it")
    return DeviceRef(selector=f"{REPLAY_PREFIX}{path}", platform=device.platform, name=device.name)


def _check_storable(file: ReplayFile) -> None:
    """Raise ValueError if a dataset cannot hold an analysis of the file."""
    if not file.analyses:
        return
    from llmperf_common.store.tables.rows import check_storable  # noqa: PLC0415  (children: no Arrow)

    for recorded in file.analyses:
        try:
            check_storable([recorded.record()])
        except ValueError as error:
            raise ValueError(f"the analysis of {recorded.kernel!r}: {error}") from None


class _Script:
    """A replay file with its path. Tells which of its scripted behaviours happen at a call."""

    def __init__(self, ref: DeviceRef) -> None:
        self.path = Path(replay_path(ref.selector))
        self.file: ReplayFile = read_replay_file(self.path)

    def due(self, kernel: str, actions: frozenset[Action], index: int | None) -> list[Behaviour]:
        """Return the behaviours due now; those that happen ``once`` are then used up."""
        return [
            behaviour
            for number, behaviour in enumerate(self.file.behaviours)
            if behaviour.action in actions
            and behaviour.applies(kernel, index)
            and (not behaviour.once or self._is_first_time(number))
        ]

    def next_sentinel_factor(self) -> float:
        """Return the file's factor for the next reading of the sentinel.

        All processes take their factors from the same list, and each factor is used once. When all
        are used, the factor is 1.
        """
        factors = self.file.sentinel_factors
        if not factors:
            return 1.0
        with os.fdopen(open_to_append(_sentinel_count(self.path)), "ab") as count:
            count.write(b".")
            count.flush()
            number = count.tell()
        return factors[number - 1] if number <= len(factors) else 1.0

    def _is_first_time(self, number: int) -> bool:
        marker = self.path.with_name(f"{self.path.name}.behaviour-{number}.done")
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class ReplayCompiler:
    """Compiles at once, unless the file asks for another behaviour."""

    def __init__(self, ref: DeviceRef) -> None:
        """Read the file that ``ref`` names; ValueError if it is bad."""
        self._script = _Script(ref)

    def compile(self, kernel: Kernel) -> Program:
        """Return a program whose binary is the kernel's id. Raises DeviceFailure."""
        start_s = time.perf_counter()
        for behaviour in self._script.due(kernel.name, COMPILE_ACTIONS, None):
            if behaviour.action is Action.HANG_COMPILE:
                _hang()
            elif behaviour.action is Action.CRASH_COMPILE:
                _die()
            elif behaviour.action is Action.BUILD_ERROR:
                raise _failure(FailureCode.BUILD_ERROR, Stage.BUILD, "replay: error: scripted")
            else:
                time.sleep(behaviour.seconds)
        return Program(
            binary=kernel.kernel_id.encode(),
            options=kernel.build_options,
            log="",
            seconds=time.perf_counter() - start_s,
        )


class ReplayAnalyser:
    """Answers with recorded analyses, because a file cannot be probed."""

    def __init__(self, ref: DeviceRef) -> None:
        """Read the file that ``ref`` names; ValueError if it is bad."""
        self._script = _Script(ref)

    def analyse(self, kernel: Kernel) -> Analysis:
        """Return the recorded analysis of the kernel.

        Raises:
            DeviceFailure: The file has no analysis of this kernel, or it names arguments that the
                kernel does not have.
        """
        for behaviour in self._script.due(kernel.name, ANALYSIS_ACTIONS, None):
            if behaviour.action is Action.HANG_ANALYSIS:
                _hang()
            _die()
        for recorded in self._script.file.analyses:
            if recorded.kernel == kernel.name:
                return _fitting(recorded.record(), kernel)
        detail = "a replay device cannot be probed, and its file has no analysis of this kernel"
        raise _failure(FailureCode.UNSUPPORTED, Stage.PROBE, detail)


def _fitting(analysis: Analysis, kernel: Kernel) -> Analysis:
    """Return the analysis of a kernel; DeviceFailure if it names arguments that are not there."""
    try:
        check_positions(analysis, kernel.signature)
    except ValueError as error:
        detail = f"the replay file's analysis does not fit the kernel: {error}"
        raise _failure(FailureCode.UNSUPPORTED, Stage.PROBE, detail) from None
    return analysis


class ReplaySession:
    """The session of one replay file."""

    def __init__(self, ref: DeviceRef) -> None:
        """Read the file that ``ref`` names; ValueError if it is bad."""
        self._script = _Script(ref)

    @property
    def device(self) -> Device:
        """The device's record as the file gives it."""
        return self._script.file.device.record()

    def measure_peaks(self) -> Device:
        """Return the record with the file's peaks, which count as measured."""
        return self.device

    def load(self, kernel: Kernel, program: Program) -> ReplayLoadedKernel:
        """Load a kernel."""
        return ReplayLoadedKernel(self._script, kernel)

    def spin_up(self, milliseconds: float) -> None:
        """Sleep for this time, scaled by the file's ``speed``."""
        time.sleep(milliseconds / 1000 * self._script.file.speed)

    def sentinel_ns(self) -> float:
        """Return the model's time of a fixed launch, ns, multiplied by the file's next factor."""
        model = self._script.file.model
        time_ns = model.floor_ns + model.ns_per_work_item * _SENTINEL_WORK_ITEMS
        return time_ns * self._script.next_sentinel_factor()

    def close(self) -> None:
        """Do nothing: there is nothing to free."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class ReplayLoadedKernel:
    """A kernel that counts its configs, because a behaviour may begin at a certain config."""

    def __init__(self, script: _Script, kernel: Kernel) -> None:
        self._script = script
        self._kernel = kernel
        self._num_prepared = 0

    def reserve(
        self, configs: Sequence[LaunchConfig], *, with_padding: bool, ahead: bool = False
    ) -> None:
        """Do nothing: no memory is allocated."""

    def prepare(self, config: LaunchConfig) -> ReplayLauncher:
        """Count the config and return its launcher; raises DeviceFailure if the file says so."""
        index = self._num_prepared
        self._num_prepared += 1
        launch_actions = frozenset(Action) - COMPILE_ACTIONS - ANALYSIS_ACTIONS
        behaviours = self._script.due(self._kernel.name, launch_actions, index)
        for behaviour in behaviours:
            if behaviour.action is Action.OUT_OF_MEMORY:
                raise _failure(FailureCode.OUT_OF_MEMORY, Stage.LAUNCH, "replay: scripted")
            if behaviour.action is Action.LAUNCH_ERROR:
                raise _failure(FailureCode.LAUNCH_ERROR, Stage.LAUNCH, "replay: scripted")
        return ReplayLauncher(self._script.file, self._kernel, config, behaviours)

    def release(self) -> None:
        """Do nothing: there is nothing to free."""


class ReplayLauncher:
    """One launch config, with answers from the file."""

    def __init__(
        self,
        file: ReplayFile,
        kernel: Kernel,
        config: LaunchConfig,
        behaviours: Sequence[Behaviour],
    ) -> None:
        self._file = file
        self._kernel = kernel
        self._config = config
        self._behaviours = behaviours
        self._times_ns = self._endless_times_ns()
        self._is_cold = False
        self._death: threading.Timer | None = None
        self._input_seed = config.seed
        self._output: tuple[object, ...] = ("input", config.seed)

    @property
    def footprint_bytes(self) -> int:
        """Bytes of all global and constant buffers of this config."""
        signature = self._kernel.signature
        element_bytes = (
            {a.position: a.element_bytes for a in signature.arguments} if signature else {}
        )
        return sum(
            (given.elements or 0) * element_bytes.get(given.position, 0)
            for given in self._config.args
            if given.kind in (ArgumentKind.GLOBAL_BUFFER, ArgumentKind.CONSTANT_BUFFER)
        )

    @property
    def needs_refill(self) -> bool:
        """Whether the kernel reads a buffer that it writes."""
        return any(access is Access.READ_WRITE for access in self._accesses())

    def refill(self, *, seed: int, everything: bool = False) -> None:
        """Remember the seed of the inputs."""
        if everything:
            self._input_seed = seed
        self._output = ("input", seed)

    def launch(self, count: int = 1) -> float:
        """Apply the file's due behaviours; return the mean of the next ``count`` times, ns.

        A behaviour may hang or end the process, raise DeviceFailure or change the times.
        """
        for behaviour in self._behaviours:
            self._misbehave(behaviour)
        time_ns = sum(next(self._times_ns) for _ in range(count)) / count
        if self._is_cold:
            time_ns *= self._file.model.cold_factor
            self._is_cold = False
        time.sleep(time_ns * count * 1e-9 * self._file.speed)
        if any(access in (Access.WRITE, Access.READ_WRITE) for access in self._accesses()):
            self._output = ("written", self._input_seed)
        lies = [b.factor for b in self._behaviours if b.action is Action.LIE]
        for factor in lies:
            time_ns *= factor
        return time_ns

    def num_at_once(self, estimate_ns: float) -> int:
        """Return 1: several launches at once would save nothing, because answers take no time."""
        return 1

    def launch_each(self, count: int, *, refill_seed: int) -> list[float]:
        """Launch ``count`` times, one by one; return the times, ns."""
        times_ns = []
        for _ in range(count):
            if self.needs_refill:
                self.refill(seed=refill_seed)
            times_ns.append(self.launch())
        return times_ns

    def flush_cache(self) -> None:
        """Make the next launch a cold one, which takes ``cold_factor`` times longer."""
        self._is_cold = True

    def poison_output(self, byte: int) -> None:
        """Make the output a constant."""
        if Access.WRITE in self._accesses():
            self._output = ("poison", byte)

    def output_digest(self) -> str:
        """Return a hash over everything that decides the output."""
        key = [self._kernel.kernel_id, self._config.sample_id, *self._output]
        return content_id("replay_output", key)

    def _accesses(self) -> list[Access]:
        signature = self._kernel.signature
        return [argument.access for argument in signature.arguments] if signature else []

    def _misbehave(self, behaviour: Behaviour) -> None:
        if behaviour.action is Action.HANG:
            _hang()
        elif behaviour.action is Action.EXIT:
            _die()
        elif behaviour.action is Action.SLOW:
            time.sleep(behaviour.seconds)
        elif behaviour.action is Action.FAULT:
            raise _failure(FailureCode.DEVICE_FAULT, Stage.LAUNCH, "replay: scripted", sticky=True)
        elif behaviour.action is Action.EXIT_AFTER_RESULT:
            if self._death is not None:
                self._death.cancel()
            self._death = threading.Timer(_DEATH_AFTER_RESULT_S, _die)
            self._death.daemon = True
            self._death.start()

    def _endless_times_ns(self) -> Iterator[float]:
        config, file = self._config, self._file
        for timing in file.timings:
            if (timing.kernel, timing.global_size, timing.local_size) == (
                self._kernel.name, config.global_size, config.local_size,
            ):  # fmt: skip
                while True:
                    yield from timing.time_ns
        num_items = 1
        for total in config.global_size:
            num_items *= total
        mean_ns = file.model.floor_ns + file.model.ns_per_work_item * num_items
        key = [file.seed, self._kernel.kernel_id, config.sample_id]
        noise = random.Random(content_id("replay_noise", key))  # noqa: S311  (no secret)
        while True:
            yield mean_ns * (1 + file.model.noise * noise.uniform(-1, 1))


def _sentinel_count(path: Path) -> Path:
    """Return the file that counts the sentinel's readings, one byte for each."""
    return path.with_name(f"{path.name}.sentinels")


def _hang() -> None:
    while True:
        time.sleep(3600)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(3600)


def _failure(
    code: FailureCode, stage: Stage, detail: str, *, sticky: bool = False
) -> DeviceFailure:
    return DeviceFailure(Failure(code=code, stage=stage, detail=detail), sticky=sticky)
