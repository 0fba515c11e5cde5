"""What must hold at every moment of every schedule, and at its end.

Owns the invariants. It looks at the disk as a reader would, and remembers every commit that a ledger answered with
``Committed`` and every binding that a manifest has ever shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from llmperf_common.ids import sha256_hex
from llmperf_common.schemas import TABLES
from llmperf_common.store.manifests.manifest import Manifest, ShardEntry, parse_manifest
from llmperf_common.store.tables.shard import Footer
from tests.simulation.disk import Disk
from tests.simulation.scheduler import Violation


class Oracle:
    """Watches one schedule.

    Args:
        disk: its ``written`` and ``removed`` are taken.
        task_ids: of the plan, in order.
        read_footer: the shipped one, or one that remembers.
    """

    def __init__(
        self, disk: Disk, task_ids: Sequence[str], read_footer: Callable[[bytes, str], Footer]
    ) -> None:
        self._disk = disk
        self._task_ids = task_ids
        self._read_footer = read_footer
        self._committed: dict[str, str] = {}
        self._committed_in: dict[str, int] = {}
        self._rolled_back: set[int] = set()
        self._has_lost_manifests = False
        self._manifests: dict[str, Manifest] = {}
        self._bound: dict[str, ShardEntry] = {}
        self._listed: dict[str, ShardEntry] = {}
        self._verified: dict[str, bytes] = {}
        self._tasks: dict[str, tuple[str, ...]] = {}
        self.latest: Manifest | None = None
        self.ever_listed: set[str] = set()
        """Shards that some manifest has listed, be it removed since: who loses one of these has lost a result."""
        disk.written = self._written
        disk.removed = self._removed

    def committed(self, tasks: Sequence[int], shards: Sequence[ShardEntry], epoch: int) -> None:
        """A ledger has answered Committed."""
        name = shards[0].name
        for shard in shards:
            if self._disk.get(shard.name) is None:
                raise Violation("commit without a shard", shard.name)
        if epoch in self._rolled_back:
            return
        for task in tasks:
            task_id = self._task_ids[task]
            self._committed_in[task_id] = epoch
            before = self._committed.setdefault(task_id, name)
            if before != name:
                raise Violation("task committed twice", f"{task_id} in {before} and in {name}")
            bound = self._bound.get(task_id)
            if bound is not None and bound.name != name:
                raise Violation(
                    "task committed though published", f"{task_id} in {bound.name}, now in {name}"
                )

    def rolled_back(self, epoch: int) -> None:
        """A user has put an earlier state of a ledger in its place: what manifests list is final, its other commits are not."""
        self._rolled_back.add(epoch)
        self._forget_what_nothing_tells()

    def lost_manifests(self, names: Sequence[str]) -> None:
        """A user has removed manifests: what a ledger has committed stays final, if it was not rolled back."""
        self._has_lost_manifests = True
        for name in names:
            del self._manifests[name]
        self.latest = None
        self._bound, self._listed = {}, {}
        for name in sorted(self._manifests)[-1:]:
            self._note(self._manifests[name])
        self._forget_what_nothing_tells()

    def lost_shard(self, name: str) -> None:
        """A user has removed a shard that no manifest lists: its tasks are to be done again."""
        pair = {name.replace("samples/", "kernels/")}
        self._forget(task for task, shard in self._committed.items() if shard in pair)

    def _forget_what_nothing_tells(self) -> None:
        """Forget the commits that neither a ledger nor a manifest knows any more."""
        self._forget(
            task
            for task, epoch in self._committed_in.items()
            if epoch in self._rolled_back and task not in self._bound
        )

    def _forget(self, tasks: Iterable[str]) -> None:
        for task in list(tasks):
            self._committed.pop(task, None)
            self._committed_in.pop(task, None)

    def check_end(self) -> None:
        """All is quiet: every task is in the dataset once, and nothing else is."""
        missing = [task for task in self._task_ids if task not in self._bound]
        if missing:
            raise Violation("task lost", ", ".join(missing))
        for entry in self._listed.values():
            self._check_shard(entry, "the last manifest")
        on_disk = {
            f"{table}/{name}" for table in TABLES for name in self._disk.folders.get(table, {})
        }
        if on_disk != set(self._listed):
            raise Violation(
                "glob is not the manifest",
                f"only on disk {sorted(on_disk - set(self._listed))}, "
                f"only listed {sorted(set(self._listed) - on_disk)}",
            )
        if not any(name.startswith("devices/") for name in self._listed):
            raise Violation("device not listed", "samples without their device")

    def _written(self, name: str, data: bytes) -> None:
        if name.startswith("manifest-"):
            self._check_manifest(parse_manifest(data, name, self._segment), name)

    def _segment(self, name: str) -> bytes:
        data = self._disk.get(name)
        if data is None:
            raise Violation("manifest without its segment", name)
        return data

    def _removed(self, name: str) -> None:
        self._manifests.pop(name, None)  # a version that its publisher does not keep
        if name in self._listed:
            raise Violation("listed shard removed", name)
        if name in self._committed.values():
            raise Violation("committed shard removed", name)

    def _check_manifest(self, manifest: Manifest, name: str) -> None:
        before = self.latest
        if before is not None:
            is_next = manifest.version == before.version + 1
            # Its publisher may have read another version a moment before that was removed.
            if not is_next and not self._has_lost_manifests:
                raise Violation("manifest overwritten", f"{name} after version {before.version}")
            if manifest.epoch < before.epoch and not self._has_lost_manifests:
                raise Violation("epoch went back", f"{name}: {manifest.epoch} < {before.epoch}")
        bound: dict[str, ShardEntry] = {}
        for entry in manifest.shards:
            self._check_shard(entry, name)
            if entry.table != "kernels":
                continue
            if entry.name.replace("kernels/", "samples/") not in manifest.shard_names:
                raise Violation("half a pair", f"{name} lists {entry.name} without its samples")
            for task in self._tasks[entry.name]:
                if task in bound:
                    raise Violation(
                        "task doubled", f"{name}: {task} in {bound[task].name} and {entry.name}"
                    )
                bound[task] = entry
        self._check_bindings(bound, manifest, name)
        self._manifests[name] = manifest
        self.ever_listed |= manifest.shard_names
        if before is None or manifest.version > before.version:
            self._note(manifest)

    def _note(self, manifest: Manifest) -> None:
        self.latest = manifest
        self._bound = {
            task: entry
            for entry in manifest.of_table("kernels")
            for task in self._tasks[entry.name]
        }
        self._listed = {entry.name: entry for entry in manifest.shards}

    def _check_bindings(self, bound: dict[str, ShardEntry], manifest: Manifest, name: str) -> None:
        before = self.latest
        for task, entry in self._bound.items():
            # With its manifest goes what bound a task that no ledger has ever committed: a rebuild had adopted its shard.
            if bound.get(task) != entry and not self._has_lost_manifests:
                raise Violation("published result changed", f"{name}: {task} was in {entry.name}")
        saved = before is not None and manifest.epoch > before.epoch
        for task, entry in bound.items():
            if task not in self._bound and saved:
                met = "commit saved" if task in self._committed else "orphan adopted"
                self._disk.coverage[met] += 1
            shard = self._committed.get(task, entry.name)
            if shard != entry.name:
                raise Violation(
                    "committed result replaced", f"{name}: {task} of {shard} is in {entry.name}"
                )

    def _check_shard(self, entry: ShardEntry, where: str) -> None:
        data = self._disk.get(entry.name)
        if data is None:
            raise Violation("listed shard missing", f"{where}: {entry.name}")
        if self._verified.get(entry.name) is data:
            return
        if sha256_hex(data) != entry.sha256 or len(data) != entry.bytes:
            raise Violation("listed shard differs", f"{where}: {entry.name}")
        self._tasks[entry.name] = tuple(
            task for task, _ in self._read_footer(data, entry.name).tasks
        )
        self._verified[entry.name] = data
