"""``--out`` replaces what the same command wrote, and nothing else."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from llmperf.html_report.page import document, is_report
from llmperf.html_report.views import Stamp
from llmperf.html_report.writer import report_to_write
from llmperf_common.config import ConfigError
from llmperf_common.files.outputs import OutputTaken, file_to_write, folder_to_write, holds_json


def is_text_of_ours(path: Path) -> bool:
    return path.read_text().startswith("ours")


def file(path: Path) -> Path:
    return file_to_write(path, is_ours=is_text_of_ours, what="page")


def folder(path: Path) -> Path:
    return folder_to_write(
        path,
        names=("a.json", "b"),
        is_ours=lambda one: holds_json(one / "a.json", ["x"]),
        what="run",
    )


def special_files(where: Path) -> dict[str, Path]:
    """What is neither a file nor a folder, and a link to each."""
    os.mkfifo(where / "pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(where / "socket"))
    found = {
        "a named pipe": where / "pipe",
        "a socket": where / "socket",
        "a character device": Path("/dev/null"),
    }
    for number, target in enumerate(list(found.values())):
        (where / f"link{number}").symlink_to(target)
    return found


@pytest.mark.parametrize("check", [file, folder])
def test_what_is_no_file_and_no_folder_is_refused_by_its_kind(check, tmp_path: Path) -> None:
    for number, (kind, path) in enumerate(special_files(tmp_path).items()):
        for one in (path, tmp_path / f"link{number}"):
            with pytest.raises(OutputTaken, match=f"{one} is {kind}, not a .*: name") as refused:
                check(one)
            assert isinstance(refused.value, ConfigError), "exit code 2"


def test_a_file_is_replaced_only_if_the_command_wrote_it(tmp_path: Path) -> None:
    assert file(tmp_path / "new") == tmp_path / "new"
    (tmp_path / "ours").write_text("ours, and old")
    assert file(tmp_path / "ours") == tmp_path / "ours"
    for name, text in (("notes", "mine"), ("empty", "")):
        (tmp_path / name).write_text(text)
        with pytest.raises(
            OutputTaken, match="exists and holds no page of llmperf: name another file"
        ):
            file(tmp_path / name)
    with pytest.raises(OutputTaken, match="is a folder, not a file"):
        file(tmp_path)


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "ours").write_text("ours")
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to("ours")
    assert file(tmp_path / "link") == (tmp_path / "ours").resolve()
    (tmp_path / "other").symlink_to("mine")
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "circle").symlink_to("circle")
    for name, words in (
        ("other", "no page"),
        ("dangling", "link to nothing"),
        ("circle", "link to nothing"),
    ):
        with pytest.raises(OutputTaken, match=words):
            file(tmp_path / name)
    with pytest.raises(OutputTaken, match=r"lies behind .*dangling, a link to nothing"):
        file(tmp_path / "dangling" / "new")
    (tmp_path / "there").mkdir()
    (tmp_path / "to_folder").symlink_to("there")
    assert folder(tmp_path / "to_folder") == (tmp_path / "there").resolve()


def test_a_folder_is_replaced_only_if_it_holds_what_the_command_wrote_and_nothing_else(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    assert folder(out) == out
    out.mkdir()
    assert folder(out) == out
    (out / "a.json").write_text("[]")
    with pytest.raises(
        OutputTaken, match="not empty and holds no run of llmperf: name a new folder"
    ):
        folder(out)
    (out / "a.json").write_text('{"x": 1}')
    (out / "b").mkdir()
    assert folder(out) == out
    for name in ("thesis.tex", "notes.txt"):
        (out / name).touch()
    with pytest.raises(
        OutputTaken,
        match=r"holds notes\.txt, thesis\.tex beside the run, and writing here would delete",
    ):
        folder(out)
    with pytest.raises(OutputTaken, match="is a file, not a folder"):
        folder(out / "a.json")


def test_a_folder_with_json_that_nests_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[" * 100_000)
    assert not holds_json(tmp_path / "a.json", ["x"])


def test_a_report_says_so_in_its_head(tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    page.write_text(str(document("t" * 5000, "s", [], Stamp())))
    assert is_report(page)
    assert report_to_write(page) == page
    page.write_text("<!DOCTYPE html><html><head><title>mine</title></head></html>")
    assert not is_report(page)


def test_a_report_of_an_earlier_release_may_be_replaced(tmp_path: Path) -> None:
    old = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        'content="default-src &#x27;none&#x27;; style-src &#x27;unsafe-inline&#x27;">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        "<title>LLMPerf dataset and evaluation report</title><style></style></head></html>"
    )
    page = tmp_path / "r.html"
    page.write_text(old)
    assert report_to_write(page) == page
    page.write_text(old.replace("LLMPerf", "My"))
    assert not is_report(page)
