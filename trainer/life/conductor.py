"""Communication between rank 0 and the other processes of a training.

Rank 0 is the first process. It reads the dataset, prepares the run and publishes it; all processes
(ranks) fit the model. Rank 0 tells the others either the folder of the run to fit, or that the
training has ended.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmperf_common.errors import Exit, LlmperfError
from trainer.errors import BadInput
from trainer.run.folder import PREPARED_FOLDER

if TYPE_CHECKING:
    from trainer.fit.ranks import Ranks

_SIGHT_FILE = ".seen-by-all"
"""File that rank 0 writes to ``prepared/``; others read it to check that they see the folder."""


class FirstProcessFailedError(LlmperfError):
    """The first process of a training failed; the others end with the same exit code."""

    is_echo = True

    def __init__(self, exit_code: Exit, message: str) -> None:
        super().__init__(f"the first process of the training ended: {message}")
        self.exit_code = exit_code


@dataclass(slots=True)
class Stop:
    """A request to end a training, for processes that receive no signals.

    Attributes:
        asked: when set, the fit saves a checkpoint after the current step and ends.
        is_fitting: whether a fit is running that checks ``asked``.
    """

    asked: threading.Event = field(default_factory=threading.Event)
    is_fitting: bool = False


@dataclass(slots=True)
class Conductor:
    """Rank 0's side of the communication; ``follow`` is the side of the other ranks.

    ``join`` joins the process group and is called at most once; a single process is a group of one.
    """

    join: Callable[[], Ranks]
    num_processes: int = 1
    stop: Stop = field(default_factory=Stop)
    _ranks: Ranks | None = field(default=None, init=False)

    @contextmanager
    def gathered(self, folder: Path) -> Iterator[Ranks]:
        """Let all ranks fit the run that is prepared in ``folder``; the block is rank 0's fit.

        Raises:
            BadInput: Another rank does not see the folder.
        """
        ranks = self._joined()
        token = uuid.uuid4().hex
        sight = folder / PREPARED_FOLDER / _SIGHT_FILE
        if ranks.world_size > 1:
            sight.write_text(token, encoding="utf-8")
        try:
            ranks.broadcast({"fit": str(folder), "token": token})
            _agree(ranks, folder, None)
        finally:
            sight.unlink(missing_ok=True)
        self.stop.is_fitting = True
        yield ranks
        self.stop.is_fitting = False  # stays true after an error, which has ended the other ranks

    def end(self, error: BaseException | None = None) -> None:
        """Tell the other ranks that the training has ended, and why, unless they are fitting."""
        if self.num_processes == 1 or self.stop.is_fitting:
            return
        failure = None
        if isinstance(error, LlmperfError):
            failure = {"exit_code": int(error.exit_code), "message": str(error)}
        elif error is not None:
            is_interrupt = isinstance(error, KeyboardInterrupt)
            code = Exit.INTERRUPTED if is_interrupt else Exit.BAD_INPUT
            failure = {"exit_code": int(code), "message": repr(error)}
        self._joined().broadcast({"failure": failure})

    def _joined(self) -> Ranks:
        if self._ranks is None:
            self._ranks = self.join()
        return self._ranks


def follow(ranks: Ranks, fit: Callable[[Path, Ranks], object], stop: Stop) -> None:
    """Follow rank 0's messages on another rank: fit each run that rank 0 names, until the end.

    Raises:
        BadInput: A rank does not see the run's folder.
        FirstProcessFailedError: Rank 0 ended with an error.
    """
    while True:
        message: dict[str, Any] = ranks.broadcast(None)
        if "fit" in message:
            folder = Path(message["fit"])
            _agree(ranks, folder, _blindness(folder, message["token"]))
            stop.is_fitting = True
            fit(folder, ranks)
            stop.is_fitting = False
            continue
        failure = message["failure"]
        if failure is not None:
            raise FirstProcessFailedError(Exit(failure["exit_code"]), failure["message"])
        return


def _agree(ranks: Ranks, folder: Path, problem: str | None) -> None:
    """Raise BadInput on all ranks if one of them has a problem with ``folder``."""
    problems = [one for one in ranks.gather(problem) if one is not None]
    if problems:
        raise BadInput(
            f"{folder}: {'; '.join(problems)}: --out must be on a file system that all nodes of "
            "the training mount at the same path"
        )


def _blindness(folder: Path, token: str) -> str | None:
    """Return the reason why this process does not see rank 0's ``folder``; None if it does."""
    who = f"process {os.environ.get('RANK', '?')} on {socket.gethostname()}"
    try:
        found = (folder / PREPARED_FOLDER / _SIGHT_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return f"{who} does not see this folder"
    except OSError as error:
        return f"{who} cannot read this folder ({error.strerror})"
    return None if found == token else f"{who} sees another folder there"
