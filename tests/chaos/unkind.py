"""What a host does to one process: a full or slow disk, a wrong clock, a cut network (``unkind.c``, by LD_PRELOAD).

Needs a C compiler; without one a storm leaves these faults out, and says so. A process that is to be hit is started with ``environment``; nothing hits it before ``inflict``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_name("unkind.c")
NO_COMPILER = "no C compiler (cc, gcc or clang) for the library of bad disks, clocks and networks"


def find_compiler() -> str | None:
    """Return this machine's C compiler, None if it has none."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


class Unkind:
    """One compiled library, and what it does to whom.

    Args:
        compiler: ``find_compiler``'s.
        folder: for the library and its orders.
        data: files below this folder have the bad disk.
    """

    def __init__(self, compiler: str, folder: Path, data: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._orders = folder / "orders"
        self._orders.mkdir(exist_ok=True)
        self._timers: dict[Path, threading.Timer | None] = {}
        library = folder / "unkind.so"
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"],
            check=True,
        )
        self.environment = {
            "LD_PRELOAD": str(library),
            "UNKIND": str(self._orders),
            "UNKIND_DATA": str(data.absolute()),
        }

    def inflict(
        self, pid: int, kind: str, value: object = "", *, seconds: float | None = None
    ) -> None:
        """Let something befall a process: ``full``, ``slow`` (seconds), ``skew`` (seconds) or ``cut`` (a port).

        For ``seconds``, without waiting, or until the process ends; of two orders of a kind the later one holds.
        """
        order = self._orders / f"{pid}.{kind}"
        order.write_text(str(value))
        self._timers[order] = None
        if seconds is not None:
            timer = threading.Timer(seconds, self._end, (order,))
            self._timers[order] = timer
            timer.daemon = True
            timer.start()

    def _end(self, order: Path) -> None:
        if self._timers.get(order) is threading.current_thread():
            order.unlink(missing_ok=True)

    @contextmanager
    def around(self) -> Iterator[None]:
        """Start processes that it can hit: for as long as this lasts, this process's children."""
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name)
                else:
                    os.environ[name] = value
