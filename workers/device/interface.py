"""What a device must be able to do, so that loop, timing rule and checks never name a vendor.

Owns the protocols and the one exception by which a door reports a failure. A *session* lives in a run child
and owns the device context; a *compiler* lives in a compile child.
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
    """A door's report that the world went wrong; caught where an ``Outcome`` is made.

    ``sticky`` failures leave the context unusable: the child must go.
    """

    def __init__(self, failure: Failure, *, sticky: bool = False) -> None:
        super().__init__(f"{failure.code}: {failure.detail}")
        self.failure = failure
        self.sticky = sticky


PADDING_BYTES = 2**28
"""Bytes of zeros behind a buffer of a kernel whose access ranges are not known
(``LoadedKernel.reserve``): an access to unmapped memory destroys a GPU's context."""

FRONT_PADDING_BYTES = 2**21
"""Bytes of zeros before such a buffer: a stencil's first row reads the row above. One page of
NVIDIA's driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRef:
    """How to reach one device from a fresh process.

    ``selector`` is what ``--device`` takes (``pocl``, ``cuda:0``, ``replay:FILE``); ``environment`` must be in
    place before the process loads OpenCL (ICD folder, library path).
    """

    selector: str
    platform: str
    name: str
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A compiled program: the device's binary (empty where a backend keeps none) and how it was made."""

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
        """Whether the kernel reads a buffer that it also writes: launch 7 must see launch 1's input."""
        ...

    def refill(self, *, seed: int, everything: bool = False) -> None:
        """Restore the written buffers (all of them with ``everything``) to the inputs of ``seed``; untimed."""
        ...

    def launch(self, count: int = 1) -> float:
        """Launch ``count`` times back to back and return the mean device time of one launch in ns."""
        ...

    def num_at_once(self, estimate_ns: float) -> int:
        """Return how many launches of about this time ``launch_each`` may be asked for; 1 where it gains nothing."""
        ...

    def launch_each(self, count: int, *, refill_seed: int) -> list[float]:
        """Launch ``count`` times without waiting in between and return the device time of each, ns.

        Where ``needs_refill``, each after a refill. Launches that did not find the device idle are left out: queued
        behind other work they would look shorter.
        """
        ...

    def flush_cache(self) -> None:
        """Write twice the last-level cache so that the next launch starts cold."""
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
        """Allocate each buffer as large as the largest of these configs needs it, where that fits all together; launch nothing.

        Args:
            configs: those to come.
            with_padding: the access ranges of the kernel are not known. A GPU, on which reaching too far costs the context, then
                puts zeroed padding around each global buffer.
            ahead: another process has the device: what needs much of its memory is left for a second call.

        Raises:
            DeviceFailure: The context is lost; nothing else is its business.
        """
        ...

    def prepare(self, config: LaunchConfig) -> Launcher:
        """Put the arguments of ``config`` in place, every buffer filled with the inputs of its seed.

        The launcher of an earlier config must not be used any more. Raises DeviceFailure (launch_error,
        out_of_memory).
        """
        ...

    def release(self) -> None:
        """Give the kernel's buffers back: freed, or kept for the next kernel."""
        ...


class Session(Protocol):
    """An open device context; one owner, one run child."""

    @property
    def device(self) -> Device:
        """The device's record; peaks are None until ``measure_peaks``."""
        ...

    def measure_peaks(self) -> Device:
        """Return the device's record with its measured peaks; ``device`` returns it from then on.

        Our own kernels measure bandwidths (GB/s), arithmetic peaks (GFLOP/s), the timer's step (ns)
        and the launch floor (ns). Raises DeviceFailure.
        """
        ...

    def load(self, kernel: Kernel, program: Program) -> LoadedKernel:
        """Load a compiled kernel. Raises DeviceFailure."""
        ...

    def spin_up(self, milliseconds: float) -> None:
        """Keep the device busy so that clocks settle."""
        ...

    def sentinel_ns(self) -> float:
        """Time the sentinel kernel: median of its launches, ns."""
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
    """One launch of an instrumented kernel: NDRange, scalar values by position, and what buffers hold.

    ``limits`` overrides, by position, the limit of the values in an integer buffer (else
    ``default_limit``); ``spread`` scales the floating-point contents, which are in [0, spread). A negative limit
    makes the values negative, as far as their type can be. ``rules``, by position, makes them as plans do: ``FLAGS`` and
    ``SIGNED`` of floating-point contents.
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
    """Turns of all loops after which they are cut off, barriers aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRange:
    """Which bytes of one buffer one launch accessed, counted from its start; 0 and 0 if it was not touched.

    ``start_bytes`` is negative for an index below 0. ``site`` is the access (``Instrumented.sites``) that
    reached furthest.
    """

    position: int
    start_bytes: int
    end_bytes: int
    site: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRecord:
    """What one probe launch saw.

    ``turns``: of all loops of all work-items. ``trace``: a hash over all indices of all work-items, the same in any
    order. ``exceeded``: a loop was cut off. ``overflow``: an array of fixed
    size was indexed beyond its end.
    """

    access_ranges: tuple[AccessRange, ...]
    turns: int
    trace: int
    exceeded: bool
    overflow: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One access in a source: its line there, and its text after macros were expanded."""

    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Instrumented:
    """An instrumented kernel.

    ``source`` has one kernel, ``lp_instrumented``, with the arguments of the original and after them the table
    (``__global ulong *``) that it records into and where in it. ``expanded`` is the text it was made from.
    ``positions`` are the pointer arguments in the order of the table's rows. ``has_arrays``: it indexes variables of
    fixed size, so that a launch can go beyond their end. ``has_uncut_loops``: work-items meet at a barrier in a loop,
    and such loops are not cut off, however long contents make them.
    """

    source: str
    expanded: str
    sites: tuple[Site, ...]
    positions: tuple[int, ...]
    has_arrays: bool
    has_uncut_loops: bool


class Prober(Protocol):
    """Runs instrumented kernels in small launches; in a process that may be killed."""

    @property
    def device(self) -> Device:
        """The device's record: its limits are those of probe launches."""
        ...

    def run(
        self, kernel: Kernel, instrumented: Instrumented, launches: Sequence[ProbeLaunch]
    ) -> tuple[ProbeRecord | None, ...]:
        """Build the instrumented source (the last one built is kept) and run ``launches`` in order.

        None for a launch whose work-group is larger than the device grants the instrumented kernel.

        Raises DeviceFailure: it does not build, or a launch failed.
        """
        ...

    def close(self) -> None:
        """Release the context."""
        ...
