"""The command line in this process, which saves a second of imports for each call."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass

from llmperf.cli.main import app
from llmperf.exits import Exit, run_guarded


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


def llmperf(*arguments: object) -> Done:
    """Run a command; raise the exceptions that a user would see as a traceback."""
    out, err = io.StringIO(), io.StringIO()
    code: int | str | None = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            run_guarded(lambda: app([str(one) for one in arguments], prog_name="llmperf"))
        except SystemExit as ending:
            code = ending.code
    assert isinstance(code, int | None)
    return Done(code=code or 0, out=out.getvalue(), err=err.getvalue())


def assert_refused(done: Done, code: Exit, *words: str) -> None:
    """Check the exit code, and that the message on stderr, the only output, has all ``words``."""
    text = " ".join(done.err.replace("│", " ").split())
    assert done.code == code, f"exit {done.code}, not {code}: {done.err}"
    assert done.out == ""
    assert "Traceback" not in done.err
    for word in words:
        assert word in text, f"{word!r} is not in: {text}"
