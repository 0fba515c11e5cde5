"""The interface of a device, so that the loop, the timing rule and the checks name no vendor.

Owns the protocols, and the one exception by which a device reports a failure. A *session* belongs
to a run child and owns the device context; a *compiler* belongs to a compile child.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from llmperf_common.analysis import ContentsRule
from llmperf_common.failures import Failure
from llmperf_common.records import Device, Kernel, LaunchConfig


class DeviceFailure(Exception):  # noqa: N818  (it carries a Failure, it is not a bug)
    """A failure of the kernel or the device, not of LLMPerf; caught where an ``Outcome`` is made.

    A ``sticky`` failure leaves the context unusable: the child must end.
    """

    def __init__(self, failure: Failure, *, sticky: bool = False) -> None:
        super().__init__(f"{failure.code}: {failure.detail}")
        self.failure = failure
        self.sticky = sticky


PADDING_BYTES = 2**28
"""Bytes of zeros behind each buffer of a kernel whose access ranges are not known
(``LoadedKernel.reserve``), because an access to unmapped memory destroys a GPU's context."""

FRONT_PADDING_BYTES = 2**21
"""Bytes of zeros before such a buffer, because a stencil's first row reads the row above it. This
is one page of NVIDIA's driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRef:
    """How to open one device from a fresh process.

    ``selector`` is a value of ``--device`` (``pocl``, ``cuda:0``, ``replay:FILE``). ``environment``
    must be set before the process loads OpenCL (ICD folder, library path).
    """

    selector: str
    platform: str
    name: str
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A compiled program: the device's binary (empty if a backend has none), options and log."""

    binary: bytes
    options: str
    log: str
    seconds: float


class Launcher(Protocol):
    """One kernel with one launch config's arguments in place on the device."""

    @property
    def footprint_bytes(self) -> int:
        """Bytes of all global and constant buffers of this config."""
        ...

    @property
    def needs_refill(self) -> bool:
        """Whether the kernel reads a buffer that it writes, so each launch needs fresh input."""
        ...

    def refill(self, *, seed: int, everything: bool = False) -> None:
        """Restore the written buffers (``everything``: all) to the inputs of ``seed``; untimed."""
        ...

    def launch(self, count: int = 1) -> float:
        """Launch ``count`` times back to back; return the mean device time of one launch, ns."""
        ...

    def num_at_once(self, estimate_ns: float) -> int:
        """Return how many launches of this length ``launch_each`` should get; 1 if that is best."""
        ...

    def launch_each(self, count: int, *, refill_seed: int) -> list[float]:
        """Launch ``count`` times without waiting in between; return the device time of each, ns.

        If ``needs_refill``, each launch follows a refill. Launches that did not find the device
        idle are left out, because the event time of a launch that is queued behind other work is
        shorter.
        """
        ...

    def flush_cache(self) -> None:
        """Write twice the size of the last-level cache, so that the next launch starts cold."""
        ...

    def poison_output(self, byte: int) -> None:
        """Fill the buffers that the kernel only writes with ``byte``."""
        ...

    def output_digest(self) -> str:
        """Return a hash over the contents of all buffers that the kernel may write."""
        ...


class LoadedKernel(Protocol):
    """A kernel ready to be launched, with the buffers of its task."""

    def reserve(
        self,
        configs: Sequence[LaunchConfig],
        *,
        with_padding: bool,
        ahead: bool = False,
    ) -> None:
        """Allocate each buffer in the size that the largest config needs, if all buffers fit.

        Launches nothing.

        Args:
            configs: the configs to come.
            with_padding: whether to put padding around each global buffer on a GPU, where an access
                outside of buffers destroys the context. True if the access ranges are not known.
            ahead: whether another process holds the device. If so, large buffers are left to a
                second call.

        Raises:
            DeviceFailure: The context is lost. ``prepare`` reports any other error.
        """
        ...

    def prepare(self, config: LaunchConfig) -> Launcher:
        """Set the arguments of ``config``, and fill every buffer with the inputs of its seed.

        Launchers of earlier configs become invalid.

        Raises:
            DeviceFailure: ``launch_error`` or ``out_of_memory``.
        """
        ...

    def release(self) -> None:
        """Release the kernel's buffers: free them, or keep them for the next kernel."""
        ...


