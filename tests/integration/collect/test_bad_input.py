"""What a user gets wrong: the exit code, a message that says what, where and what to do, and nothing lost."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmperf.exits import Exit
from llmperf_common.store.tables.reader import open_dataset
from tests.integration.conftest import Collected, Trained
from tests.support.collecting import (
    Collect,
    llmperf_command,
    replay_file,
    run_llmperf,
    wait_until,
    write_kernels,
)
from tests.support.in_process import Done, assert_refused, llmperf

GOOD = "__kernel void good(__global float *x) { x[get_global_id(0)] = 1; }"
TWO = GOOD + " __kernel void other(__global float *x, int n, float f) { x[0] = n * f; }"
IMAGE = "__kernel void im(read_only image2d_t t, __global float *x) { x[0] = 1; }"
FEWEST = ("--samples-per-kernel", "2", "--set", "timing.spin_up_ms=0")


@pytest.fixture
def replay(tmp_path: Path) -> str:
    """A device that is always there."""
    path = tmp_path / "replay.json"
    path.write_text("{}", encoding="utf-8")
    return f"replay:{path}"


def collect(corpus: Path, out: Path, device: str, *options: object) -> Done:
    return llmperf(
        "collect", "--corpus", corpus, "--out", out, "--device", device, *FEWEST, *options
    )


def of(done: subprocess.CompletedProcess[str]) -> Done:
    """Return how a process ended in the form of an in-process call."""
    return Done(code=done.returncode, out=done.stdout, err=done.stderr)


def rows(out: Path) -> dict[str, list[str]]:
    """Path of a kernel to the statuses of its rows."""
    dataset = open_dataset(out)
    paths = {row["kernel_id"]: row["path"] for row in dataset.kernels().to_pylist()}
    found: dict[str, list[str]] = {path: [] for path in paths.values()}
    for row in dataset.samples(["kernel_id", "status"]).to_pylist():
        found[paths[row["kernel_id"]]].append(row["status"])
    return found


# ------------------------------------------------------------------ the corpus


def test_a_corpus_that_is_not_there(tmp_path: Path, replay: str) -> None:
    done = collect(tmp_path / "nope", tmp_path / "out", replay)
    assert_refused(done, Exit.BAD_INPUT, str(tmp_path / "nope"), "does not exist", "name an OpenCL")
    assert not (tmp_path / "out").exists()


def test_no_traceback_in_a_real_process(tmp_path: Path, replay: str) -> None:
    """The rest of this file calls the same entry point in this process."""
    done = run_llmperf(
        "collect", "--corpus", tmp_path / "nope", "--out", tmp_path / "out", "--device", replay
    )
    assert_refused(of(done), Exit.BAD_INPUT, "does not exist")


def test_an_empty_folder(tmp_path: Path, replay: str) -> None:
    (tmp_path / "empty").mkdir()
    done = collect(tmp_path / "empty", tmp_path / "out", replay)
    assert_refused(done, Exit.BAD_INPUT, "empty", "no .cl file", "name a folder of OpenCL sources")


def test_a_folder_without_any_kernel(tmp_path: Path, replay: str) -> None:
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "h.cl").write_text("int f(int x) { return x; }", encoding="utf-8")
    done = collect(tmp_path / "helpers", tmp_path / "out", replay)
    assert_refused(done, Exit.BAD_INPUT, "h.cl: no __kernel function", "name a file or folder")


@pytest.mark.parametrize("name", ["folder.cl", "dangling.cl", "empty.cl", "corrupt.parquet"])
def test_a_single_source_that_cannot_be_read(tmp_path: Path, replay: str, name: str) -> None:
    (tmp_path / "folder.cl").mkdir()
    (tmp_path / "dangling.cl").symlink_to(tmp_path / "nowhere")
    (tmp_path / "empty.cl").touch()
    (tmp_path / "corrupt.parquet").write_bytes(b"PAR1" + b"\0" * 500)
    done = collect(tmp_path / name, tmp_path / "out", replay)
    assert_refused(done, Exit.BAD_INPUT, name)
    assert not (tmp_path / "out").exists()


def test_one_bad_file_costs_one_row(tmp_path: Path, replay: str) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["good"])
    (corpus / "latin1.cl").write_bytes(b"// caf\xe9\n" + GOOD.encode())
    (corpus / "binary.cl").write_bytes(b"\x7fELF\0\0\0\0")
    (corpus / "dangling.cl").symlink_to(corpus / "nowhere")
    (corpus / "folder.cl").mkdir()
    (corpus / "empty.cl").touch()
    done = collect(corpus, tmp_path / "out", replay)
    assert done.code == 0, done.err
    assert "skipped empty.cl: empty file" in done.err
    assert rows(tmp_path / "out") == {
        "good.cl": ["ok"] * 2,
        "latin1.cl": ["build_error"],
        "binary.cl": ["build_error"],
    }
    assert "skipped dangling.cl: a link: not followed" in done.err
    assert llmperf("dataset", "verify", tmp_path / "out").code == 0


def test_two_kernels_of_one_name_are_two_kernels(tmp_path: Path, replay: str) -> None:
    for folder, value in (("a", "1"), ("b", "2")):
        (tmp_path / "k" / folder).mkdir(parents=True)
        source = GOOD.replace("= 1", f"= {value}")
        (tmp_path / "k" / folder / "same.cl").write_text(source, encoding="utf-8")
    done = collect(tmp_path / "k", tmp_path / "out", replay)
    assert done.code == 0, done.err
    assert rows(tmp_path / "out") == {"a/same.cl": ["ok"] * 2, "b/same.cl": ["ok"] * 2}


# ------------------------------------------------------------------ --out


def test_out_is_a_file_or_below_one(tmp_path: Path, replay: str) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["k"])
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        assert_refused(
            collect(corpus, out, replay), Exit.BAD_INPUT, str(out), "Not a directory", "name a"
        )
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


def test_out_holds_something_else(tmp_path: Path, replay: str) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["k"])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine", encoding="utf-8")
    done = collect(corpus, tmp_path / "out", replay)
    assert_refused(done, Exit.USAGE, "thesis.txt", "choose an empty or new folder")
    assert os.listdir(tmp_path / "out") == ["thesis.txt"]


def test_out_holds_somebodys_folders(tmp_path: Path, replay: str) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["k"])
    (tmp_path / "out" / "photos").mkdir(parents=True)
    done = collect(corpus, tmp_path / "out", replay)
    assert_refused(done, Exit.USAGE, "photos", "choose an empty or new folder")
    assert os.listdir(tmp_path / "out") == ["photos"]


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        (("--seed", 9), "plan.seed: 0 there, 9 here"),
        (("--samples-per-kernel", 7), "plan.samples_per_kernel: 4 there, 7 here"),
        (("--set", "timing.warmups=5"), "timing.warmups: 2 there, 5 here"),
    ],
)
def test_out_is_of_another_plan(
    copied: Collected, options: tuple[object, ...], difference: str
) -> None:
    assert_refused(copied.collect(*options), Exit.USAGE, difference, "choose another --out")
    assert llmperf("dataset", "verify", copied.out).code == 0


def test_out_is_of_another_corpus(copied: Collected, tmp_path: Path) -> None:
    other = Collected(write_kernels(tmp_path / "more", ["z"]), copied.device, copied.out)
    assert_refused(other.collect(), Exit.USAGE, "its corpus differs", "choose another --out")


def test_out_may_not_be_written(tmp_path: Path, replay: str) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere: permissions cannot be tested")
    parent = tmp_path / "locked"
    parent.mkdir(mode=0o500)
    done = collect(write_kernels(tmp_path / "kernels", ["k"]), parent / "out", replay)
    assert_refused(done, Exit.BAD_INPUT, str(parent), "choose a folder you may write to")


# ------------------------------------------------------------------ a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 600 KB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted here (needs root): the full disk is NOT tested")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_loses_nothing_and_the_same_command_goes_on(
    small_disk: Path, tmp_path: Path, replay: str
) -> None:
    corpus = write_kernels(tmp_path / "kernels", [f"k{index:02d}" for index in range(16)])
    at_once = ("--set", "store.commit_interval_s=0", "--set", "store.publish_interval_s=0")
    options = (*FEWEST, *at_once, "--samples-per-kernel", "30")
    command = Collect(corpus, small_disk / "data", replay, options)
    assert_refused(of(command.run()), Exit.BAD_INPUT, "no space left", "run the same command again")
    subprocess.run(["mount", "-o", "remount,size=30M", str(small_disk)], check=True)
    before = set(open_dataset(small_disk / "data").samples(["sample_id"])["sample_id"].to_pylist())
    done = command.run()
    assert done.returncode == 0, done.stderr
    after = open_dataset(small_disk / "data").samples(["sample_id"])["sample_id"].to_pylist()
    assert len(after) == len(set(after)) == 480
    assert before <= set(after)
    assert llmperf("dataset", "verify", small_disk / "data").code == 0


@pytest.mark.slow
def test_a_full_scratch_disk_is_not_taken_for_bad_kernels(
    small_disk: Path, tmp_path: Path, replay: str
) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["k"])
    full = {"TMPDIR": str(small_disk)}
    done = Collect(corpus, tmp_path / "out", replay, FEWEST, full).run()
    assert_refused(of(done), Exit.BAD_INPUT, "no space left to compile in", "set TMPDIR")
    assert collect(corpus, tmp_path / "out", replay).code == 0
    assert rows(tmp_path / "out") == {"k.cl": ["ok"] * 2}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_scratch_folder_that_vanishes_is_not_taken_for_bad_kernels(tmp_path: Path) -> None:
    """Another host removed it: before, the kernels that followed failed for good."""
    corpus = write_kernels(tmp_path / "kernels", [f"k{index}" for index in range(8)])
    device = replay_file(
        tmp_path / "r.json", behaviours=[{"kernel": "*", "action": "slow", "seconds": 0.05}]
    )
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    options = (*FEWEST, "--samples-per-kernel", "8", "--set", "store.commit_interval_s=0")
    command = Collect(corpus, tmp_path / "data", device, options, {"TMPDIR": str(temporary)})
    process = command.start()
    wait_until(lambda: bool(list((tmp_path / "data").glob("samples/*.parquet"))))
    for folder in temporary.glob("llmperf-scratch*"):
        shutil.rmtree(folder, ignore_errors=True)
    out, err = process.communicate(timeout=100)
    ended = Done(code=process.returncode, out=out, err=err)
    assert_refused(ended, Exit.BAD_INPUT, "the scratch folder cannot be used", "set TMPDIR")
    assert command.run().returncode == 0
    assert rows(tmp_path / "data") == {f"k{index}.cl": ["ok"] * 8 for index in range(8)}


@pytest.mark.opencl
def test_a_full_scratch_disk_is_not_taken_for_a_broken_device(
    small_disk: Path, tmp_path: Path
) -> None:
    """Before, the CPU device was refused for a day after its compiler had met a full disk."""
    corpus = write_kernels(tmp_path / "kernels", ["k"])
    places = {"TMPDIR": str(small_disk), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = Collect(corpus, tmp_path / "out", "cpu", FEWEST, places).run()
    assert_refused(of(done), Exit.NO_DEVICE, "no space left to compile in", "set TMPDIR")
    assert not list((tmp_path / "cache").rglob("*.json")), "no verdict is remembered"


def test_a_corpus_that_does_not_fit_is_not_analysed_first(
    small_disk: Path, tmp_path: Path, replay: str
) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["k"])
    build = ("corpus", "build", corpus, "--analyse", "--device", replay, "--out")
    done = llmperf(*build, small_disk / "c.parquet")
    assert_refused(done, Exit.BAD_INPUT, "too little space for the corpus", "free some space")
    assert list(small_disk.iterdir()) == []
    done = llmperf(*build, tmp_path / f"{'c' * 240}.parquet")
    assert_refused(done, Exit.BAD_INPUT, "File name too long")
    assert "analysed" not in done.err


def test_a_log_that_cannot_be_written_ends_no_command(tmp_path: Path) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["k"])
    out = tmp_path / "c.parquet"
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            llmperf_command("corpus", "build", corpus, "--out", out), stderr=full, check=False
        )
        assert done.returncode == 0
        assert out.exists()
        done = subprocess.run(
            llmperf_command("corpus", "stats", tmp_path / "nothing"), stderr=full, check=False
        )
        assert done.returncode == Exit.BAD_INPUT


def test_a_read_only_disk(small_disk: Path, tmp_path: Path, replay: str) -> None:
    """Root may write where permissions forbid it, but not here."""
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    done = collect(write_kernels(tmp_path / "kernels", ["k"]), small_disk / "out", replay)
    assert_refused(done, Exit.BAD_INPUT, str(small_disk), "choose a folder you may write to")


# ------------------------------------------------------------------ the device


def test_a_device_that_is_no_selector(three_kernels: Collected, tmp_path: Path) -> None:
    for device in ("fpga", "cuda:x", "CPU", ""):
        done = collect(three_kernels.corpus, tmp_path / "out", device)
        assert_refused(done, Exit.USAGE, f"--device '{device}'", "auto, pocl, cpu, cuda[:N]")


def test_no_such_gpu(three_kernels: Collected, tmp_path: Path) -> None:
    done = collect(three_kernels.corpus, tmp_path / "out", "cuda:77")
    assert_refused(done, Exit.NO_DEVICE, "no usable device for --device cuda:77", "to mend:")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ("No such file",)),
        ("{", ("not JSON",)),
        ("[]", ("a JSON object is needed",)),
        ('{"behaviour": []}', ("'behaviour' is unknown", "did you mean 'behaviours'?")),
        ('{"device": {"compute_units": 0}}', ("device.compute_units", "at least 1")),
        ('{"behaviours": [{"kernel": "x", "action": "explode"}]}', ("'explode'", "'hang'")),
    ],
)
def test_a_bad_replay_file(
    three_kernels: Collected, tmp_path: Path, content: str | None, words: tuple[str, ...]
) -> None:
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    done = collect(three_kernels.corpus, tmp_path / "out", f"replay:{path}")
    assert_refused(done, Exit.BAD_INPUT, str(path), *words, "correct the file")


# ------------------------------------------------------------------ options and config


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--set", "plan.samples_per_kernl=4"), ("did you mean 'plan.samples_per_kernel'?",)),
        (("--set", "warmups=4"), ("'warmups' is unknown", "timing.warmups")),
        (("--set", "plan.seed"), ("write it as key=value",)),
        (("--set", "timing.warmups=0"), ("timing.warmups", "0", "at least 1")),
        (("--set", "timing.warmups=many"), ("timing.warmups", "'many'", "integer")),
        (("--set", "timing.max_launch_ms=nan"), ("timing.max_launch_ms", "finite")),
        (("--set", "limits.max_time_s=inf"), ("limits.max_time_s", "finite")),
        (("--set", "plan.sampler=round"), ("plan.sampler", "'stratified' or 'uniform'")),
        (("--set", "plan.idle_share=0.9"), ("plan.idle_share + plan.under_share", "at most 1")),
        (("--set", "plan=3"), ("'plan' is unknown",)),
        (("--samples-per-kernel", "0"), ("plan.samples_per_kernel", "at least 1")),
        (("--samples-per-kernel", "-1"), ("plan.samples_per_kernel", "at least 1")),
        (("--samples-per-kernel", "few"), ("--samples-per-kernel", "integer")),
        (("--seed", "99999999999"), ("plan.seed", "at most 2147483647")),
        (("--seed", "-1"), ("plan.seed", "at least 0")),
        (("--max-failures", "-1"), ("limits.max_failures", "at least 0")),
        (("--max-time", "soon"), ("--max-time 'soon'", "90, 90s, 20m or 2h")),
        (("--max-time", "0"), ("--max-time '0'", "90, 90s, 20m or 2h")),
        (("--max-time", "inf"), ("--max-time 'inf'", "90, 90s, 20m or 2h")),
        (("--max-time", "nan"), ("--max-time 'nan'", "90, 90s, 20m or 2h")),
        (("--max-time", ""), ("--max-time ''", "90, 90s, 20m or 2h")),
        (("--strategy", "guess"), ("'guess'", "'memory_analysis', 'simple' or 'decoupled'")),
        (("--strategy", "simple,gues"), ("'gues'", "'memory_analysis', 'simple' or 'decoupled'")),
        (("--cluster", "--device", "cuda:1"), ("--device 'cuda:1' with --cluster", "Ray chooses the GPU")),
        (("--cluster", "--set", "cluster.polls=1"), ("cluster.polls", "did you mean 'cluster.pools'?")),
        (("--ledger", "postgres"), ("--ledger 'postgres'", "must be sqlite or redis://")),
        (("--preset", "defualt"), ("'defualt' is not one of", "did you mean 'default'?")),
        (("--config", "nope.toml"), ("config file nope.toml", "No such file")),
        (("--frobnicate",), ("No such option",)),
    ],
)  # fmt: skip
def test_a_bad_option(
    three_kernels: Collected, tmp_path: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = collect(three_kernels.corpus, tmp_path / "out", three_kernels.device, *options)
    assert_refused(done, Exit.USAGE, *words)
    assert not (tmp_path / "out").exists(), "a refused command must leave no folder behind"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("x = [", ("not valid TOML",)),
        ("x = " + 40_000 * "[", ("nested too deeply",)),
        ("x." * 40_000 + "x = 1", ("too long for a configuration",)),
        ("[plan]\nsed = 3", ("plan.sed", "did you mean 'plan.seed'?")),
    ],
)
def test_a_bad_config_file(
    three_kernels: Collected, tmp_path: Path, content: str, words: tuple[str, ...]
) -> None:
    path = tmp_path / "c.toml"
    path.write_text(content, encoding="utf-8")
    done = collect(three_kernels.corpus, tmp_path / "out", three_kernels.device, "--config", path)
    assert_refused(done, Exit.USAGE, *words)


# ------------------------------------------------------------------ predict


def predict(
    run: Path, source: Path, *options: object, sizes: tuple[str, str] = ("64", "16")
) -> Done:
    return llmperf(
        "predict", source, "--model", run, "--global-size", sizes[0], "--local-size", sizes[1], *options
    )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ("No such file", "name a readable OpenCL source")),
        (b"// caf\xe9\n" + GOOD.encode(), ("not UTF-8", "name an OpenCL source")),
        (b"int f(int x) { return x; }", ("no __kernel function", "name a file")),
        (b"", ("empty file", "name a file")),
        (TWO.encode(), ("2 kernels", "--kernel", "good, other")),
        (IMAGE.encode(), ("kernel im", "image")),
    ],
)
def test_predict_a_source_that_cannot_be(
    trained: Trained, tmp_path: Path, content: bytes | None, words: tuple[str, ...]
) -> None:
    source = tmp_path / "k.cl"
    if content is not None:
        source.write_bytes(content)
    assert_refused(predict(trained.run, source), Exit.BAD_INPUT, str(source), *words)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--kernel", "third"), 3, ("no kernel 'third'", "good, other")),
        (("--kernel", "other", "--arg", "m=3"), 3, ("--arg m", "x, n, f")),
        (("--kernel", "other", "--arg", "n=1.5"), 3, ("--arg n=1.5", "whole number")),
        (("--kernel", "other", "--arg", "n=3000000000"), 3, ("--arg n=3000000000", "2147483647")),
        (("--kernel", "other", "--arg", "f=fast"), 3, ("--arg f=fast", "takes a number")),
        (("--kernel", "other", "--arg", "f=inf"), 3, ("--arg f=inf", "finite")),
        (("--kernel", "other", "--arg", "x=0"), 3, ("--arg x=0", "at least 1 element")),
        (("--kernel", "other", "--arg", f"x={10**30}"), 3, ("--arg x=1000", "at most")),
        (("--kernel", "other", "--arg", "n"), 2, ("--arg 'n'", "name=value")),
        (("--kernel", "other", "--arg", "n=1", "--arg", "n=2"), 2, ("'n' is given twice",)),
        (("--kernel", "good", "--device", "h200"), 3, ("--device h200", "replay")),
        (("--kernel", "good", "--sweep", "global-size"), 2, ("only local-size",)),
    ],
)
def test_predict_with_a_bad_option(
    trained: Trained, tmp_path: Path, options: tuple[str, ...], code: Exit, words: tuple[str, ...]
) -> None:
    (tmp_path / "k.cl").write_text(TWO, encoding="utf-8")
    assert_refused(predict(trained.run, tmp_path / "k.cl", *options), code, *words)


@pytest.mark.parametrize(
    ("sizes", "code", "words"),
    [
        (("0", "1"), 2, ("--global-size '0'", "positive")),
        (("-64", "1"), 2, ("--global-size '-64'", "positive")),
        (("big", "1"), 2, ("--global-size 'big'", "positive")),
        (("64", ""), 2, ("--local-size ''", "positive")),
        (("8,8,8,8", "1,1,1,1"), 2, ("one to three",)),
        (("64,64", "8"), 3, ("1 dimensions", "give the same number")),
        (("4096", "2048"), 3, ("--local-size 2048", "1024")),
        (("100", "64"), 3, ("64 does not divide", "50 does")),
        (("9" * 30, "1"), 3, ("--global-size", "no device runs that")),
    ],
)
def test_predict_with_sizes_that_cannot_be_launched(
    trained: Trained, tmp_path: Path, sizes: tuple[str, str], code: Exit, words: tuple[str, ...]
) -> None:
    (tmp_path / "k.cl").write_text(GOOD, encoding="utf-8")
    assert_refused(predict(trained.run, tmp_path / "k.cl", sizes=sizes), code, *words)


def test_predict_of_a_large_flat_3d_launch_answers(trained: Trained, tmp_path: Path) -> None:
    """A buffer's default, the longest side cubed, must not overflow."""
    (tmp_path / "k.cl").write_text(GOOD, encoding="utf-8")
    done = predict(trained.run, tmp_path / "k.cl", sizes=("16777216,1,1", "64,1,1"))
    assert done.code == 0, done.err


