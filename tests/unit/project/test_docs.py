"""What the documents say is true: links lead somewhere, commands and keys exist, marked blocks run.

A fenced block ``console run`` is run by a shell, line by line, in a folder that holds ``kernels/`` (some of ours);
``exit=N`` after it names the exit code of its last command. Python blocks with ``>>>`` are doctests. So that
no device is needed and the whole takes seconds, ``--device cpu`` and its like become a replay device. The
tutorial runs first; every other page runs in a copy of what it leaves.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.config import ClusterCollectConfig
from llmperf.cli.shared_options import SHARED
from llmperf.reference.commands import commands, option_names
from llmperf_common.config import key_names
from llmperf_common.failures import FailureCode
from trainer.config import TrainConfig

REPOSITORY = Path(__file__).resolve().parents[3]
PAGES = sorted(
    [
        *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        REPOSITORY / "kernels" / "README.md",
        *(REPOSITORY / "docs").rglob("*.md"),
    ]
)
IDS = [path.relative_to(REPOSITORY).as_posix() for path in PAGES]
MEASURED = sorted(
    [*(REPOSITORY / "benchmarks").rglob("*.md"), *(REPOSITORY / "measurements").rglob("*.md")]
)
"""Pages whose commands are the benchmarks' and whose options are not all ours: links are checked."""
LINKED = [*PAGES, *MEASURED]
LINKED_IDS = [path.relative_to(REPOSITORY).as_posix() for path in LINKED]
TUTORIAL = REPOSITORY / "docs" / "tutorial" / "first-dataset.md"
REPLAYED = re.compile(r"--device (?:cpu|pocl|auto|cuda(?::\d+)?)(?= |$)", re.MULTILINE)
KERNELS = (
    "black_scholes", "fnv_hash", "mandelbrot", "matmul_naive", "reduce_sum", "saxpy", "stencil1d_3", "vadd",
)  # fmt: skip
OTHER_TOOLS = {
    "--user",
    "--volume",
    "--strict-markers",
    "--working-dir",
    "--labels",
    "--metrics-export-port",
    "--bind",
    "--dashboard-host",
    "--gpus",
}
COMMAND_TIMEOUT_S = 60.0

pytestmark = pytest.mark.timeout(300)  # on a busy machine a page takes minutes


@dataclass(frozen=True)
class Block:
    """A fenced block: its info string, its text and the line where it begins."""

    info: str
    text: str
    line: int

    @property
    def words(self) -> list[str]:
        return self.info.split()

    def shell_lines(self) -> list[str]:
        """The commands of a console block, prompts taken off."""
        return [line[2:] for line in self.text.splitlines() if line.startswith("$ ")]


def blocks(path: Path) -> Iterator[Block]:
    lines = path.read_text(encoding="utf-8").splitlines()
    start: int | None = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
        else:
            info = lines[start].removeprefix("```").strip()
            yield Block(info=info, text="\n".join(lines[start + 1 : number]), line=start + 1)
            start = None
    assert start is None, f"{path}: block of line {start} has no end"


