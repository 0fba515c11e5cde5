"""No input is dropped in silence, and no command replaces what it did not write."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from llmperf import api
from llmperf.exits import Exit
from llmperf_common.store.manifests.run import read_run
from llmperf_common.store.tables.reader import open_dataset
from tests.integration.conftest import FAST, Collected, Trained
from tests.support.collecting import Collect, replay_file, wait_until, write_kernels
from tests.support.in_process import Done, assert_refused, llmperf

# ------------------------------------------------------------------ several corpora


def kernel_names(data: Path) -> list[str]:
    return sorted(open_dataset(data).kernels()["name"].to_pylist())


def test_each_corpus_of_a_collect_is_kept_and_equal_kernels_are_one(tmp_path: Path) -> None:
    first = write_kernels(tmp_path / "first", ["k0", "k1"])
    second = write_kernels(tmp_path / "second", ["k0", "k2"])  # k0 is the same text in both
    device = replay_file(tmp_path / "r.json")
    both = ("--corpus", first, "--corpus", second)
    out = tmp_path / "data"
    done = llmperf("collect", *both, "--out", out, "--device", device, *FAST)
    assert done.code == 0, done.err
    assert kernel_names(out) == ["k0", "k1", "k2"]
    turned = ("--corpus", second, "--corpus", first, "--corpus", second)
    done = llmperf("collect", *turned, "--out", out, "--device", device, *FAST)
    assert done.code == 0, "the same kernels in another order are the same run: " + done.err

    run = read_run(open_dataset(out).fs)
    assert run is not None
    api.collect(corpus=[first, str(second)], out=tmp_path / "api", device=device)
    assert open_dataset(tmp_path / "api").run.corpus_sha256 == run.corpus_sha256


def test_a_bad_corpus_beside_a_good_one_is_named(tmp_path: Path) -> None:
    good, absent = write_kernels(tmp_path / "good", ["k0"]), tmp_path / "absent"
    device = replay_file(tmp_path / "r.json")
    both = ("--corpus", good, "--corpus", absent)
    done = llmperf("collect", *both, "--out", tmp_path / "data", "--device", device)
    assert_refused(done, Exit.BAD_INPUT, str(absent))


def test_an_evaluation_beside_an_evaluation_is_a_mistake(trained: Trained, tmp_path: Path) -> None:
    scored, page = tmp_path / "scored", tmp_path / "page.html"
    assert llmperf("evaluate", trained.run, "--data", trained.data, "--out", scored).code == 0
    done = llmperf("report", scored, "--evaluation", scored, "--out", page)
    assert_refused(done, Exit.USAGE, f"{scored} is an evaluation", "name the dataset")
    assert not page.exists()


def test_a_page_does_not_go_into_the_evaluation_that_it_shows(
    trained: Trained, tmp_path: Path
) -> None:
    scored = tmp_path / "scored"
    evaluate = ("evaluate", trained.run, "--data", trained.data, "--out", scored)
    assert llmperf(*evaluate).code == 0
    for words in ((scored,), (trained.data, "--evaluation", scored)):
        done = llmperf("report", *words, "--out", scored / "x.html")
        assert_refused(done, Exit.USAGE, f"lies in the evaluation {scored}", "name a file")
    assert llmperf("report", scored, "--out", tmp_path / "x.html").code == 0
    done = llmperf(*evaluate)
    assert done.code == 0, done.err


# ------------------------------------------------------------------ --out

Command = Callable[[Path], Done]


@pytest.fixture(params=["report", "report of a corpus", "corpus build", "evaluate", "train"])
def command(
    request: pytest.FixtureRequest, trained: Trained, three_kernels: Collected, tmp_path: Path
) -> Command:
    """Each command that takes ``--out`` for one file or for a folder of its own."""
    corpus = tmp_path / "corpus.parquet"
    quick = ("--preset", "log-linear", "--set", "judge.bootstrap_replicates=0")
    words: dict[str, tuple[object, ...]] = {
        "report": ("report", three_kernels.out),
        "report of a corpus": ("report", corpus),
        "corpus build": ("corpus", "build", three_kernels.corpus),
        "evaluate": ("evaluate", trained.run, "--data", trained.data),
        "train": ("train", "--data", trained.data, *quick),
    }
    if request.param == "report of a corpus":
        assert llmperf("corpus", "build", three_kernels.corpus, "--out", corpus).code == 0
    return lambda out: llmperf(*words[request.param], "--out", out)


def test_out_replaces_its_own_output_only(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for _ in range(2):
        assert command(out).code == 0
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("mine")
    for name in ("notes.txt", "folder"):
        assert_refused(command(tmp_path / name), Exit.USAGE, f"--out {tmp_path / name}", "name a")
    assert_refused(command(tmp_path / "notes.txt" / "x"), Exit.BAD_INPUT, "Not a directory")
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["thesis.tex"]


def test_out_refuses_what_is_no_regular_file(command: Command, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to_pipe").symlink_to("pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    with contextlib.suppress(
        PermissionError
    ):  # root alone may make, and could replace, a device node
        os.mknod(tmp_path / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    names = [one for one in ("pipe", "to_pipe", "null", "device") if (tmp_path / one).exists()]
    before = {name: (tmp_path / name).lstat() for name in names}
    for name in names:
        kind = "a named pipe" if "pipe" in name else "a character device"
        assert_refused(command(tmp_path / name), Exit.USAGE, f"--out {tmp_path / name} is {kind}")
    for name in names:
        after = (tmp_path / name).lstat()
        assert (after.st_ino, after.st_mode) == (before[name].st_ino, before[name].st_mode)


def test_out_is_not_stdout(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(command(Path("-")), Exit.USAGE, "--out -: this output cannot go to stdout")
    assert not (tmp_path / "-").exists()


def test_what_lies_beside_a_run_or_an_evaluation_is_not_lost(
    trained: Trained, tmp_path: Path
) -> None:
    quick = ("--preset", "log-linear", "--set", "judge.bootstrap_replicates=0")
    force = (*quick, "--set", "train.overwrite=true")
    for name, words in (
        ("run", ("train", "--data", trained.data, *force)),
        ("scored", ("evaluate", trained.run, "--data", trained.data)),
    ):
        out = tmp_path / name
        assert llmperf(*words, "--out", out).code == 0
        (out / "notes.txt").write_text("mine")
        done = llmperf(*words, "--out", out)
        assert_refused(done, Exit.USAGE, "holds notes.txt beside", "move them away")
        assert (out / "notes.txt").read_text() == "mine"


@pytest.mark.slow
def test_a_readme_of_ones_own_is_kept_beside_a_dataset(tmp_path: Path) -> None:
    made = Collected(
        write_kernels(tmp_path / "kernels", ["k0"]),
        replay_file(tmp_path / "r.json"),
        tmp_path / "data",
    )
    assert made.collect().code == 0
    (made.out / "README.md").write_text("# mine\n")
    (made.out / "croissant.json").unlink()
    done = made.collect()
    assert done.code == 0, done.err
    assert (made.out / "README.md").read_text() == "# mine\n"
    assert (made.out / "croissant.json").exists()
    done = llmperf("dataset", "card", made.out)
    assert_refused(done, Exit.USAGE, "llmperf did not write README.md", "move it to another place")
    assert done.err.count("llmperf did not write") == 1, "said once"
    assert (made.out / "README.md").read_text() == "# mine\n"
    (made.out / "README.md").unlink()
    for _ in range(2):  # its own may be replaced
        assert llmperf("dataset", "card", made.out).code == 0


def test_merging_one_dataset_is_a_mistake(three_kernels: Collected, tmp_path: Path) -> None:
    one = three_kernels.out
    (tmp_path / "link").symlink_to(one)
    for again in ((), (one,), (f"{one}/",), (tmp_path / "link", one)):
        done = llmperf("dataset", "merge", one, *again, "--out", tmp_path / "merged")
        assert_refused(done, Exit.USAGE, f"only {one} was named", "name two or more datasets")
    assert not (tmp_path / "merged").exists()


def test_merge_says_what_is_in_the_way(three_kernels: Collected, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(three_kernels.out, other)
    note = tmp_path / "note.txt"
    note.write_text("mine", encoding="utf-8")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for out, kind in ((note, "a file"), (pipe, "a named pipe")):
        done = llmperf("dataset", "merge", three_kernels.out, other, "--out", out)
        assert_refused(done, Exit.USAGE, f"--out {out} is {kind}, not a folder: name a new folder")
    assert note.read_text(encoding="utf-8") == "mine"


# ------------------------------------------------------------------ ended and finished runs


@pytest.mark.slow
def test_an_interrupted_worker_has_nothing_in_hand(tmp_path: Path) -> None:
    names = [f"k{number}" for number in range(8)]
    slow = [{"kernel": "*", "action": "slow", "seconds": 0.05}]
    run = Collect(
        write_kernels(tmp_path / "kernels", names),
        tmp_path / "data",
        replay_file(tmp_path / "r.json", behaviours=slow),
        (*map(str, FAST), "--set", "ledger.claim_ahead=4"),
    )
    process = run.start()
    wait_until(lambda: any(run.out.glob("samples/*.parquet")))
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == Exit.INTERRUPTED, told
    assert "run the same command again to resume" in told
    (line,) = llmperf("status", run.out).out.splitlines()[1:]
    assert "ended" in line
    assert "  0 in hand" in line
