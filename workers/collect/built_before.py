"""Find a task whose kernel was once built for this dataset, to test whether this machine can build.

A kernel that could be built then must build now; otherwise this machine is at fault.
``pipeline.py`` builds it.
"""

from __future__ import annotations

import pyarrow.compute as pc

from llmperf_common.store.files.filesystem import Filesystem
from llmperf_common.store.manifests.manifest import latest_manifest
from llmperf_common.store.tables.reader import open_dataset
from workers.plan.plan import Plan, Task
from workers.plan.task_index import TaskIndex


def a_built_task(fs: Filesystem, plan: Plan, device_class: str) -> Task | None:
    """Return a finished task of the device class whose kernel was built; None if there is none."""
    if latest_manifest(fs) is None:
        return None
    columns = ["task_id", "device_class", "build"]
    for table in open_dataset(fs).iter_table("kernels", columns):
        binaries = pc.struct_field(table.column("build"), "binary_sha256")
        is_ours = pc.equal(table.column("device_class"), device_class)
        found = table.filter(pc.and_(is_ours, pc.is_valid(binaries)))
        if found.num_rows:
            return plan.task(TaskIndex(plan).index_of(found.column("task_id")[0].as_py()))
    return None