def prose(path: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(
        r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", prose(path), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("path", LINKED, ids=LINKED_IDS)
def test_relative_links_lead_somewhere(path: Path) -> None:
    text = prose(path)
    labelled = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", text, flags=re.MULTILINE))
    for target in [*re.findall(r"\]\(([^)\s]+)\)", text), *labelled.values()]:
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        assert file.exists(), f"{path}: {target}"
        assert not anchor or anchor in anchors(file), f"{path}: {target}"


@pytest.mark.parametrize("path", LINKED, ids=LINKED_IDS)
def test_no_page_names_this_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"(?<!\w)/(?:work|root|home/\w+|mnt|Users)/", text)


COMMANDS = {name: set(option_names(command)) for name, command in commands()}
OF_ALL = {name for option in SHARED for name in option.opts}
OF_ALL |= {"--help", "--install-completion", "--show-completion"}


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_commands_in_blocks_exist(path: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    for block in blocks(path):
        for line in block.shell_lines() if "console" in block.words else []:
            words = shlex.split(line, comments=True)
            words = [word.removeprefix(".venv/bin/") for word in words]
            if words[:3] == ["ray", "job", "submit"]:
                words = words[words.index("--") + 1 :]
            if words[0] == "make":
                assert set(words[1:]) <= targets, f"{path}:{block.line}: {line}"
            if words[0] != "llmperf" or words[1] in OF_ALL:
                continue
            name = " ".join(words[:3]) if words[1] in ("dataset", "corpus") else " ".join(words[:2])
            assert name in COMMANDS, f"{path}:{block.line}: {line}"
            given = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert given <= COMMANDS[name] | OF_ALL, f"{path}:{block.line}: {line}"


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_options_and_keys_in_prose_exist(path: Path) -> None:
    known = set().union(*COMMANDS.values()) | OF_ALL | OTHER_TOOLS
    keys = {key for root in (ClusterCollectConfig, TrainConfig) for key in key_names(root)}
    sections = {key.split(".")[0] for key in keys if "." in key}
    for code in re.findall(r"`([^`\n]+)`", prose(path)):
        for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", code):
            assert option in known, f"{path}: {option}"
        for section, name in re.findall(r"^(\w+)\.(\w+)(?:=.*)?$", code):
            if section in sections - {"store", "ledger", "train"} and name not in ("json", "md"):
                assert f"{section}.{name}" in keys, f"{path}: {code}"


def test_every_failure_code_of_the_advice_exists() -> None:
    page = (REPOSITORY / "docs" / "how-to" / "read-failures.md").read_text(encoding="utf-8")
    for code in re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE):
        assert code in list(FailureCode)


def test_every_page_is_in_the_index() -> None:
    index = prose(REPOSITORY / "docs" / "README.md") + prose(
        REPOSITORY / "docs" / "decisions" / "README.md"
    )
    for path in (REPOSITORY / "docs").rglob("*.md"):
        assert path.name == "README.md" or f"{path.name})" in index, path


def run_page(path: Path, folder: Path) -> list[str]:
    """Run the marked blocks of a page in ``folder``; return what went wrong."""
    problems = []
    for block in blocks(path):
        if "console" in block.words and "run" in block.words:
            problems += run_console(block, folder)
    examples = [b.text for b in blocks(path) if b.info == "python" and ">>>" in b.text]
    if examples:
        problems += run_doctest("\n".join(examples), folder)
    return [f"{path.name}: {problem}" for problem in problems]


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HF_HOME": str(folder / ".huggingface"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "XDG_STATE_HOME": str(folder / ".state"),
    }


def run_console(block: Block, folder: Path) -> list[str]:
    expected = next((int(w.removeprefix("exit=")) for w in block.words if w.startswith("exit=")), 0)
    lines = [
        REPLAYED.sub("--device replay:replay.json", line).replace("--preset demo ", "")
        for line in block.shell_lines()
    ]
    assert lines, f"line {block.line}: a console block to run has no command"
    for line in lines:
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=folder,
            env=environment(folder),
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        wanted = expected if line is lines[-1] else 0
        if done.returncode != wanted:
            return [
                f"line {block.line}: {line}: exit {done.returncode}\n{done.stdout}{done.stderr}"
            ]
    return []


def run_doctest(text: str, folder: Path) -> list[str]:
    (folder / "examples.txt").write_text(text, encoding="utf-8")
    program = (
        "import doctest, sys; sys.exit(doctest.testfile('examples.txt', module_relative=False)[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    return [done.stdout + done.stderr] if done.returncode else []


RUNNABLE = [
    path
    for path in PAGES
    if any("run" in block.words or ">>>" in block.text for block in blocks(path))
]


@pytest.fixture(scope="module")
def after_tutorial(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder that the tutorial leaves, and what went wrong in it."""
    folder = tmp_path_factory.mktemp("tutorial")
    (folder / "replay.json").write_text('{"device": {"device_class": "replay-small"}}')
    (folder / "kernels").mkdir()
    for name in KERNELS:
        shutil.copy(REPOSITORY / "kernels" / f"{name}.cl", folder / "kernels")
    return folder, run_page(TUTORIAL, folder)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            id=path.relative_to(REPOSITORY).as_posix(),
            marks=() if path in (REPOSITORY / "README.md", TUTORIAL) else pytest.mark.slow,
        )
        for path in RUNNABLE
    ],
)
def test_marked_blocks_run(
    path: Path, after_tutorial: tuple[Path, list[str]], tmp_path: Path
) -> None:
    folder, problems = after_tutorial
    if path != TUTORIAL:
        copy = tmp_path / "copy"
        shutil.copytree(folder, copy)
        problems = run_page(path, copy)
    assert problems == []
