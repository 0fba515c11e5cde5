"""All use of Ray: connects to a cluster, lists nodes, starts actors on slots.

An actor stays on its node: the slots of a dead node are gone. Ray never restarts an actor, because
the pool does so and reports each restart. All other code uses the interface ``Runtime``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import ray  # noqa: TID251
from ray.util import metrics as ray_metrics  # noqa: TID251
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: TID251

from cluster.pool.reports import ActorReport, ActorSpec
from cluster.pool.runtime import ActorGone, ClusterAddressError
from cluster.pool.slots import ClusterNode
from cluster.ray.actor import CollectActor
from cluster.ray.head_watch import OWN_HEAD_S, head_watched, joined_head_s, own_raylet
from cluster.telemetry.metrics import METRICS, TAGS, Metric, MetricKind
from llmperf_common.masking import public_url
from llmperf_common.ray_errors import short_reason
from llmperf_common.ray_sessions import OWN_ADDRESSES, joined_ray, own_ray
from llmperf_common.store.files.environment import store_settings
from workers.corpus.read import Corpus

_ENVIRONMENT = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # Ray's GPU ids are NVML's indices, in this order
}


class RayRuntime:
    """The Ray cluster that this driver is connected to."""

    def __init__(self) -> None:
        self._corpora: dict[int, Any] = {}

    def nodes(self) -> tuple[ClusterNode, ...]:
        """Return the living nodes."""
        return tuple(
            ClusterNode(
                node_id=node["NodeID"],
                host=node["NodeManagerHostname"],
                labels=dict(node.get("Labels") or {}),
                num_gpus=int(node["Resources"].get("GPU", 0)),
            )
            for node in ray.nodes()  # type: ignore[no-untyped-call]
            if node["Alive"]
        )

    def start(self, spec: ActorSpec) -> RayActor:
        """Start an actor on its slot; the actor may have to wait until another job frees a GPU."""
        slot = spec.slot
        options: dict[str, Any] = {
            "num_cpus": 0,
            "num_gpus": 1 if slot.on_gpu else 0,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(slot.node_id, soft=False),
            "runtime_env": {"env_vars": {**store_settings(os.environ), **_ENVIRONMENT}},
        }
        return RayActor(_Actor.options(**options).remote(spec), self)

    def corpus_of(self, corpus: Corpus) -> Any:
        """Return the reference of a corpus, which is put into Ray's object store once."""
        if id(corpus) not in self._corpora:
            self._corpora[id(corpus)] = ray.put(corpus)
        return self._corpora[id(corpus)]


class RayActor:
    """The pool's handle on one actor; at most one request is pending."""

    def __init__(self, handle: Any, runtime: RayRuntime) -> None:
        self._handle = handle
        self._runtime = runtime
        self._question: Any = None

    def poll(self) -> ActorReport | ActorGone | None:
        """Return the actor's last report, None if no report is new; request the next report."""
        if self._question is None:
            self._question = self._handle.report.remote()
        ready, _ = ray.wait([self._question], timeout=0)
        if not ready:
            return None
        question, self._question = self._question, None
        try:
            report = ray.get(question)
        except ray.exceptions.RayActorError as error:
            return ActorGone(why=short_reason(error))
        except ray.exceptions.RayError as error:
            return ActorGone(why=f"{type(error).__name__}: {short_reason(error)}")
        assert isinstance(report, ActorReport), report
        return report

    def begin(self, corpus: Corpus, run_id: str) -> None:
        """Let the actor collect the run of this id."""
        self._handle.begin.remote(self._runtime.corpus_of(corpus), run_id)

    def stop(self, *, drop: bool) -> None:
        """Ask the actor to stop."""
        self._handle.stop.remote(drop=drop)

    def kill(self) -> None:
        """End the actor's process at once."""
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self._handle)


class RayMeter:
    """Exports metrics through the node's Ray agent to Prometheus, with the prefix ``ray_``."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}
        for metric in METRICS:
            keys = (*TAGS, *metric.tags)
            if metric.kind is MetricKind.HISTOGRAM:
                made: Any = ray_metrics.Histogram(
                    metric.name, metric.meaning, list(metric.boundaries), keys
                )
            else:
                kinds = {
                    MetricKind.COUNTER: ray_metrics.Counter,
                    MetricKind.GAUGE: ray_metrics.Gauge,
                }
                made = kinds[metric.kind](metric.name, metric.meaning, keys)
            self._made[metric.name] = made

    def add(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """Increase a counter."""
        if value > 0:
            self._made[metric.name].inc(value, tags=dict(tags))

    def set(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """Set a gauge."""
        self._made[metric.name].set(value, tags=dict(tags))

    def observe(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """Add a value to a histogram."""
        self._made[metric.name].observe(value, tags=dict(tags))


class _SlotActor(CollectActor):
    """``CollectActor`` with the ids that Ray gave it."""

    def __init__(self, spec: ActorSpec) -> None:
        context = ray.get_runtime_context()
        ids = [str(one) for one in ray.get_gpu_ids()]
        super().__init__(
            spec,
            ids,
            {
                "actor_id": context.get_actor_id() or "",
                "node_id": context.get_node_id(),
                "job_id": context.get_job_id(),
                "seat": spec.slot.name,
                "gpu_ids": ",".join(ids),
            },
            RayMeter(),
        )


_Actor: Any = ray.remote(_SlotActor)


@contextlib.contextmanager
def connected() -> Iterator[RayRuntime]:
    """Connect to the job's cluster or ``RAY_ADDRESS``; if there is neither, start Ray."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if ray.is_initialized():
        yield RayRuntime()
        return
    address = os.environ.get("RAY_ADDRESS", "")
    is_own = address in OWN_ADDRESSES
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_of_our_own() if is_own else joined_ray(ray, address))
        except (ValueError, OSError, RuntimeError, ray.exceptions.RayError) as error:
            raise ClusterAddressError(
                f"cannot start Ray here: {short_reason(error)}"
                if is_own
                else f"cannot join the Ray cluster at RAY_ADDRESS={public_url(address)!r}: "
                f"{short_reason(error)}: set RAY_ADDRESS to HOST:PORT of the cluster's head "
                "(default port 6379; http://… is for `ray job submit --address`); the cluster must "
                "have this machine's versions of Ray and Python"
            ) from error
        limit_s = OWN_HEAD_S if is_own else joined_head_s()
        head = ray.get_runtime_context().gcs_address
        stack.enter_context(
            head_watched(head, limit_s=limit_s, raylet=own_raylet() if is_own else None)
        )
        yield RayRuntime()


def _of_our_own() -> contextlib.AbstractContextManager[None]:
    # Ray starts an idle process for each CPU, and actors need none of them: announce few CPUs.
    return own_ray(ray, include_dashboard=False, num_cpus=min(4, os.cpu_count() or 1))
