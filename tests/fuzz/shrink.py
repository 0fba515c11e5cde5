"""Make a failing source small: leave out what it fails without."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tests.fuzz.mutate import tokens


def shrunk(text: str, fails: Callable[[str], bool], *, seconds: float) -> str:
    """Return the smallest source found that still fails: fewer lines first, then fewer tokens."""
    deadline_s = time.monotonic() + seconds
    text = _fewer(text.splitlines(keepends=True), fails, deadline_s)
    return _fewer(tokens(text), fails, deadline_s)


def _fewer(pieces: Sequence[str], fails: Callable[[str], bool], deadline_s: float) -> str:
    """Delta debugging: leave out ever smaller runs of pieces, as long as it fails without them."""
    kept = list(pieces)
    run = max(1, len(kept) // 2)
    while kept and time.monotonic() < deadline_s:
        start, smaller = 0, False
        while start < len(kept) and time.monotonic() < deadline_s:
            candidate = kept[:start] + kept[start + run :]
            if fails("".join(candidate)):
                kept, smaller = candidate, True
            else:
                start += run
        if run == 1 and not smaller:
            break
        run = max(1, run // 2)
    return "".join(kept)
