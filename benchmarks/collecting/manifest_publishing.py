"""Cost of publishing a version of a dataset with many shards: time, bytes written, folder size.

``python -m benchmarks.collecting.manifest_publishing [--shards 10000 100000] [--each 8] [--versions
40] [--out FILE.csv]``

For each number of shards a folder gets a manifest that lists this number of shards. The manifest
has entries only, because publishing opens no shard. Then ``--versions`` further versions are
published, each with ``--each`` new shards, as a publisher does with the shards that the ledger
reports. The time of reading is that of a fresh process, which has no part of the list in memory.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.manifests.manifest import Manifest, ShardEntry
from llmperf_common.store.manifests.publish import publish

_READ = """
import sys, time
from pathlib import Path
from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.manifests.manifest import latest_manifest
began_s = time.perf_counter()
found = latest_manifest(PosixFilesystem(Path(sys.argv[1])))
print(len(found.shards), time.perf_counter() - began_s)
"""


class Counting(PosixFilesystem):
    """Counts the bytes of the files that are created."""

    num_written = 0

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create a file."""
        self.num_written += len(data)
        return super().put_if_absent(name, data)


def entries(first: int, count: int) -> list[ShardEntry]:
    """Return pairs of entries, as long as real ones."""
    found = []
    for number in range(first, first + count, 2):
        for table in ("kernels", "samples"):
            name = f"{table}/e000001-host-name-12345-{number:012x}.parquet"
            found.append(ShardEntry.of(name, name.encode(), rows=1836, tasks=27))
    return found


def measure(num_shards: int, each: int, versions: int) -> dict[str, object]:
    """Return the row for ``num_shards`` shards."""
    with tempfile.TemporaryDirectory() as folder:
        fs = Counting(Path(folder))
        publish(fs, entries(0, num_shards), plan_hash="p", epoch=1)
        times_ms = []
        fs.num_written = 0
        keep: Manifest | None = None
        for version in range(versions):
            new = entries(num_shards + version * each, each)
            began_s = time.perf_counter()
            found = publish(fs, new, plan_hash="p", epoch=1)
            times_ms.append((time.perf_counter() - began_s) * 1e3)
            assert isinstance(found, Manifest)
            keep = found  # a publisher keeps it, too
        assert keep is not None
        done = subprocess.run(
            [sys.executable, "-c", _READ, folder], capture_output=True, text=True, check=True
        )
        listed, read_s = done.stdout.split()
        assert int(listed) == len(keep.shards)
        files = list(Path(folder).rglob("*.json"))
        return {
            "shards": num_shards,
            "new_shards_a_version": each,
            "versions": versions,
            "publish_median_ms": round(statistics.median(times_ms), 1),
            "publish_max_ms": round(max(times_ms), 1),
            "kb_written_a_version": round(fs.num_written / versions / 1e3, 1),
            "read_whole_list_ms": round(float(read_s) * 1e3),
            "files_left": len(files),
            "mb_left": round(sum(path.stat().st_size for path in files) / 1e6, 2),
        }


def main() -> None:
    """Measure and print, or write a CSV."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--each", type=int, default=8)
    parser.add_argument("--versions", type=int, default=40)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = [measure(count, given.each, given.versions) for count in given.shards]
    with given.out.open("w", newline="") if given.out else sys.stdout as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
