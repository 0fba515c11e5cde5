"""Datasets and a model that many tests look at, made once by the real commands on the replay device."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.collecting import KERNELS, replay_file, write_kernels
from tests.integration.in_process import Done, llmperf

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
