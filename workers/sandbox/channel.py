"""Framed messages between the collector and its children, over a socket of their own.

Owns the frame (4 bytes of length, then JSON) and the messages. A child's stdout and stderr never carry a
verdict: what a kernel prints cannot be taken for a result.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pydantic

from llmperf_common.analysis import Analysis
from llmperf_common.builds import KernelResources
from llmperf_common.failures import Failure
from llmperf_common.features.accesses import AccessTrace
from llmperf_common.features.work import Work
from llmperf_common.records import Device, Kernel, LaunchConfig, Timing
from workers.config import TimingConfig
from workers.device.interface import ProbeRecord

_HEADER = struct.Struct(">I")
_MAX_FRAME_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileJob:
    """To a compile child: build ``kernel`` and leave its binary at ``binary_path``.

    Then find out what its machine code needs, and end if that takes longer than ``resources_limit_s``; None: do not.
    """

    kernel: Kernel
    binary_path: str
    resources_limit_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyseJob:
    """To an analysis child: find out what ``kernel`` touches.

    ``without_barriers``: by a copy that has none. ``choose``: and choose inputs with which it works, where the child's
    device is a CPU, in at most ``choice_cpu_s`` of processor time, after which the child is ended by SIGXCPU.
    """

    kernel: Kernel
    without_barriers: bool = False
    choose: bool = False
    choice_cpu_s: float = 4.0
    analyse: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysed:
    """From an analysis child: what was found out, or why nothing was.

    ``no_device``: the child could not open its device; it ends. Without ``is_last`` another follows, with the inputs that
    were chosen.
    """

    analysis: Analysis
    no_device: bool = False
    is_last: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessCheckJob:
    """To an analysis child: find the access ranges of ``configs`` of ``kernel``, the small ones first.

    ``without_barriers``: by a copy that has none.
    """

    kernel: Kernel
    configs: tuple[LaunchConfig, ...]
    without_barriers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRanges:
    """From an analysis child: the access records of the job's first configs, None for one that could not be found.

    One after each config, since the next may never end; the one that ``is_last`` says no more will come.
    """

    records: tuple[ProbeRecord | None, ...]
    is_last: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CountJob:
    """To a counting child: count what ``configs`` of ``kernel`` execute.

    ``without_barriers``: its work-items run one after another in any case. ``cpu_s``: of processor time, after which
    the child is ended by SIGXCPU.
    """

    kernel: Kernel
    configs: tuple[LaunchConfig, ...]
    cpu_s: float
    without_barriers: bool = False
    count: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """From a counting child: what the first of the job's configs execute, or why that is not known.

    One after each config, since the next may never end; the one that ``is_last`` has them all.
    """

    outcomes: tuple[Work | Failure, ...]
    is_last: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """To a tracing child: see what work-items of ``config`` access; ``cpu_s`` and ``without_barriers`` as in ``CountJob``."""

    kernel: Kernel
    config: LaunchConfig
    cpu_s: float
    without_barriers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """From a tracing child: what was seen, or why nothing was."""

    outcome: AccessTrace | Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerReady:
    """From a compile, analysis, counting or tracing child: from here on, time is the job's and no longer the start-up's.

    From a compile child also when a build is done and only its resources are not yet known.
    """

    compiler_ready: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """From a compile child: the program is at the job's ``binary_path``.

    ``no_resources`` says why there are none where they were asked for.
    """

    options: str
    log: str
    seconds: float
    resources: KernelResources | None = None
    no_resources: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileFailed:
    """From a compile child: the compiler said no."""

    failure: Failure
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeaksJob:
    """To a run child: measure the device's peaks."""

    measure_peaks: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob:
    """To a run child: load the program, wait for the device, time the open configs, reporting each.

    ``configs`` are all of the task, ``open_indices`` those to time; ``launch_ns`` says of the others how long they
    took, where that is known (``run_order.HUNG_NS``: they hung). ``check_indices`` get payload checks; ``device`` carries the measured peaks.
    ``lock_path`` is the lock file of the device, None where no other lane waits for it. No config begins once the
    others have been charged ``budget_s`` (``task_trace.share_charged_s``; None: no limit). ``has_padding``: buffers may be touched behind their ends (``LoadedKernel.reserve``).
    ``processor``: the host's, from which launches are issued; None: any.
    """

    kernel: Kernel
    device: Device
    binary_path: str
    options: str
    configs: tuple[LaunchConfig, ...]
    open_indices: tuple[int, ...]
    launch_ns: tuple[float | None, ...]
    check_indices: tuple[int, ...]
    timing: TimingConfig
    sentinel: bool
    lock_path: str | None
    budget_s: float | None
    has_padding: bool
    processor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildReady:
    """From a run child: the context is open; also the answer to a ``PeaksJob``."""

    device: Device


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLoaded:
    """From a run child: the kernel is loaded; from here to ``LockTaken`` it waits for the device."""

    loaded_s: float = 0.0
    """Monotonic, as all times of messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockTaken:
    """From a run child: it has the device to itself, and makes sure that it is sound and awake."""

    lock_taken: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldBegan:
    """From a run child: from here on, the device's time is the task's.

    ``sentinel_ns``: the sentinel kernel's time, taken where the process that had the device before has died.
    """

    began_s: float = 0.0
    sentinel_ns: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigStarted:
    """From a run child: from here on, a death is this config's, unless another process has killed it."""

    started_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFinished:
    """From a run child: the outcome of one config. With ``sticky`` the child is of no further use.

    ``launch_ns``: how long a launch took, also where that was too long. ``began_s`` and ``ended_s``: monotonic, the
    same clock in all processes; None where it was not launched.
    """

    finished_index: int
    outcome: Timing | Failure
    sticky: bool
    launch_ns: float | None = None
    began_s: float | None = None
    ended_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFailed:
    """From a run child: the compiled kernel could not be loaded, so no config can run."""

    load_failure: Failure
    sticky: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDone:
    """From a run child: all configs were reported, the buffers are released and the device is free."""

    sentinel_ns: float | None
    ended_s: float = 0.0
    buffers_s: float = 0.0
    """Seconds of holding the device lock, spent on having buffers before the first config and giving them back after the last."""
    kept_waiting_s: float = 0.0
    """Seconds of holding the device lock, ready to run without a processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildCrashed:
    """From any child: an exception of LLMPerf; the child then exits with 1."""

    traceback: str
    summary: str
    """The exception in one line."""


ToChild = CompileJob | AnalyseJob | AccessCheckJob | CountJob | TraceJob | PeaksJob | RunJob
FromChild = (
    CompilerReady
    | Analysed
    | AccessRanges
    | Counted
    | Traced
    | Compiled
    | CompileFailed
    | ChildReady
    | RunLoaded
    | LockTaken
    | HoldBegan
    | ConfigStarted
    | ConfigFinished
    | LoadFailed
    | RunDone
    | ChildCrashed
)

_MESSAGES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        CompileJob,
        AnalyseJob,
        Analysed,
        AccessCheckJob,
        AccessRanges,
        CountJob,
        Counted,
        TraceJob,
        Traced,
        PeaksJob,
        RunJob,
        CompilerReady,
        Compiled,
        CompileFailed,
        ChildReady,
        RunLoaded,
        LockTaken,
        HoldBegan,
        ConfigStarted,
        ConfigFinished,
        LoadFailed,
        RunDone,
        ChildCrashed,
    )
}
_ADAPTERS: dict[str, pydantic.TypeAdapter[ToChild | FromChild]] = {}


class ChannelClosedError(Exception):
    """The other side is gone."""


class UnreadableMessageError(ChannelClosedError):
    """The other side is there and sends nonsense: a kernel that writes out of bounds can damage the child that reports on it."""


class Channel:
    """One end of a socket pair; frames in, frames out."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._received = bytearray()

    def send(self, *messages: ToChild | FromChild) -> None:
        """Send messages whole, in one piece: a system call costs as much as a short launch. Raises ChannelClosedError."""
        data = bytearray()
        for message in messages:
            kind = type(message).__name__
            body = kind.encode() + b"\n" + _adapter(kind).dump_json(message)
            data += _HEADER.pack(len(body)) + body
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise ChannelClosedError(str(error)) from error

    def receive(self) -> ToChild | FromChild:
        """Wait for the next message. Raises ChannelClosedError at the end of the stream."""
        while True:
            message = self._next_frame()
            if message is not None:
                return message
            self._read_more()

    def receive_available(self) -> Iterator[ToChild | FromChild]:
        """Yield the messages that have arrived, after one read; call it when the socket is readable.

        Raises:
            ChannelClosedError: The stream has ended and every whole frame was yielded.
        """
        closed = False
        try:
            self._read_more()
        except ChannelClosedError:
            closed = True
        while (message := self._next_frame()) is not None:
            yield message
        if closed:
            raise ChannelClosedError("end of stream")

    def _read_more(self) -> None:
        try:
            data = self.socket.recv(1 << 20)
        except OSError as error:
            raise ChannelClosedError(str(error)) from error
        if not data:
            raise ChannelClosedError("end of stream")
        self._received += data

    def _next_frame(self) -> ToChild | FromChild | None:
        if len(self._received) < _HEADER.size:
            return None
        (length,) = _HEADER.unpack_from(self._received)
        if length > _MAX_FRAME_BYTES:
            raise UnreadableMessageError(f"sent an unreadable message (of {length} bytes)")
        if len(self._received) < _HEADER.size + length:
            return None
        body = bytes(self._received[_HEADER.size : _HEADER.size + length])
        del self._received[: _HEADER.size + length]
        return _parse(body)


def _parse(body: bytes) -> ToChild | FromChild:
    kind, _, text = body.partition(b"\n")
    try:
        return _adapter(kind.decode()).validate_json(text)
    except (KeyError, UnicodeDecodeError, pydantic.ValidationError) as error:
        raise UnreadableMessageError(f"sent an unreadable message ({error})") from error


def _adapter(kind: str) -> pydantic.TypeAdapter[ToChild | FromChild]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = pydantic.TypeAdapter(_MESSAGES[kind])
    return _ADAPTERS[kind]
