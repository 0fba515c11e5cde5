"""The config tree for collecting on a cluster: that of one machine, plus the node ``cluster``."""

from __future__ import annotations

from pydantic import Field

from llmperf_common.config import Node
from workers.config import CollectConfig


class NodePool(Node):
    """Nodes with the same labels, and the device that their actors use."""

    labels: dict[str, str] = Field(
        {},
        description="Labels that a node must have (`ray start --labels`). A value is a label's "
        "value or one of Ray's selectors: `!A`, `in(A,B)`, `!in(A,B)`.",
    )
    device: str | None = Field(
        None,
        description="The device on these nodes, as --device takes it; unset: that of --device.",
    )


class ClusterConfig(Node):
    """Where actors run, and when a GPU is given up. No key here is part of the plan hash."""

    pools: tuple[NodePool, ...] = Field(
        (NodePool(),),
        min_length=1,
        description="Groups of nodes; a node belongs to the first group whose labels it has.",
    )
    device_classes: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="Device classes to plan for; unset: all that are found when the run begins.",
    )
    start_timeout_s: float = Field(
        120.0,
        gt=0,
        le=86_400,
        description="Seconds to wait for nodes with the labels of `cluster.pools`, and for "
        "actors to open their devices. Nodes and actors that come later still join.",
    )
    scan_interval_s: float = Field(
        10.0, gt=0, le=3600, description="Seconds between two searches for new and lost nodes."
    )
    restart_delay_s: float = Field(
        2.0, ge=0, le=3600, description="Seconds before a dead actor is started again."
    )
    max_restarts: int = Field(
        5,
        ge=0,
        le=1000,
        description="Drain a GPU (give it up for this run) when more than this many of its actors "
        "in a row die without finishing a task.",
    )
    drain_throttled_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Drain a GPU when more than this share of its samples is throttled, judged "
        "over at least two minutes and 500 samples.",
    )
    drain_sentinel_drift: float = Field(
        0.25,
        gt=0,
        le=10,
        description="Drain a GPU when its sentinel kernel takes longer than at first by more than "
        "this share (medians of 5 readings). CPU devices are not drained for this reason.",
    )
    drift_pause_s: float = Field(
        10.0,
        gt=0,
        le=3600,
        description="Seconds before a slot that is drained for drift is tried again, if no other "
        "slot of its device class collects. Each further pause is twice as long, up to 60 s.",
    )
    drift_patience_s: float = Field(
        1800.0,
        ge=0,
        le=604_800,
        description="Seconds for which the sentinel kernel of a slot drained for drift may stay "
        "too slow before the slot is given up.",
    )
    drain_faulty_tasks: int = Field(
        20,
        ge=2,
        le=10_000,
        description="Drain a GPU when this many tasks in a row have device faults and no good "
        "sample.",
    )


class ClusterCollectConfig(CollectConfig):
    """The whole tree of ``llmperf collect --cluster``."""

    cluster: ClusterConfig = ClusterConfig()
