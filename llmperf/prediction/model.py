"""A trained model in memory, which predicts one launch or many launches of one kernel.

Loading takes 0.5 s, reading a source 0.25 s, probing a new kernel a few seconds. A second
prediction of the same source takes milliseconds.
"""

from __future__ import annotations

import itertools
import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from llmperf.cpu_step import CpuStep
from llmperf.prediction.analysing import Analyst, Known
from llmperf.prediction.analysis_cache import AnalysisCache
from llmperf.prediction.counting import WorkCounter
from llmperf.prediction.filling import planned_filler
from llmperf.prediction.record import Prediction
from llmperf.prediction.sources import SourceReader
from llmperf_common.files.visible import shown_value
from llmperf_common.records import Kernel
from trainer.data.dataset import TrainingData, load_data
from trainer.errors import BadInput
from trainer.prediction.arguments import Value, read_arguments
from trainer.prediction.calibrate import factor_of
from trainer.prediction.predict import predict_many, tell_checked
from trainer.prediction.request import PredictRequest, check_sizes, device_of, named_errors
from trainer.run.folder import known_runs, resolve_run
from trainer.run.harness import harness_notes
from trainer.run.kernel_factors import KernelFactors
from trainer.run.loaded import LoadedRun, load_run
from trainer.run.shipped import DEFAULT_MODEL, shipped_run
from workers.corpus.one_source import SourceKernel

Size = int | Sequence[int]
"""Numbers of work-items: one number for one dimension, or one number per dimension."""

_MOST_DIMS = 3
_MAX_SIZE = 10**400
"""Numbers from this one on are refused at once: a message cannot show so many digits. The checks of
smaller numbers come later, with their own messages."""
_NO_LISTS = (Set, Mapping, str, bytes, bytearray)
"""Iterable types that are refused as a size: a set has no order, and bytes hold characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch to predict.

    Attributes:
        global_size: work-items in each of 1 to 3 dimensions; a number for one dimension.
        local_size: work-items of a work-group in each dimension; a number for one dimension.
        args: arguments by name: the number of elements of a buffer, the value of a scalar. Missing
            arguments get the values that ``collect`` would use.
        sweep: whether to predict every legal local size, too.
        name: name of the launch in messages, such as ``line 7``; empty: its number.
    """

    global_size: Size
    local_size: Size
    args: Mapping[str, Value] | None = None
    sweep: bool = False
    name: str = ""

    @classmethod
    def of(cls, values: Launch | Mapping[str, Any]) -> Launch:
        """Return a launch from a mapping of its fields.

        Raises:
            BadInput: A key is missing or unknown.
        """
        if isinstance(values, Launch):
            return values
        try:
            return cls(**values)
        except TypeError:
            found = ", ".join(map(str, values)) if isinstance(values, Mapping) else repr(values)
            raise BadInput(
                f"a launch has global_size, local_size and optionally args and sweep; found {found}"
            ) from None


