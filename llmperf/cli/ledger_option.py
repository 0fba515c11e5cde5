"""The ledger of a command: ``--ledger``, ``--ledger-file`` or the variable ``LLMPERF_LEDGER``.

Owns these three sources and their order. The URL of a Redis server contains a password. Every user
of the host can see a command's arguments in ``ps`` and, on a cluster, in Ray's list of jobs. A file
of mode 600 and the environment stay private.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Annotated, Final

import typer

from llmperf.cli.console import say
from llmperf.exits import CommandError, Exit
from llmperf_common.masking import public_url, secrets_of

LEDGER_VARIABLE: Final = "LLMPERF_LEDGER"
SQLITE: Final = "sqlite"
_SCHEMES: Final = ("redis", "rediss", "unix")
_FILE_BYTES: Final = 4096
_FOREIGN_BITS: Final = stat.S_IRWXG | stat.S_IRWXO

LedgerFile = Annotated[
    Path | None,
    typer.Option(
        "--ledger-file",
        metavar="FILE",
        help="A file of mode 600 that holds the value of --ledger, so that `ps` shows no password; "
        "or set LLMPERF_LEDGER.",
    ),
]


def ledger_of(given: str | None, file: Path | None) -> str | None:
    """Return the ledger given to a command; None if none was given.

    ``LLMPERF_LEDGER`` is used if neither option is given. The variable is always removed from the
    environment, because child processes do not need it.

    Raises:
        CommandError: Both options were given, the file cannot be used, or the value is neither
            ``sqlite`` nor a URL.
    """
    from_environment = os.environ.pop(LEDGER_VARIABLE, "")
    if given is not None and file is not None:
        raise CommandError(Exit.USAGE, "--ledger and --ledger-file cannot be combined: give one")
    if given is not None:
        found = _checked(given, "--ledger")
        if secrets_of(found):
            say(
                "--ledger has a password, which other users can see in `ps` and in Ray's list of "
                f"jobs: use --ledger-file FILE or {LEDGER_VARIABLE} instead"
            )
        return found
    if file is not None:
        return _checked(_content(file), f"--ledger-file {file}")
    return _checked(from_environment, LEDGER_VARIABLE) if from_environment else None


def _checked(text: str, source: str) -> str:
    """Return ``text`` with its scheme in lower case, as the client library requires."""
    if text == SQLITE:
        return text
    scheme, separator, rest = text.partition("://")
    if not separator or scheme.lower() not in _SCHEMES:
        # Only an argument is shown: a file or a variable may hold a bare password by mistake.
        shown = f" {public_url(text)!r}" if source == "--ledger" else ""
        raise CommandError(Exit.USAGE, f"{source}{shown}: must be sqlite or redis://HOST:PORT")
    return f"{scheme.lower()}{separator}{rest}"


def _content(file: Path) -> str:
    try:
        # Non-blocking, because opening a named pipe would otherwise wait for a writer.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _check_file(file, os.fstat(descriptor))
            text = os.read(descriptor, _FILE_BYTES).decode()
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _refused(
            file, f"{error.strerror}: name a file that holds one line, the value of --ledger"
        ) from None
    except UnicodeDecodeError:
        raise _refused(
            file, "the file is not UTF-8 text: it must hold one line, the value of --ledger"
        ) from None
    lines = text.split()
    if len(lines) != 1:
        raise _refused(
            file, f"the file has {len(lines)} words: it must hold only one, the value of --ledger"
        )
    return lines[0]


def _check_file(file: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _refused(
            file, "not a regular file: name a file that holds one line, the value of --ledger"
        )
    if found.st_mode & _FOREIGN_BITS:
        mode = stat.S_IMODE(found.st_mode)
        raise _refused(
            file, f"other users may open the file (mode {mode:04o}): run chmod 600 {file}"
        )
    if found.st_size > _FILE_BYTES:
        raise _refused(
            file,
            f"the file has {found.st_size:,} bytes: it must hold one line, the value of --ledger",
        )


def _refused(file: Path, why: str) -> CommandError:
    return CommandError(Exit.BAD_INPUT, f"--ledger-file {file}: {why}")
