"""Datasets and a model that many tests look at, made once by the real commands on the replay device."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.collecting import KERNELS, replay_file, write_kernels
from tests.support.in_process import Done, llmperf

FAST = (
    "--samples-per-kernel", 4,
    "--set", "timing.spin_up_ms=0",
    "--set", "store.commit_interval_s=0.1",
    "--set", "store.publish_interval_s=0.1",
)  # fmt: skip
MODEL_KERNELS = (
    "saxpy", "mandelbrot", "nbody", "histogram", "matmul_tiled", "csr_spmv", "reduce_sum", "fnv_hash",
    "transpose_naive", "stencil1d_3",
)  # fmt: skip


@dataclass(frozen=True)
class Collected:
    """A dataset and the command that made it."""

    corpus: Path
    device: str
    out: Path

    def collect(self, *options: object) -> Done:
        """Run the command (again)."""
        return llmperf(
            "collect", "--corpus", self.corpus, "--device", self.device, "--out", self.out, *FAST, *options
        )  # fmt: skip


@pytest.fixture(scope="session")
def three_kernels(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    """Three kernels, twelve ok samples; not to be changed."""
    folder = tmp_path_factory.mktemp("three")
    corpus = write_kernels(folder / "kernels", ["k0", "k1", "k2"])
    made = Collected(corpus, replay_file(folder / "r.json"), folder / "data")
    done = made.collect()
    assert done.code == 0, done.err
    return made


@pytest.fixture
def copied(three_kernels: Collected, tmp_path: Path) -> Collected:
    """The same in a folder of the test's own."""
    out = tmp_path / "copied"
    shutil.copytree(three_kernels.out, out)
    return Collected(three_kernels.corpus, three_kernels.device, out)


@dataclass(frozen=True)
class Trained:
    """A dataset and a run trained on it."""

    data: Path
    run: Path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A log-linear model of ten kernels; not to be changed."""
    folder = tmp_path_factory.mktemp("trained")
    corpus = folder / "kernels"
    corpus.mkdir()
    for name in MODEL_KERNELS:
        shutil.copy(KERNELS / f"{name}.cl", corpus)
    made = Collected(corpus, replay_file(folder / "r.json"), folder / "data")
    done = made.collect("--samples-per-kernel", 8)
    assert done.code == 0, done.err
    run = folder / "run"
    quick = ("--set", "judge.bootstrap_replicates=0")
    done = llmperf("train", "--data", made.out, "--out", run, "--preset", "log-linear", *quick)
    assert done.code == 0, done.err
    return Trained(data=made.out, run=run)


DEVICE_LIBRARIES = ("pyopencl", "pycuda", "pynvml")


@pytest.fixture
def no_device(tmp_path: Path) -> dict[str, str]:
    """An environment without an ICD, whose device libraries cannot be imported."""
    vendors, blocked = tmp_path / "vendors", tmp_path / "blocked"
    vendors.mkdir()
    blocked.mkdir()
    for name in DEVICE_LIBRARIES:
        text = f"raise ImportError('{name} is blocked: this must work without it')\n"
        (blocked / f"{name}.py").write_text(text, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OCL_ICD")}
    return {
        **kept,
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),  # no verdict of an earlier probe
        "OCL_ICD_VENDORS": str(vendors),
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join([str(blocked), kept.get("PYTHONPATH", "")]).rstrip(
            os.pathsep
        ),
    }