class Model:
    """A trained run, loaded once. Make it with ``llmperf.load_model``.

    Reads each source and analyses each kernel once. Several threads must not use a model at the
    same time.
    """

    def __init__(
        self,
        run: LoadedRun,
        analyst: Analyst,
        measured: TrainingData | None = None,
        *,
        notes: Sequence[str] = (),
        work: CpuStep = CpuStep.AUTO,
    ) -> None:
        """Keep the model's parts.

        Args:
            run: the trained run.
            analyst: analyses the memory accesses of new kernels.
            measured: measured launches of the kernels to predict.
            notes: warnings to add to every prediction.
            work: whether the work of launches is counted, if the model uses it.
        """
        self._run = run
        self._notes = tuple(notes)
        self._analyst = analyst
        self._counter = WorkCounter(analyst=analyst) if work is CpuStep.AUTO else None
        self._measured = measured
        self._factors: dict[tuple[str, str], KernelFactors] = {}
        self._reader = SourceReader()
        self._trained = frozenset(run.kernels.column("kernel_id").unique().to_pylist())

    @classmethod
    def load(
        cls,
        model: str | Path | None = None,
        *,
        analyse: bool = True,
        cache: AnalysisCache | None = None,
        measured: str | Path | None = None,
        work: str = CpuStep.AUTO,
        progress: Callable[[str], object] = lambda _line: None,
    ) -> Self:
        """Load a run by its folder or name.

        Args:
            model: a run's folder or name; None: the only run in ``runs/``, or the model that comes
                with the package if there is no run.
            analyse: whether to probe new kernels on a CPU OpenCL device.
            cache: stores the results of probes.
            measured: a dataset with launches of the kernels to predict. These launches correct the
                predictions.
            work: ``auto`` counts the work of launches if the model uses the counts and ``analyse``
                is set; ``off`` does not count.
            progress: receives one line before each step that takes seconds.

        Raises:
            BadInput: The run does not exist or is damaged; or ``measured`` has no usable launch.
            StoreError: ``measured`` is not a dataset.
            ConfigError: ``work`` is neither ``auto`` nor ``off``.
        """
        step = CpuStep.parse(work, option="work", verb="count")
        folder, note = (resolve_run(model), "") if model is not None else _only_run()
        run = load_run(folder)
        analyst = Analyst(run.kernels, may_probe=analyse, cache=cache, progress=progress)
        launches, notes = None, [note] if note else []
        if measured is not None:
            progress(f"reading the measured launches in {measured}")
            launches = load_data(measured)
            notes += harness_notes(run.harness_version, launches.identity)
        return cls(
            run,
            analyst,
            launches,
            notes=notes,
            work=step if analyse else CpuStep.OFF,
        )

    @property
    def name(self) -> str:
        """The kind of the model, such as ``gbdt`` or ``log-linear``."""
        return self._run.name

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self._run.folder

    @property
    def device_classes(self) -> tuple[str, ...]:
        """The device classes that the model can predict, the allowed values of ``device``."""
        return tuple(sorted(self._run.devices))

    def __repr__(self) -> str:
        """Return the model's name, folder and device classes as text."""
        return f"Model({self.name} of {self.folder}, for {', '.join(self.device_classes)})"

    def predict(
        self,
        source: str | Path,
        *,
        global_size: Size,
        local_size: Size,
        kernel: str | None = None,
        device: str | None = None,
        args: Mapping[str, Value] | None = None,
        sweep: bool = False,
    ) -> Prediction:
        """Predict one launch.

        Args:
            source: an OpenCL C file, or its text.
            global_size: work-items in each of 1 to 3 dimensions; a number for one dimension.
            local_size: work-items of a work-group in each dimension; a number for one dimension.
            kernel: name of the kernel; optional if the source has one kernel.
            device: device class; optional if the model knows one class.
            args: arguments by name: the number of elements of a buffer, the value of a scalar.
            sweep: whether to predict every legal local size, too.

        Returns:
            The document of ``llmperf predict --json``; times in ns.

        Raises:
            BadInput: The source, kernel, size or argument cannot be used; the message says which.
            ConfigError: No device is given and the model knows several.
        """
        launch = Launch(global_size=global_size, local_size=local_size, args=args, sweep=sweep)
        found = self.predict_many(
            source, [launch], kernel=kernel, device=device, best_local_size=True
        )
        return found[0]

    def predict_many(
        self,
        source: str | Path,
        launches: Iterable[Launch | Mapping[str, Any]],
        *,
        kernel: str | None = None,
        device: str | None = None,
        best_local_size: bool = False,
    ) -> list[Prediction]:
        """Predict many launches of one kernel, in order, in one call of the model.

        The results equal those of ``predict``, except that ``local_size_best`` is empty unless
        ``best_local_size`` is set. (Comparing the local sizes of a launch takes about 25 more
        predictions.)

        Args:
            source: an OpenCL C file, or its text.
            launches: each a ``Launch``, or a mapping with its fields.
            kernel: name of the kernel; optional if the source has one kernel.
            device: device class; optional if the model knows one class.
            best_local_size: whether to compare legal local sizes of each launch and return the
                best.

        Raises:
            BadInput: The source or a launch cannot be used; the message says which and why.
            ConfigError: No device is given and the model knows several.
        """
        if isinstance(launches, str | Mapping) or not isinstance(launches, Iterable):
            raise BadInput(
                f"launches={shown_value(launches)}: give a list; for one launch use predict"
            )
        chosen = self._reader.kernel(source, kernel, self._trained)
        asked = [Launch.of(one) for one in launches]
        if not asked:
            return []
        question = self._question(chosen, device, best_local_size)
        requests = []
        told = time.monotonic()
        for number, launch in enumerate(asked, start=1):
            name = launch.name or (f"launch {number}" if len(asked) > 1 else "")
            with named_errors(name):
                requests.append(question(launch, name))
            told = tell_checked(self._analyst.progress, told, number, len(asked))
        said = [
            f"LLMPerf's parser does not know a name that the device's compiler may know: line {one}"
            for one in chosen.unknown
        ]
        records = predict_many(self._run_for(requests), requests, self._analyst.progress)
        return [
            Prediction({**one, "warnings": [*one["warnings"], *said, *self._notes]})
            for one in records
        ]

    def _run_for(self, requests: Sequence[PredictRequest]) -> LoadedRun:
        """Return the run, corrected by the kernel's factor if there are measured launches."""
        if self._measured is None or not requests:
            return self._run
        one = requests[0]
        assert one.kernel_id is not None, "_request sets it"
        assert one.source is not None, "_request sets it"
        device = device_of(self._run, one.device).device_class
        key = one.kernel_id, device
        if key not in self._factors:
            self._factors[key] = factor_of(
                self._run,
                self._measured,
                kernel_id=one.kernel_id,
                name=one.kernel,
                source=one.source,
                device=device,
            )
        return replace(self._run, factors=self._factors[key])

    def _question(
        self, chosen: SourceKernel, device: str | None, compare: bool
    ) -> Callable[[Launch, str], PredictRequest]:
        """Return a function that makes a request from a launch and its name, for one kernel."""
        kernel = chosen.kernel
        signature = kernel.signature
        assert signature is not None, "the reader refuses such kernels"
        record = device_of(self._run, device)
        known: Known | None = None

        def request(launch: Launch, name: str) -> PredictRequest:
            nonlocal known
            global_size = _sizes("global_size", launch.global_size)
            local_size = _sizes("local_size", launch.local_size)
            check_sizes(kernel.name, signature, global_size, local_size, record)
            given = read_arguments(signature, {} if launch.args is None else launch.args)
            if known is None:  # after the checks, because a probe takes seconds
                known = self._find_out(kernel)
            return PredictRequest(
                kernel=kernel.name,
                signature=signature,
                global_size=global_size,
                local_size=local_size,
                filler=planned_filler(kernel, record, given, known),
                device=device,
                sweep=launch.sweep,
                compare=compare,
                name=name,
                kernel_id=kernel.kernel_id,
                source=kernel.source,
                build_options=kernel.build_options,
                dense=chosen.dense,
                count=None if self._counter is None else self._counter.of(kernel),
            )

        return request

    def _find_out(self, kernel: Kernel) -> Known:
        assert kernel.signature is not None, "the reader refuses such kernels"
        # The analysis is needed even if every buffer is given, to warn of a buffer that is too
        # small.
        if any(one.kind.is_buffer for one in kernel.signature.arguments):
            return self._analyst.find_out(kernel)
        return Known(analysis=None, said="")


