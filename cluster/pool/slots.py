"""The slots, each the place of one actor: a GPU of a node or, in pools without GPUs, a node.

Owns the matching of nodes to pools by labels. Does no I/O: facts from Ray are passed in as values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cluster.config import NodePool

_LIST = re.compile(r"in\((?P<names>.*)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """A living node, as Ray describes it."""

    node_id: str
    host: str
    labels: Mapping[str, str] = field(default_factory=dict)
    num_gpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSlot:
    """The place of one actor; ``index`` is its number among its node's ``num_on_node`` slots."""

    node_id: str
    host: str
    index: int
    num_on_node: int
    on_gpu: bool
    device: str

    @property
    def name(self) -> str:
        """The slot's name in messages and metrics."""
        kind = "gpu" if self.on_gpu else "cpu"
        return f"{self.host}:{self.node_id[:6]}/{kind}{self.index}"


def slots_of(
    nodes: Sequence[ClusterNode], pools: Sequence[NodePool], *, device: str
) -> tuple[ActorSlot, ...]:
    """Return the slots of all nodes in pools: one per GPU or, in pools without GPUs, one per node.

    Args:
        nodes: nodes of the cluster.
        pools: pools in order; a node belongs to the first pool that matches.
        device: the selector for pools that name no device.

    >>> node = ClusterNode(node_id="a1", host="h", labels={"pool": "A"}, num_gpus=2)
    >>> pools = [NodePool(labels={"pool": "in(A,B)"})]
    >>> [slot.name for slot in slots_of([node], pools, device="auto")]
    ['h:a1/gpu0', 'h:a1/gpu1']
    """
    found: list[ActorSlot] = []
    placed = [
        (node, pool)
        for node in sorted(nodes, key=lambda one: (one.host, one.node_id))
        if (pool := next((one for one in pools if matches(node.labels, one.labels)), None))
    ]
    for node, pool in placed:
        on_gpus = any(other.num_gpus for other, its_pool in placed if its_pool is pool)
        num = node.num_gpus if on_gpus else 1
        found += [
            ActorSlot(
                node_id=node.node_id,
                host=node.host,
                index=index,
                num_on_node=num,
                on_gpu=on_gpus,
                device=pool.device or device,
            )
            for index in range(num)
        ]
    return tuple(found)


def matches(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether a node with ``labels`` matches every selector of ``wanted``.

    >>> matches({"pool": "A"}, {"pool": "!B"}), matches({}, {"pool": "A"})
    (True, False)
    """
    return all(_fulfils(labels.get(key), selector) for key, selector in wanted.items())


def unmatched_pools(
    nodes: Sequence[ClusterNode], pools: Sequence[NodePool]
) -> tuple[tuple[NodePool, str], ...]:
    """Return the pools to which no node belongs, each with a message for the operator."""
    there = sorted({f"{key}={value}" for node in nodes for key, value in node.labels.items()})
    known = ", ".join(there[:20]) or "none"
    return tuple(
        (
            pool,
            f"no node has the labels {_written(pool.labels)} (existing labels: {known}); "
            "start a node with `ray start --labels=...`, or change cluster.pools",
        )
        for pool in pools
        if not any(matches(node.labels, pool.labels) for node in nodes)
    )


def _fulfils(value: str | None, selector: str) -> bool:
    if selector.startswith("!"):
        return not _fulfils(value, selector[1:])
    names = _LIST.fullmatch(selector)
    allowed = [name.strip() for name in names["names"].split(",")] if names else [selector]
    return value in allowed


def _written(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items()) or "(any)"
