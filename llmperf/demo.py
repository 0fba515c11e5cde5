"""``python -m llmperf.demo FOLDER``: print predictions beside measurements, for ``make demo``.

Predicts held-out kernels of the demo's dataset from their source files, as a user would, and prints
each prediction beside the measured time. For each kernel it shows the launch config of middle size,
so that the choice does not depend on the quality of the prediction.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from llmperf import api
from llmperf.cli.console import answer, answer_table
from llmperf.exits import CommandError, Exit, run_guarded
from llmperf.prediction.model import Model

_MAX_KERNELS = 5
_KERNELS = Path("kernels")


def main(folder: Path) -> None:
    """Print predictions beside measurements, and the path of the report.

    Raises:
        CommandError: ``folder`` holds no finished demo.
    """
    try:
        scored = pq.read_table(folder / "evaluation" / "predictions.parquet")
    except OSError as error:
        raise CommandError(
            Exit.BAD_INPUT, f"{folder}: no finished demo ({error}): run `make demo`"
        ) from None
    wanted = set(scored.column("sample_id").to_pylist())
    # The launches below give all arguments, so the sizes of buffers are known: skip the analysis.
    model = api.load_model(folder / "model", analyse=False)
    rows = [_row(sample, kernel, model) for sample, kernel in _chosen(folder, wanted)]
    answer_table(
        "held-out kernels, never seen in training",
        ("kernel", "NDRange", "predicted µs", "90 % interval µs", "measured µs"),
        rows,
    )
    answer(f"report: {folder / 'report.html'}")


def _chosen(folder: Path, sample_ids: set[str]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """For each of the first held-out kernels, yield its sample of middle size, and the kernel."""
    dataset = api.open_dataset(folder / "data")
    kernels = {
        row["kernel_id"]: row
        for row in dataset.kernels(["kernel_id", "name", "path", "args"]).to_pylist()
    }
    columns = ["sample_id", "kernel_id", "global_size", "local_size", "args", "median_ns"]
    by_kernel: dict[str, list[dict[str, Any]]] = {}
    for row in dataset.samples(columns).to_pylist():
        if row["sample_id"] in sample_ids:
            by_kernel.setdefault(row["kernel_id"], []).append(row)
    for kernel_id in sorted(by_kernel)[:_MAX_KERNELS]:
        samples = sorted(
            by_kernel[kernel_id], key=lambda row: (row["global_size"], row["local_size"])
        )
        yield samples[len(samples) // 2], kernels[kernel_id]


def _row(sample: dict[str, Any], kernel: dict[str, Any], model: Model) -> tuple[object, ...]:
    names = {argument["position"]: argument["name"] for argument in kernel["args"]}
    prediction = model.predict(
        _KERNELS / kernel["path"],
        kernel=kernel["name"],
        global_size=sample["global_size"],
        local_size=sample["local_size"],
        args={
            names[a["position"]]: a["elements"] if a["elements"] is not None else a["value"]
            for a in sample["args"]
        },
    )
    interval = prediction.interval_ns
    shape = (
        "x".join(map(str, sample["global_size"])) + " / " + "x".join(map(str, sample["local_size"]))
    )
    return (
        kernel["name"],
        shape,
        f"{prediction.time_ns / 1e3:,.1f}",
        "unlike training"
        if interval is None
        else f"{interval[0] / 1e3:,.1f} to {interval[1] / 1e3:,.1f}",
        f"{sample['median_ns'] / 1e3:,.1f}",
    )


if __name__ == "__main__":
    run_guarded(lambda: main(Path(sys.argv[1])))
