"""Whether LLMPerf's files are still those that this process has loaded.

If the files are upgraded during a run, child processes that start later run another version than
their parent. Their rows would name the parent's ``harness_version``, although other code measured
them. So a parent notes its files before it starts the first child, and checks them before it starts
another one. Each child gets the files' hash from its parent and compares it with its own files. On
a cluster the driver passes its hash to the actors.

Owns the names of the packages that measure, the hash of their files, and how a child finds them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from llmperf_common.errors import LlmperfError
from llmperf_common.ids import sha256_hex

HASH_VARIABLE = "LLMPERF_FILES_SHA256"
"""The variable that tells a child the hash of its parent's files."""

_ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("llmperf_common", "workers")
_SUFFIXES = (".py", ".cl")
_SITE_FOLDERS = ("site-packages", "dist-packages")

_Stamp = tuple[int, int, int, int]
_GONE: _Stamp = (0, 0, 0, 0)


class InstallationChanged(LlmperfError):  # noqa: N818
    """LLMPerf's files changed while it ran; nothing committed is lost."""


class Installation:
    """The files of the packages that measure, as they were when the object was created.

    Args:
        root: the folder with the packages.
    """

    def __init__(self, root: Path = _ROOT) -> None:
        self._root = root
        self._stamps = self._read_stamps()
        self._digests = self._read_digests(self._stamps)
        self.sha256 = sha256_hex(repr(sorted(self._digests.items())).encode())
        """Hash of the files' names and contents, 64 hex digits."""

    def check(self) -> None:
        """Check that the files have not changed since the object was created.

        Raises:
            InstallationChanged: A file was changed, added or removed.
        """
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return
        changed = self._read_digests(stamps).items() ^ self._digests.items()
        if changed:
            which = self._root / min(name for name, _ in changed)
            raise InstallationChanged(
                f"LLMPerf's own files changed while it ran ({which}), by an upgrade or an edit: "
                "run the same command again (in a notebook: restart Python). It then uses the new "
                "files. All finished results of a collection are kept"
            )
        self._stamps = stamps

    def require(self, sha256: str, of: str) -> None:
        """Check that another process has the same files.

        Args:
            sha256: the hash of the other process's files.
            of: names the other process in the message.

        Raises:
            InstallationChanged: The other process has other files.
        """
        if self.sha256 != sha256:
            raise InstallationChanged(
                f"LLMPerf's files below {self._root} are not those of {of}: install the same "
                "version everywhere, and run the same command again"
            )

    def _read_stamps(self) -> dict[str, _Stamp]:
        """Return inode, size and times of each file, by its path below the root."""
        stamps = {}
        start = len(os.path.join(self._root, ""))
        for package in _PACKAGES:
            for place, folders, names in os.walk(self._root / package, onerror=_raise_unless_gone):
                # Editors keep copies and locks under names that begin with a dot.
                folders[:] = [one for one in folders if one != "__pycache__" and one[0] != "."]
                for name in names:
                    if name.endswith(_SUFFIXES) and name[0] != ".":
                        path = os.path.join(place, name)  # a Path would cost as much as the rest
                        stamps[path[start:]] = _stamp(path)
        return stamps

    def _read_digests(self, names: Iterable[str]) -> dict[str, str]:
        """Return the SHA-256 of each file that is there, by its path below the root."""
        found = {}
        for name in names:
            # An upgrade may remove a file at this very moment.
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
                open(os.path.join(self._root, name), "rb") as file,
            ):
                found[name] = sha256_hex(file.read())
        return found


def _stamp(path: str) -> _Stamp:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return _GONE
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


@functools.cache
def loaded_installation() -> Installation:
    """Return this process's installation, as it was at the first call."""
    return Installation()


def check_as_parent() -> None:
    """Check in a child that the files are those of its parent, which has set ``HASH_VARIABLE``.

    Call it after the child's modules are imported.

    Raises:
        InstallationChanged: The files are not the parent's.
    """
    wanted = os.environ.get(HASH_VARIABLE)
    if wanted is not None:
        Installation().require(wanted, "the process that started this one")


def path_of_packages() -> dict[str, str]:
    """Return ``PYTHONPATH`` for a child if it needs this variable to find LLMPerf's packages.

    Children run with Python's option ``-P``, so they do not import from the working directory, where
    a stranger's ``json.py`` may lie. They need the variable if LLMPerf is not installed and this
    process found the packages through ``sys.path``, as with ``python -m llmperf`` in a clone.
    """
    folder = str(_ROOT)
    found = (os.path.realpath(entry or os.curdir) for entry in sys.path)
    if Path(folder).name in _SITE_FOLDERS or folder not in found:
        return {}
    others = [one for one in [os.environ.get("PYTHONPATH")] if one]
    return {"PYTHONPATH": os.pathsep.join([folder, *others])}
