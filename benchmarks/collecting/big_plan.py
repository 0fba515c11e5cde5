"""What a plan of ten million tasks costs driver and workers: seconds until ready, and memory.

``python -m benchmarks.collecting.big_plan [--kernels 20000] [--classes 500] [--done 200000]
[--source-bytes 2000] [--out FILE.csv]``

Each part is a process of its own, and the imports count. The parts:

* the driver reads the corpus, makes the plan and joins a fresh folder;
* a worker joins, attaches to a fresh Redis ledger, claims and commits;
* a worker finds the server empty and rebuilds the ledger of a dataset with ``--done`` finished
  tasks;
* another worker attaches to the rebuilt ledger;
* the driver makes the final count of that dataset.

The shards of the finished tasks are as large as recorded shards (27 tasks of 68 rows); their rows
repeat. Peak memory is the count of the Linux kernel (VmHWM).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from cluster.ledger.redis import redis_locations
from llmperf_common import ids
from llmperf_common.ledger.attach import LedgerLocation
from llmperf_common.ledger.holder import this_process
from llmperf_common.ledger.protocol import Committed
from llmperf_common.records import Kernel
from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.manifests.manifest import ShardEntry
from llmperf_common.store.manifests.run import read_run
from llmperf_common.store.tables.reader import open_dataset
from llmperf_common.store.tables.rows import kernels_table, samples_table
from llmperf_common.store.tables.shard import Footer, encode_results, encode_table, write_shard
from tests.support.factories.dataset_factory import (
    good_outcome,
    make_device,
    make_kernel,
    make_result,
    make_signature,
    publish_entries,
)
from tests.support.servers.redis_server import RedisServer
from workers.collect.joining import attach_ledger, join_plan
from workers.collect.loop_interfaces import EndReason
from workers.collect.summary import summarise
from workers.config import CollectConfig
from workers.corpus.read import Corpus, corpus_sha256, read_corpus, write_corpus
from workers.plan.plan import Plan

_TASKS_A_SHARD, _ROWS_A_TASK = 27, 68
_CLAIM_AHEAD = 38
_PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


def peak_mib() -> float:
    """Return the peak of this process's resident memory, in MiB."""
    found = _PEAK.search(Path("/proc/self/status").read_text(encoding="utf-8"))
    assert found is not None, "Linux tells it"
    return int(found.group(1)) / 1024


@contextmanager
def told(part: str, rows: list[dict[str, object]]) -> Iterator[None]:
    """Add a row with the seconds that the body took and the peak memory at its end."""
    began_s = time.monotonic()
    yield
    seconds = round(time.monotonic() - began_s, 2)
    rows.append({"part": part, "seconds": seconds, "peak_mib": round(peak_mib(), 1)})


def big_corpus(num_kernels: int, source_bytes: int) -> Corpus:
    """Return ``num_kernels`` different kernels with sources of ``source_bytes`` bytes."""
    signature = make_signature()
    kernels = []
    for number in range(num_kernels):
        source = f"// {number}\n".ljust(source_bytes, "x")
        identifier = ids.kernel_id(name=f"k{number}", source=source, build_options="")
        kernels.append(
            Kernel(
                kernel_id=identifier,
                name=f"k{number}",
                source=source,
                source_sha256=ids.sha256_hex(source.encode()),
                path=f"big/k{number}.cl",
                suite="big",
                family_id=identifier,
                build_options="",
                signature=signature,
                failure=None,
            )
        )
    kernels.sort(key=lambda one: one.kernel_id)
    return Corpus(kernels=tuple(kernels), sha256=corpus_sha256(kernels))


def joined(work: Path, folder: str, num_classes: int) -> tuple[PosixFilesystem, Plan]:
    """Join a dataset folder with one device of each class (a worker has one class)."""
    fs = PosixFilesystem(work / folder)
    devices = [make_device(i, f"class{i:04d}") for i in range(num_classes)]
    return fs, join_plan(fs, read_corpus(work / "corpus.parquet"), CollectConfig(), devices)


def ledger_location_of(fs: PosixFilesystem, url: str) -> LedgerLocation:
    """Return where the run's ledgers are."""
    run = read_run(fs)
    assert run is not None, "it was joined"
    return redis_locations(url)(run)


def driver(work: Path, classes: int, url: str, rows: list[dict[str, object]]) -> None:
    """Make the plan and the folder."""
    del url
    with told("driver: read corpus, make the plan, join a fresh folder", rows):
        joined(work, "fresh", classes)


def worker(work: Path, classes: int, url: str, rows: list[dict[str, object]]) -> None:
    """Join the folder, attach to a fresh ledger, take some tasks and commit some."""
    del classes
    with told("worker: read corpus, join, attach to a fresh ledger", rows):
        fs, plan = joined(work, "fresh", 1)
        ledger = attach_ledger(fs, ledger_location_of(fs, url), plan, who="benchmark")
    with told("worker: claim 38 tasks, commit 27", rows):
        leases = ledger.claim(
            holder=this_process(), tasks=plan.tasks_of_class("class0000"), limit=_CLAIM_AHEAD, ttl_s=60
        )  # fmt: skip
        mine = leases[:_TASKS_A_SHARD]
        outcomes = [good_outcome(0, row) for row in range(_ROWS_A_TASK)]
        device = make_device(0, "class0000")
        results = [
            make_result(
                plan.task(one.task).kernel, outcomes, device=device, plan_hash=plan.plan_hash
            )
            for one in mine
        ]
        files = encode_results(
            "first",
            results,
            [one.token for one in mine],
            plan_hash=plan.plan_hash,
            epoch=ledger.epoch,
        )
        shards = [write_shard(fs, one) for one in files]
        assert ledger.commit(shards=shards, leases=mine) == Committed()
        assert ledger.counts(range(plan.num_tasks)).done == len(mine)