def test_predict_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "k.cl").write_text(GOOD, encoding="utf-8")
    done = predict(tmp_path / "no-run", tmp_path / "k.cl")
    assert_refused(done, Exit.BAD_INPUT, "no-run", "no trained run", "llmperf train")


# ------------------------------------------------------------------ train, evaluate, report


def test_train_on_too_little(three_kernels: Collected, tmp_path: Path) -> None:
    options = ("--out", tmp_path / "run", "--preset", "log-linear")
    done = llmperf("train", "--data", three_kernels.out, *options)
    assert_refused(done, Exit.BAD_INPUT, "at least 4 families", "collect more kernels")
    assert not (tmp_path / "run").exists()


def test_train_on_failures_only(tmp_path: Path, replay: str) -> None:
    (tmp_path / "k.cl").write_text(IMAGE, encoding="utf-8")
    assert collect(tmp_path / "k.cl", tmp_path / "data", replay).code == 0
    done = llmperf("train", "--data", tmp_path / "data", "--out", tmp_path / "run")
    assert_refused(done, Exit.BAD_INPUT, "none is ok", "dataset stats")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--preset", "gbd"), ("did you mean 'gbdt'?",)),
        (("--set", "gbdt.num_roundz=3"), ("did you mean 'gbdt.num_rounds'?",)),
        (("--init", "random"), ("--init random", "'gbdt'", "takes no initial weights")),
        (("--workers", "2"), ("--workers needs --cluster",)),
        (("--preset", "codegen-2b"), ("--init is missing", "--init random")),
        (("--preset", "tiny", "--init", "elsewhere"), ("--init elsewhere", "'small'")),
    ],
)
def test_train_with_a_bad_option(
    trained: Trained, tmp_path: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = llmperf("train", "--data", trained.data, "--out", tmp_path / "run", *options)
    assert_refused(done, Exit.USAGE, *words)


def test_train_into_a_folder_of_something_else(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    done = llmperf("train", "--data", trained.data, "--out", tmp_path)
    assert_refused(done, Exit.USAGE, str(tmp_path), "name a new folder")
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_evaluate_refuses_rows_trained_on(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "evaluation"
    options = (trained.run, "--data", trained.data, "--out", out, "--split", "train")
    done = llmperf("evaluate", *options)
    assert_refused(done, Exit.BAD_INPUT, "trained on", "--split test", "--allow-seen")
    assert not out.exists()
    done = llmperf("evaluate", *options, "--allow-seen")
    assert done.code == 0, done.err
    assert done.out.startswith("**SEEN"), "a table over seen rows is stamped"


@pytest.mark.parametrize(
    ("run", "options", "code", "words"),
    [
        ("no-run", (), 3, ("no trained run", "llmperf train")),
        (None, ("--split", "tset"), 2, ("'tset' is not one of",)),
    ],
)
def test_evaluate_with_bad_input(
    trained: Trained, tmp_path: Path, run: str | None, options: tuple[str, ...], code: Exit,
    words: tuple[str, ...],
) -> None:  # fmt: skip
    asked = trained.run if run is None else tmp_path / run
    done = llmperf("evaluate", asked, "--data", trained.data, "--out", tmp_path / "e", *options)
    assert_refused(done, code, *words)


def test_report_on_neither(tmp_path: Path) -> None:
    done = llmperf("report", tmp_path, "--out", tmp_path / "r.html")
    assert_refused(done, Exit.BAD_INPUT, str(tmp_path), "not a dataset", "llmperf collect --out")


def test_report_onto_a_folder(three_kernels: Collected, tmp_path: Path) -> None:
    done = llmperf("report", three_kernels.out, "--out", tmp_path)
    assert_refused(done, Exit.USAGE, str(tmp_path), "is a folder, not a file", "name another path")


@pytest.mark.parametrize("command", ["status", "dataset stats", "dataset card", "dataset verify"])
def test_reading_what_is_no_dataset(tmp_path: Path, command: str) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "nope", tmp_path / "file"):
        done = llmperf(*command.split(), path)
        assert done.code == Exit.BAD_INPUT, done.err
        assert str(path) in done.out + done.err
        assert sorted(os.listdir(tmp_path)) == ["file"], "looking must not make anything"
