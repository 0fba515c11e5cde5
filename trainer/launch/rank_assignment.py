"""Ranks and threads of the processes of a group, and a check of the paths that nodes must see.

Pure functions over facts of the nodes; ``ray.py`` places the processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The node on which a process runs.

    Attributes:
        node_id: Ray's id of the node.
        host: its host name.
        address: its IP address.
    """

    node_id: str
    host: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAssignment:
    """The rank and addresses of one process in its group.

    Attributes:
        rank: number of the process, from 0.
        world_size: number of processes of the group.
        local_rank: number of the GPU to use, of those that the process sees.
        address: IP address of the node of rank 0.
        port: port on which rank 0 listens.
        own_address: IP address of this process's node.
    """

    rank: int
    world_size: int
    local_rank: int
    address: str
    port: int
    own_address: str


def assign_ranks(nodes: Sequence[Node], *, port: int, sees_one_gpu: bool) -> list[RankAssignment]:
    """Return the rank assignment of each process, by rank.

    Args:
        nodes: the node of each process, by rank.
        port: a free port on the node of rank 0.
        sees_one_gpu: whether each process sees only its own GPU, as under Ray.
    """
    before: Counter[str] = Counter()
    assignments = []
    for rank, node in enumerate(nodes):
        assignments.append(
            RankAssignment(
                rank=rank,
                world_size=len(nodes),
                local_rank=0 if sees_one_gpu else before[node.node_id],
                address=nodes[0].address,
                port=port,
                own_address=node.address,
            )
        )
        before[node.node_id] += 1
    return assignments


def threads_of(
    node_ids: Sequence[str], resources: Mapping[str, Mapping[str, float]], kind: str
) -> list[int]:
    """Return how many threads each process may use: an equal share of the CPUs of its node.

    Args:
        node_ids: the node of each process.
        resources: Ray's resources of each node, by node id.
        kind: ``GPU`` or ``CPU``, the resource of which each process holds one. With ``GPU`` a
            node's CPUs are divided by all of its GPUs, including those that other jobs hold.

    >>> threads_of(["a", "a", "b"], {"a": {"CPU": 9}, "b": {"CPU": 4}}, "CPU")
    [4, 4, 4]
    >>> threads_of(["a"], {"a": {"CPU": 16, "GPU": 8}}, "GPU")
    [2]
    """
    here = Counter(node_ids)
    threads = []
    for node_id in node_ids:
        node = resources.get(node_id, {})
        num_shares = max(here[node_id], int(node.get("GPU", 0)) if kind == "GPU" else 1)
        threads.append(max(1, int(node.get("CPU", 1)) // num_shares))
    return threads


def check_sight(nodes: Sequence[Node], unseen: Sequence[Sequence[Path]]) -> None:
    """Check that all nodes see the paths that they need.

    Args:
        nodes: the node of each process.
        unseen: the paths that each process does not see.

    Raises:
        BadInput: A node does not see a path.
    """
    problems = sorted(
        {
            f"{path} (on {node.host})"
            for node, paths in zip(nodes, unseen, strict=True)
            for path in paths
        }
    )
    if problems:
        raise BadInput(
            f"not seen by all nodes of the training: {', '.join(problems)}: put it on a file "
            "system that all nodes mount at the same path"
        )