class Session(Protocol):
    """An open device context, owned by one run child."""

    @property
    def device(self) -> Device:
        """The device's record; its peaks are None before ``measure_peaks``."""
        ...

    def measure_peaks(self) -> Device:
        """Return the device's record with measured peaks; ``device`` then has these peaks, too.

        LLMPerf's own kernels measure bandwidths (GB/s), arithmetic peaks (GFLOP/s), the timer's
        step (ns) and the launch floor (ns). Raises DeviceFailure.
        """
        ...

    def load(self, kernel: Kernel, program: Program) -> LoadedKernel:
        """Load a compiled kernel. Raises DeviceFailure."""
        ...

    def spin_up(self, milliseconds: float) -> None:
        """Keep the device busy for this time, so that its clocks settle."""
        ...

    def sentinel_ns(self) -> float:
        """Return the median time of the sentinel kernel's launches, ns."""
        ...

    def close(self) -> None:
        """Release the context."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Compiler(Protocol):
    """Compiles for one device, in a process that may be killed."""

    def compile(self, kernel: Kernel) -> Program:
        """Build ``kernel`` from source. Raises DeviceFailure with the compiler's log."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeLaunch:
    """One launch of an instrumented kernel: NDRange, scalar values by position, buffer contents.

    ``limits``: by position, the limit of an integer buffer's values; ``default_limit`` is the limit
    of all other integer buffers. A negative limit gives negative values, if the type has them.
    ``spread``: floating-point contents are in [0, spread). ``rules``: by position, the content rule
    of plans that makes a buffer's contents (``FLAGS``, or ``SIGNED`` for floating-point numbers).
    """

    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    scalars: Mapping[int, int | float]
    seed: int = 0
    default_limit: int = 16
    limits: Mapping[int, int] = field(default_factory=dict)
    spread: float = 1.0
    rules: Mapping[int, ContentsRule] = field(default_factory=dict)
    max_turns: int = 2**18
    """Iterations of all loops together, after which loops without a barrier are cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRange:
    """The range of one buffer that one launch accessed, in bytes from the buffer's start.

    Both ends are 0 if there was no access. ``start_bytes`` is negative for an index below 0.
    ``site``: the access (in ``Instrumented.sites``) that reached furthest.
    """

    position: int
    start_bytes: int
    end_bytes: int
    site: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRecord:
    """What one probe launch recorded.

    ``turns``: iterations of all loops of all work-items. ``trace``: a hash of all indices of all
    work-items, independent of their order. ``exceeded``: a loop was cut off. ``overflow``: an array
    of fixed size was indexed beyond its end.
    """

    access_ranges: tuple[AccessRange, ...]
    turns: int
    trace: int
    exceeded: bool
    overflow: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One access in a source: its line, and its text after macro expansion."""

    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Instrumented:
    """An instrumented kernel.

    ``source`` has one kernel, ``lp_instrumented``. Its arguments are those of the original, then
    the table (``__global ulong *``) that it writes to, then the place in the table. ``expanded``:
    the text from which ``source`` was made. ``positions``: the pointer arguments, in the order of
    the table's rows. ``has_arrays``: the kernel indexes variables of fixed size, so a launch can
    exceed them. ``has_uncut_loops``: a loop contains a barrier, so it is never cut off, however
    long it runs. ``lacks_barriers``: the kernel's barriers are left out, because a CPU device would
    take very long to compile them.
    """

    source: str
    expanded: str
    sites: tuple[Site, ...]
    positions: tuple[int, ...]
    has_arrays: bool
    has_uncut_loops: bool
    lacks_barriers: bool = False


class Prober(Protocol):
    """Runs small launches of instrumented kernels, in a process that may be killed."""

    @property
    def device(self) -> Device:
        """The device's record; probe launches must respect its limits."""
        ...

    def run(
        self, kernel: Kernel, instrumented: Instrumented, launches: Sequence[ProbeLaunch]
    ) -> tuple[ProbeRecord | None, ...]:
        """Build the instrumented source and run ``launches`` in order; keep the last build.

        The record is None for a launch whose work-group is larger than the kernel allows.

        Raises:
            DeviceFailure: The source does not build, or a launch failed.
        """
        ...

    def close(self) -> None:
        """Release the context."""
        ...
