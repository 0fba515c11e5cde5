"""A path that SQLite cannot open is refused before a run is begun there."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.ledger.locations import SQLITE, ledger_locations
from llmperf.exits import Exit
from llmperf_common.config import ConfigError
from tests.support.factories.dataset_factory import make_run

_LONGEST = 482 - len("/ledger")


def folder_of_length(base: Path, num_bytes: int) -> Path:
    """Return a new folder whose path has so many bytes."""
    folder = base
    while (left := num_bytes - len(str(folder)) - 1) > 0:
        folder /= "a" * (left if left < 200 else 100)
    folder.mkdir(parents=True)
    assert len(str(folder)) == num_bytes
    return folder


def test_the_longest_path_has_a_ledger(tmp_path: Path) -> None:
    out = folder_of_length(tmp_path, _LONGEST)
    run = make_run(plan_hash="p", num_tasks=1)
    location = ledger_locations(SQLITE, str(out), tmp_path / "state")(run)
    ledger = location.create(epoch=1, plan_hash="p", shards=[], done=[])
    ledger.close()
    again = location.open(1, "p")
    assert again is not None
    again.close()


@pytest.mark.parametrize("through_link", [False, True])
def test_a_longer_path_is_refused_first(tmp_path: Path, through_link: bool) -> None:
    """Before, ``cannot create the ledger …: free some space there``, after ``run.json`` was written."""
    out = folder_of_length(tmp_path, _LONGEST + 1)
    if through_link:
        (tmp_path / "short").symlink_to(out)  # SQLite opens what the link leads to
        out = tmp_path / "short"
    with pytest.raises(ConfigError, match=r"483 bytes.* choose a shorter path") as refused:
        ledger_locations(SQLITE, str(out), tmp_path / "state")
    assert refused.value.exit_code == Exit.USAGE
    assert list(out.iterdir()) == []
