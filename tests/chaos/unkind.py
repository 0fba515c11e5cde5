"""What a host does to one process: a full or slow disk, a wrong clock, a cut network (``unkind.c``, by LD_PRELOAD).

Needs a C compiler. Whoever is to be hit is started with ``environment``; nothing befalls it before ``inflict``.
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


class Unkind:
    """One compiled library, and what it does to whom.

    Args:
        folder: for the library and its orders.
        data: files below this folder have the bad disk.

    Raises:
        RuntimeError: There is no C compiler.
    """

    def __init__(self, folder: Path, data: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise RuntimeError("no C compiler (cc): it makes the library of bad disks and clocks")
        folder.mkdir(parents=True, exist_ok=True)
        self._orders = folder / "orders"
        self._orders.mkdir(exist_ok=True)
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

    def inflict(self, whom: int | str, what: str, *, seconds: float | None = None) -> None:
        """Let ``what`` befall a process (or ``all``); for ``seconds``, without waiting, or until it ends."""
        order = self._orders / str(whom)
        order.write_text(what)
        if seconds is not None:
            timer = threading.Timer(seconds, order.unlink, kwargs={"missing_ok": True})
            timer.daemon = True
            timer.start()

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
