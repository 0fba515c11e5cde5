"""Speed of predicting many launches of one kernel together and one by one, and whether both agree.

``python -m benchmarks.models.predict_many RUN KERNEL.cl [--kernel NAME] [--launches 1000] [--alone
50] [--rounds 3] [--threads N] [--sweeps] [--seed 0] [--work auto|off] [--out FILE.csv]``

One process loads the model once and warms up both ways. It predicts on the GPU if there is one,
else on N threads of the CPU. All launches differ: their global sizes are drawn log-uniformly, their
local sizes vary, and the planner chooses their arguments. *Together* is one call of
``predict_many`` with all launches; the median of the rounds is reported. *One by one* is a call
with one launch, for ``--alone`` evenly spread launches in each round; the median launch is
reported. Neither way compares local sizes unless ``--sweeps`` is given (``best_local_size=True``,
as in ``predict``). All times are wall times and include everything except loading the model and
reading the source.

The program writes a line for each round, with the largest difference of log2(time) between the two
ways. It prints the same and this process's CPU time, which shows whether the machine was busy with
other work.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from llmperf.prediction.model import Launch, Model
from llmperf.prediction.record import Prediction
from llmperf.prediction.sources import SourceReader

_LOCAL_SIZES = {
    1: ((32,), (64,), (128,), (256,)),
    2: ((8, 8), (16, 8), (16, 16), (32, 4)),
    3: ((4, 4, 4), (8, 8, 1), (8, 4, 2), (16, 2, 2)),
}
_GROUPS = (1, 2**14)
"""Minimum and maximum number of work-groups of a launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The measurements of one round.

    Attributes:
        launches: number of launches predicted together.
        together_s: wall seconds of predicting them together.
        together_cpu_s: CPU seconds of this process for predicting them together.
        alone_ms: median wall milliseconds of a launch predicted one by one.
        alone_cpu_ms: mean CPU milliseconds of a launch predicted one by one.
        speed_up: ratio of the wall times.
        cpu_speed_up: ratio of the CPU times.
        most_log2: largest difference of log2(time) between the two ways.
    """

    launches: int
    together_s: float
    together_cpu_s: float
    alone_ms: float
    alone_cpu_ms: float
    speed_up: float
    cpu_speed_up: float
    most_log2: float


def drawn_launches(
    num: int, seed: int, dims: int, required: tuple[int, ...] | None
) -> list[Launch]:
    """Return different launches of a kernel; a ``required`` local size is the only one."""
    rng = np.random.default_rng(seed)
    local_sizes = _LOCAL_SIZES[dims] if required is None else (required[:dims],)
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], Launch] = {}
    low, high = (math.log2(number) / dims for number in _GROUPS)
    while len(found) < num:
        local = local_sizes[int(rng.integers(len(local_sizes)))]
        groups = np.maximum(1, np.round(2 ** rng.uniform(low, high, dims))).astype(int).tolist()
        total = tuple(size * count for size, count in zip(local, groups, strict=True))
        found[total, local] = Launch(global_size=total, local_size=local)
    return list(found.values())


def measure(ask: Asking, launches: Sequence[Launch], num_alone: int) -> Round:
    """Predict all launches together and some of them one by one."""
    begin, begin_cpu = time.perf_counter(), time.process_time()
    together = ask(launches)
    together_s, together_cpu_s = time.perf_counter() - begin, time.process_time() - begin_cpu
    chosen = np.unique(np.linspace(0, len(launches) - 1, num_alone).astype(int)).tolist()
    alone_s, differences, begin_cpu = [], [], time.process_time()
    for index in chosen:
        begin = time.perf_counter()
        (one,) = ask([launches[index]])
        alone_s.append(time.perf_counter() - begin)
        differences.append(abs(math.log2(one.time_ns / together[index].time_ns)))
    alone_cpu_s = (time.process_time() - begin_cpu) / len(chosen)
    median_s = statistics.median(alone_s)
    return Round(
        launches=len(launches),
        together_s=together_s,
        together_cpu_s=together_cpu_s,
        alone_ms=1e3 * median_s,
        alone_cpu_ms=1e3 * alone_cpu_s,
        speed_up=median_s * len(launches) / together_s,
        cpu_speed_up=alone_cpu_s * len(launches) / together_cpu_s,
        most_log2=max(differences),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A function that predicts launches of one kernel with one model."""

    model: Model
    source: Path
    kernel: str | None
    sweeps: bool

    def __call__(self, launches: Sequence[Launch]) -> list[Prediction]:
        """Predict the launches together."""
        return self.model.predict_many(
            self.source, launches, kernel=self.kernel, best_local_size=self.sweeps
        )


def hardware(threads: int | None) -> str:
    """Return the hardware that predicts: the GPU's name, or the threads of the CPU."""
    import torch  # noqa: PLC0415

    if threads is not None:
        torch.set_num_threads(threads)
    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return f"CPU, {torch.get_num_threads()} threads"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("--kernel")
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--alone", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--sweeps", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", choices=("auto", "off"), default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    machine = hardware(options.threads)
    chosen = SourceReader().kernel(options.source, options.kernel).kernel
    assert chosen.signature is not None, "the reader refuses such kernels"
    signature = chosen.signature
    launches = drawn_launches(
        options.launches, options.seed, signature.dims, signature.required_local_size
    )
    ask = Asking(
        model=Model.load(options.run, work=options.work),
        source=options.source,
        kernel=options.kernel,
        sweeps=options.sweeps,
    )
    ask(launches)
    ask(launches[:1])
    rounds = [measure(ask, launches, options.alone) for _ in range(options.rounds)]
    for one in rounds:
        sys.stdout.write(json.dumps(asdict(one)) + "\n")
    middle = {
        name: statistics.median(getattr(one, name) for one in rounds)
        for name in ("together_s", "alone_ms", "speed_up", "cpu_speed_up")
    }
    most = max(one.most_log2 for one in rounds)
    sys.stdout.write(
        f"{ask.model.name} on {machine}: {options.launches:,} launches of {chosen.name} together "
        f"{middle['together_s']:.3g} s, one by one {middle['alone_ms']:.3g} ms each: {middle['speed_up']:.0f} times "
        f"faster (CPU time {middle['cpu_speed_up']:.0f}), largest difference of log2(time) {most:.1e}\n"
    )
    if options.out is not None:
        with options.out.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, fieldnames=list(asdict(rounds[0])))
            writer.writeheader()
            writer.writerows(asdict(one) for one in rounds)


if __name__ == "__main__":
    main()
