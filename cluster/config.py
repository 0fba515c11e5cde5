"""The config tree of collecting on a cluster: that of one machine, and ``cluster``."""

from __future__ import annotations

from pydantic import Field

from llmperf_common.config import Node
from workers.config import CollectConfig


class NodePool(Node):
    """Nodes with the same labels, and the device that their actors use."""

    labels: dict[str, str] = Field(
        {},
        description="Labels that a node must have (`ray start --labels`); a value is taken as it is, or as Ray's "
        "selectors write it: `!A`, `in(A,B)`, `!in(A,B)`.",
    )
    device: str | None = Field(
        None, description="As --device takes it, on these nodes; unset: what --device says."
    )


class ClusterConfig(Node):
    """Where actors run, and when one is given up. None of it enters the plan hash."""

    pools: tuple[NodePool, ...] = Field(
        (NodePool(),),
        min_length=1,
        description="Groups of nodes; a node belongs to the first whose labels it has.",
    )
    device_classes: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="Device classes to plan for; unset: all that are found when a run begins.",
    )
    start_timeout_s: float = Field(
        120.0,
        gt=0,
        le=86_400,
        description="Wait so long for nodes with the labels and for actors to open their devices; later ones still join.",
    )
    scan_interval_s: float = Field(
        10.0, gt=0, le=3600, description="Look for new nodes and for ones that are gone this often."
    )
    restart_delay_s: float = Field(
        2.0, ge=0, le=3600, description="Start a dead actor again after this long."
    )
    max_restarts: int = Field(
        5,
        ge=0,
        le=1000,
        description="Deaths of a GPU's actor in a row, without a finished task between them, after which the GPU is drained.",
    )
    drain_throttled_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Drain a GPU when more than this share of its samples was throttled, over two minutes and 500 samples at least.",
    )
    drain_sentinel_drift: float = Field(
        0.25,
        gt=0,
        le=10,
        description="Drain a GPU when its sentinel kernel takes longer by this share than at first (medians of 5); CPU devices are not drained for it.",
    )
    drift_pause_s: float = Field(
        10.0,
        gt=0,
        le=3600,
        description="Where no other slot of its device class collects, try a slot that is drained for drift again after so long, then after twice as long, up to 60 s.",
    )
    drift_patience_s: float = Field(
        1800.0,
        ge=0,
        le=604_800,
        description="Give that slot up when its sentinel has not been within the limit for so long.",
    )
    drain_faulty_tasks: int = Field(
        20,
        ge=2,
        le=10_000,
        description="Drain a GPU when this many tasks in a row ended by device faults without any good sample.",
    )


class ClusterCollectConfig(CollectConfig):
    """The whole tree of ``llmperf collect --cluster``."""

    cluster: ClusterConfig = ClusterConfig()
