"""The other processes of a training, as the first one sees them, and the first as they see it.

The first process reads the dataset, prepares and publishes; all of them fit. It tells the others the folder of
a run to fit, or that the end has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmperf_common.errors import Exit, LlmperfError

if TYPE_CHECKING:
    from trainer.fit.ranks import Ranks


class FirstProcessFailedError(LlmperfError):
    """The first process of a training ended with an error; the others end with its exit code."""

    def __init__(self, exit_code: Exit, message: str) -> None:
        super().__init__(f"the first process of the training ended: {message}")
        self.exit_code = exit_code


@dataclass(slots=True)
class Conductor:
    """The first process's way to the others.

    ``join`` makes this process one of the group, once; a process that is alone makes a group of one.
    """

    join: Callable[[], Ranks]
    num_processes: int = 1
    _ranks: Ranks | None = field(default=None, init=False)
    _are_fitting: bool = field(default=False, init=False)

    @contextmanager
    def gathered(self, folder: Path) -> Iterator[Ranks]:
        """Let every process fit the run that is prepared in ``folder``; the block is this one's fit."""
        ranks = self._joined()
        ranks.broadcast({"fit": str(folder)})
        self._are_fitting = True
        yield ranks
        self._are_fitting = False  # not after an error: it has ended the others, too

    def end(self, error: BaseException | None = None) -> None:
        """Send the others home, if they wait for a word."""
        if self.num_processes == 1 or self._are_fitting:
            return
        failure = None
        if isinstance(error, LlmperfError):
            failure = {"exit_code": int(error.exit_code), "message": str(error)}
        elif error is not None:
            failure = {"exit_code": int(Exit.BAD_INPUT), "message": repr(error)}
        self._joined().broadcast({"failure": failure})

    def _joined(self) -> Ranks:
        if self._ranks is None:
            self._ranks = self.join()
        return self._ranks


def follow(ranks: Ranks, fit: Callable[[Path, Ranks], object]) -> None:
    """What every process but the first does: fit when there is something to fit, until the end.

    Raises:
        FirstProcessFailedError: The first process ended with an error.
    """
    while True:
        message: dict[str, Any] = ranks.broadcast(None)
        if "fit" in message:
            fit(Path(message["fit"]), ranks)
            continue
        failure = message["failure"]
        if failure is not None:
            raise FirstProcessFailedError(Exit(failure["exit_code"]), failure["message"])
        return
