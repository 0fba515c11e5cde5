"""``--ledger``, ``--ledger-file`` and ``LLMPERF_LEDGER``: their order, and what they refuse without saying a password."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmperf.cli.ledger_option import LEDGER_VARIABLE, ledger_of
from llmperf.exits import CommandError, Exit

URL = "redis://user:secret@head:6380/0"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file as it should be."""
    made = tmp_path / "ledger"
    made.write_text(f"{URL}\n")
    made.chmod(0o600)
    return made


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LEDGER_VARIABLE, raising=False)


def test_none_is_given() -> None:
    assert ledger_of(None, None) is None


def test_the_environment_is_taken_and_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEDGER_VARIABLE, URL)
    assert ledger_of(None, None) == URL
    assert LEDGER_VARIABLE not in os.environ, "no compiler and no kernel inherits it"


def test_options_come_first(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEDGER_VARIABLE, "redis://other:6380/0")
    assert ledger_of(None, file) == URL
    monkeypatch.setenv(LEDGER_VARIABLE, "redis://other:6380/0")
    assert ledger_of("sqlite", None) == "sqlite"
    assert LEDGER_VARIABLE not in os.environ


def test_a_password_in_an_argument_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert ledger_of("Redis://:secret@head:6380/0", None) == "redis://:secret@head:6380/0"
    told = capsys.readouterr().err
    assert "use --ledger-file FILE or LLMPERF_LEDGER instead" in told
    assert "secret" not in told
    assert ledger_of("redis://head:6380/0", None) == "redis://head:6380/0"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o620])
def test_a_file_that_others_may_open_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(CommandError, match=f"mode {mode:04o}.*chmod 600") as raised:
        ledger_of(None, file)
    assert raised.value.exit_code is Exit.BAD_INPUT


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "the file has 0 words"),
        (b"redis://head redis://:secret@other", "the file has 2 words"),
        (b"\xff\xfesecret", "the file is not UTF-8 text"),
        (b"redis://:secret@head/0\n" * 400, "bytes: it must hold one line"),
    ],
)
def test_other_content_is_refused(file: Path, content: bytes, told: str) -> None:
    file.write_bytes(content)
    with pytest.raises(CommandError, match=told) as raised:
        ledger_of(None, file)
    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path, told in (
        (tmp_path / "none", "No such file"),
        (tmp_path, "not a regular file"),
        (pipe, "not a regular file"),
    ):
        with pytest.raises(CommandError, match=told):
            ledger_of(None, path)


def test_both_options_are_refused(file: Path) -> None:
    with pytest.raises(CommandError, match="cannot be combined"):
        ledger_of("sqlite", file)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:secret@head", "'http://head'"),
        (":secret@head:6379", r"'\*\*\*'"),
        ("postgres", "'postgres'"),
    ],
)
def test_another_scheme_is_refused(text: str, shown: str, file: Path) -> None:
    with pytest.raises(CommandError, match=f"--ledger {shown}: must be sqlite or") as raised:
        ledger_of(text, None)
    assert raised.value.exit_code is Exit.USAGE
    file.write_text(text)
    with pytest.raises(CommandError, match=r"--ledger-file .*: must be sqlite or"):
        ledger_of(None, file)


def test_a_bare_password_in_a_file_or_a_variable_is_not_shown(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("hunter2PW\n")
    with pytest.raises(CommandError, match=r"--ledger-file .*: must be sqlite or") as raised:
        ledger_of(None, file)
    assert "hunter2" not in str(raised.value)
    monkeypatch.setenv(LEDGER_VARIABLE, "hunter2-PW:1234")
    with pytest.raises(CommandError, match=f"{LEDGER_VARIABLE}: must be sqlite or") as raised:
        ledger_of(None, None)
    assert "hunter2" not in str(raised.value)
