"""Removal of this host's paths from compiler logs and tracebacks before they are stored in rows.

Rows are published, but user names and folders of the host are private. Decides what counts as a
path: an absolute path whose first part is a folder in the root of a host. The last part stays,
because it names the file. ``llmperf_common/store/tables/rows.py`` applies this rule.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

_USUAL_FOLDERS = frozenset(
    {
        "bin", "boot", "data", "dev", "etc", "home", "lib", "lib32", "lib64", "media", "mnt", "nix", "opt", "private",
        "proc", "root", "run", "sbin", "scratch", "snap", "srv", "sys", "tmp", "usr", "var", "work", "Users", "Volumes",
    }
)  # fmt: skip
_END = r"\s\"'`<>|:;,()\[\]{}\x00"


def without_host_paths(text: str) -> str:
    """Return ``text`` with absolute paths shortened to their last part.

    >>> without_host_paths("/home/ann/.cache/pocl/tempfile-1.cl:3:1: error: x /= a/b")
    'tempfile-1.cl:3:1: error: x /= a/b'
    >>> without_host_paths("Options used: -I /usr/lib/python3/cl -I/opt/x")
    'Options used: -I cl -Ix'
    """
    return _paths().sub(_last_part, text) if "/" in text else text


def _last_part(found: re.Match[str]) -> str:
    return found[0].rstrip("/").rpartition("/")[2]


@cache
def _paths() -> re.Pattern[str]:
    try:
        here = frozenset(os.listdir("/"))
    except OSError:
        here = frozenset()
    home = frozenset(Path.home().parts[1:2])
    first = "|".join(sorted(map(re.escape, _USUAL_FOLDERS | here | home), key=len, reverse=True))
    return re.compile(
        rf"(?:(?<![\w.\])/])|(?<=-[IL]))/+(?:{first})/(?=[^{_END}]*[^/{_END}])[^{_END}]*+"
    )