def _sizes(name: str, size: Any) -> tuple[int, ...]:
    is_list = isinstance(size, Iterable) and not isinstance(size, _NO_LISTS)
    try:
        sizes = tuple(itertools.islice(size, _MOST_DIMS + 1)) if is_list else (size,)
        found = tuple(operator.index(one) for one in sizes)
    except TypeError:
        sizes, found = (), ()
    if any(isinstance(one, bool) for one in sizes) or any(abs(one) >= _MAX_SIZE for one in found):
        found = ()
    if not found:
        raise BadInput(
            f"{name}={shown_value(size)}: give a whole number, or one for each dimension"
        )
    return found


def _only_run() -> tuple[Path, str]:
    """Return the run to use if none is named, and a warning about this choice."""
    runs = known_runs()
    if len(runs) == 1:
        return runs[0], ""
    if runs:
        there = ", ".join(map(str, runs))
        raise BadInput(
            f"--model is missing: name one of the runs {there}, or {DEFAULT_MODEL}, which comes "
            "with llmperf"
        )
    shipped = shipped_run()
    if shipped is None:
        raise BadInput("--model is missing and runs/ has no model: make one with `llmperf train`")
    return shipped, (
        f"no model is named and runs/ has none: using {DEFAULT_MODEL}, which comes with llmperf"
    )
