"""A Ray cluster for tests: real raylets of several nodes on this machine, with fictitious GPUs."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from ray._common.utils import get_default_ray_temp_dir  # noqa: TID251
from ray._private.utils import write_ray_address  # noqa: TID251
from ray.cluster_utils import Cluster  # noqa: TID251

_MEMORY_BYTES = 100 * 2**20


@contextlib.contextmanager
def nodes_started(*nodes: dict[str, Any], dashboard_port: int | None = None) -> Iterator[Cluster]:
    """Start a head without resources and ``nodes`` (``num_gpus``, ``labels``).

    The cluster's ``.address`` is the address of the head. With a ``dashboard_port``, jobs can be
    submitted there. Each cluster has its own temporary folder with a file that names the cluster's
    address, and Ray gives this address to a job's driver. Without the file, or with a shared
    folder, a job could join the cluster of another test. ``Cluster`` writes the file only to the
    usual folder, and does not create that folder.
    """
    with_dashboard = {
        "include_dashboard": True,
        "dashboard_port": dashboard_port,
        "dashboard_agent_listen_port": free_port(),  # another cluster may have the default port
    }
    with tempfile.TemporaryDirectory(
        prefix="ray", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        usual = Path(get_default_ray_temp_dir())
        if not usual.exists():
            usual.mkdir(parents=True)
            usual.chmod(0o1777)  # clusters of other users also write there
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 1,
                "num_gpus": 0,
                "labels": {"role": "head"},
                "object_store_memory": _MEMORY_BYTES,
                "temp_dir": folder,
                **(with_dashboard if dashboard_port else {"include_dashboard": False}),
            },
        )
        try:
            write_ray_address(cluster.address, folder)
            for node in nodes:
                cluster.add_node(num_cpus=1, object_store_memory=_MEMORY_BYTES, **node)
            cluster.wait_for_nodes()
            yield cluster
        finally:
            cluster.shutdown()


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