def rebuild(work: Path, classes: int, url: str, rows: list[dict[str, object]]) -> None:
    """Attach to a dataset with finished tasks whose ledger the server does not have."""
    del classes
    with told("worker: read corpus, join, rebuild the ledger of finished tasks", rows):
        fs, plan = joined(work, "finished", 1)
        ledger = attach_ledger(fs, ledger_location_of(fs, url), plan, who="benchmark")
    num_done = ledger.counts(range(plan.num_tasks)).done
    assert num_done == open_dataset(fs).num_tasks, "all that is finished"


def again(work: Path, classes: int, url: str, rows: list[dict[str, object]]) -> None:
    """Attach to the rebuilt ledger and count rows by status: the start of another worker."""
    del classes
    with told("worker: read corpus, join, attach to that ledger", rows):
        fs, plan = joined(work, "finished", 1)
        attach_ledger(fs, ledger_location_of(fs, url), plan, who="benchmark")
    with told("worker: rows by status at its start", rows):
        open_dataset(fs).status_counts()


def final_count(work: Path, classes: int, url: str, rows: list[dict[str, object]]) -> None:
    """Compare the dataset with the plan."""
    del url
    fs, plan = joined(work, "finished", classes)
    with told("driver: final count of finished tasks (summarise)", rows):
        summarise(fs, plan, [], EndReason.INTERRUPTED, seconds=0.0)


def finish_tasks(work: Path, classes: int, num_done: int) -> None:
    """Write a dataset in which the first tasks of the plan are finished."""
    fs, plan = joined(work, "finished", classes)
    outcomes = [good_outcome(0, row) for row in range(_ROWS_A_TASK)]
    result = make_result(make_kernel(), outcomes, device=make_device(0, "class0000"))
    kernels = kernels_table([result] * _TASKS_A_SHARD)
    samples = samples_table([result] * _TASKS_A_SHARD)
    entries = []
    for first in range(0, num_done, _TASKS_A_SHARD):
        tasks = [plan.task(i) for i in range(first, min(num_done, first + _TASKS_A_SHARD))]
        footer = Footer(
            plan_hash=plan.plan_hash, epoch=1, tasks=tuple((one.task_id, 1) for one in tasks)
        )
        columns = {
            "task_id": [one.task_id for one in tasks],
            "kernel_id": [one.kernel.kernel_id for one in tasks],
            "device_class": [one.device_class.name for one in tasks],
        }
        for name, table, each in (("kernels", kernels, 1), ("samples", samples, _ROWS_A_TASK)):
            table = table.slice(0, each * len(tasks))  # noqa: PLW2901
            for column, values in columns.items():
                spread = pa.array([value for value in values for _ in range(each)])
                place = table.schema.get_field_index(column)
                table = table.set_column(place, table.schema.field(column), spread)  # noqa: PLW2901
            data = encode_table(table, footer)
            path = f"{name}/e000001-big-{first:09d}.parquet"
            (fs.root / name).mkdir(exist_ok=True)
            (fs.root / path).write_bytes(data)
            entries.append(ShardEntry.of(path, data, rows=table.num_rows, tasks=len(tasks)))
    publish_entries(fs, entries, plan_hash=plan.plan_hash)


PARTS: dict[str, Callable[[Path, int, str, list[dict[str, object]]], None]] = {
    "driver": driver,
    "worker": worker,
    "rebuild": rebuild,
    "again": again,
    "final_count": final_count,
}


def measure(work: Path, part: str, classes: int, url: str) -> list[dict[str, object]]:
    """Run one part in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.collecting.big_plan", "--classes", str(classes)]
    command += ["--part", part, "--work", str(work), "--url", url]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: list[dict[str, object]] = json.loads(out)
    for row in found:
        print(f"{row['part']:70} {row['seconds']:8} s  {row['peak_mib']:8} MiB", flush=True)
    return found


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kernels", type=int, default=20_000)
    parser.add_argument("--classes", type=int, default=500)
    parser.add_argument("--done", type=int, default=200_000)
    parser.add_argument("--source-bytes", type=int, default=2000)
    parser.add_argument("--out", type=Path, metavar="FILE.csv")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        rows: list[dict[str, object]] = []
        PARTS[given.part](given.work, given.classes, given.url, rows)
        print(json.dumps(rows))
        return 0
    runs = Path.cwd() / "runs"  # a real disk
    runs.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=runs, prefix="big-plan-") as folder:
        work = Path(folder)
        write_corpus(work / "corpus.parquet", big_corpus(given.kernels, given.source_bytes))
        server = RedisServer(work / "redis")
        try:
            found = measure(work, "driver", given.classes, server.url)
            client = server.client()
            before = int(client.info("memory")["used_memory"])
            found += measure(work, "worker", given.classes, server.url)
            if given.done:
                finish_tasks(work, given.classes, given.done)
                for part in ("rebuild", "again", "final_count"):
                    found += measure(work, part, given.classes, server.url)
            grown = (int(client.info("memory")["used_memory"]) - before) / 2**20
            found.append({"part": "server: grown", "seconds": "", "peak_mib": round(grown, 2)})
        finally:
            server.kill()
    print(f"server grown by {grown:.2f} MiB; load {os.getloadavg()[0]:.1f}")
    if given.out:
        with given.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ("kernels", "classes", "done", *found[0]))
            writer.writeheader()
            shape = {"kernels": given.kernels, "classes": given.classes, "done": given.done}
            writer.writerows(shape | row for row in found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
