"""Training on Ray: joins a cluster, places the processes of a training, and polls them.

The trainer's only module that imports Ray. A placement group holds the resources, and each process
is an actor. Ray itself restarts no process. The driver (the process that runs the command) restarts
them (``supervision.py``), so that the user sees every restart. All state of a training is in the
run's folder.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llmperf_common.config import ConfigError
from llmperf_common.errors import Exit, LlmperfError
from llmperf_common.extras import require
from llmperf_common.masking import public_url
from llmperf_common.ray_errors import short_reason
from llmperf_common.ray_sessions import OWN_ADDRESSES, joined_ray, own_ray
from llmperf_common.store.files.environment import store_settings
from trainer.config import ClusterConfig
from trainer.errors import Interrupted
from trainer.fit.interruption import interruption
from trainer.interface import Progress
from trainer.launch.job import TrainJob
from trainer.launch.rank_assignment import Node, assign_ranks, check_sight, threads_of
from trainer.launch.supervision import Gone, GroupLost, supervised
from trainer.launch.worker import Report, Worker
from trainer.life.identity import LANGUAGE_MODEL
from trainer.life.summary import RunSummary

ray: Any = require("ray", "cluster")
_scheduling: Any = require("ray.util.scheduling_strategies", "cluster")
_placement: Any = require("ray.util.placement_group", "cluster")

_QUIET_S: Final = 3.0
"""Seconds of waiting for free CPUs or GPUs, after which a progress line reports the waiting."""
_ANSWER_S: Final = 120.0
"""Timeout in seconds of an actor's first answer; until then it starts and imports the trainer."""


class ClusterTooSmall(LlmperfError):  # noqa: N818  (named for what is wrong)
    """The cluster has too few free CPUs or GPUs for the requested processes."""

    exit_code = Exit.NO_DEVICE


class RayUnreachable(LlmperfError, ValueError):  # noqa: N818  (named for what is wrong)
    """The Ray cluster cannot be joined or started."""

    exit_code = Exit.USAGE


def train_on_ray(job: TrainJob, num_workers: int, progress: Progress) -> RunSummary:
    """Train on a Ray cluster: that of the current Ray job, that of ``RAY_ADDRESS``, or a local one.

    Args:
        job: the training. Its paths become absolute; all nodes must see them.
        num_workers: number of processes. If the cluster has GPUs and ``train.device`` is not
            ``cpu``, each gets one GPU, otherwise one CPU.
        progress: receives the lines of rank 0, and one for each restart.

    Raises:
        ConfigError: Only one process can fit the model, or as in ``train``.
        RayUnreachable: There is no cluster at ``RAY_ADDRESS``.
        ClusterTooSmall: The processes could not be placed in time.
        BadInput: As in ``train``, or a node does not see a folder.
        FitFailed: As in ``train``, or processes died too often.
        Interrupted: A signal ended the training; the state is saved.
    """
    if job.config.model != LANGUAGE_MODEL:
        raise ConfigError(
            f"--cluster: model {job.config.model!r} is fitted by one process: leave --cluster out"
        )
    if num_workers < 1:
        raise ConfigError(f"--workers {num_workers}: give at least 1")
    config = job.config.cluster
    with _connected(num_workers), interruption() as asked:
        _check_out(job)
        placed = job.absolute()

        @contextlib.contextmanager
        def start() -> Iterator[_RayGroup]:
            with _reservation(num_workers, job, config, asked, progress) as reservation:
                group = _RayGroup(reservation, placed)
                try:
                    yield group
                finally:
                    group.kill()

        return supervised(start, max_restarts=config.max_restarts, progress=progress, asked=asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reservation:
    """The resources of the cluster that are held for one group.

    Attributes:
        group: Ray's placement group.
        on_gpu: whether each process has a GPU.
        num_threads: number of threads of each process, by bundle.
    """

    group: Any
    on_gpu: bool
    num_threads: Sequence[int]


class _Process(Worker):
    """A worker that also returns Ray's facts about its node."""

    def node(self) -> Node:
        """Return the node of this process."""
        return Node(
            node_id=ray.get_runtime_context().get_node_id(),
            host=os.uname().nodename,
            address=ray.util.get_node_ip_address(),
        )


class _RayGroup:
    """The actors of one start."""

    def __init__(self, reservation: _Reservation, job: TrainJob) -> None:
        self._reservation, self._job = reservation, job
        self._actors = [
            ray.remote(_Process)
            .options(
                num_cpus=0 if reservation.on_gpu else 1,
                num_gpus=1 if reservation.on_gpu else 0,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=_scheduling.PlacementGroupSchedulingStrategy(
                    reservation.group, placement_group_bundle_index=index
                ),
                runtime_env={"env_vars": _environment(num_threads)},
            )
            .remote()
            for index, num_threads in enumerate(reservation.num_threads)
        ]
        self._nodes: list[Node] = []
        self._questions: dict[int, Any] = {}

    def begin(self) -> int:
        """Start the training on all processes; return the step of the newest checkpoint.

        Raises:
            BadInput: A node does not see a folder.
            GroupLost: A process died.
        """
        nodes: list[Node] = self._answers([actor.node.remote() for actor in self._actors])
        # The ranks of a node are consecutive, so that neighbours exchange data within the node.
        order = sorted(range(len(nodes)), key=lambda index: nodes[index].node_id)
        self._actors = [self._actors[index] for index in order]
        self._nodes = [nodes[index] for index in order]
        paths = self._job.inputs()
        check_sight(
            self._nodes, self._answers([actor.unseen.remote(paths) for actor in self._actors])
        )
        (port,) = self._answers([self._actors[0].free_port.remote()])
        assignments = assign_ranks(self._nodes, port=port, sees_one_gpu=self._reservation.on_gpu)
        begun = [
            actor.begin.remote(self._job, assignment)
            for actor, assignment in zip(self._actors, assignments, strict=True)
        ]
        return int(self._answers(begun)[0])

    def poll(self) -> list[Report | Gone | None]:
        """Return each process's new report, or None if it has not answered yet; do not wait."""
        for rank, actor in enumerate(self._actors):
            if rank not in self._questions:
                self._questions[rank] = actor.report.remote()
        ready, _ = ray.wait(
            list(self._questions.values()), num_returns=len(self._actors), timeout=0
        )
        return [self._answer(rank, ready) for rank in range(len(self._actors))]

    def stop(self) -> None:
        """Ask all processes to save their state and end."""
        for actor in self._actors:
            actor.stop.remote()

    def kill(self) -> None:
        """Kill all processes."""
        for actor in self._actors:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(actor)

    def _answer(self, rank: int, ready: Sequence[Any]) -> Report | Gone | None:
        question = self._questions[rank]
        if question not in ready:
            return None
        del self._questions[rank]
        try:
            report = ray.get(question)
        except ray.exceptions.RayError as error:
            who = f"process {rank} on {self._nodes[rank].host}"
            return Gone(who=who, why=short_reason(error))
        assert isinstance(report, Report), report
        return report

    def _answers(self, questions: list[Any]) -> list[Any]:
        try:
            return list(ray.get(questions, timeout=_ANSWER_S))
        except ray.exceptions.RayError as error:
            raise GroupLost(f"a process cannot be started ({short_reason(error)})") from None


@contextlib.contextmanager
def _connected(num_workers: int) -> Iterator[None]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS", "")
    is_own = address in OWN_ADDRESSES
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_of_our_own(num_workers) if is_own else joined_ray(ray, address))
        except (ValueError, OSError, RuntimeError, ray.exceptions.RayError) as error:
            raise RayUnreachable(
                f"cannot start Ray here: {short_reason(error)}"
                if is_own
                else f"cannot join the Ray cluster at RAY_ADDRESS={public_url(address)!r}: "
                f"{short_reason(error)}: set RAY_ADDRESS to HOST:PORT of the cluster's head "
                "(default port 6379); the cluster must have this machine's versions of Ray and "
                "Python"
            ) from error
        yield


def _of_our_own(num_workers: int) -> contextlib.AbstractContextManager[None]:
    # Ray gets only as many CPUs as needed, because it starts an idle process for each CPU.
    return own_ray(ray, include_dashboard=False, num_cpus=min(num_workers, os.cpu_count() or 1))


@contextlib.contextmanager
def _reservation(
    num_workers: int,
    job: TrainJob,
    config: ClusterConfig,
    asked: threading.Event,
    progress: Progress,
) -> Iterator[_Reservation]:
    """Reserve a GPU (on few nodes) or a CPU (on many nodes) for each process."""
    on_gpu = job.config.train.device == "cuda" or (
        job.config.train.device == "auto" and ray.cluster_resources().get("GPU", 0) >= 1
    )
    kind = "GPU" if on_gpu else "CPU"
    group = _placement.placement_group(
        [{kind: 1}] * num_workers, strategy="PACK" if on_gpu else "SPREAD"
    )
    try:
        _await_placement(group, num_workers, kind, config.start_timeout_s, asked, progress)
        yield _Reservation(
            group=group, on_gpu=on_gpu, num_threads=_num_threads(group, num_workers, kind)
        )
    finally:
        with contextlib.suppress(ray.exceptions.RayError):
            _placement.remove_placement_group(group)


def _await_placement(
    group: Any,
    num_workers: int,
    kind: str,
    timeout_s: float,
    asked: threading.Event,
    progress: Progress,
) -> None:
    began_s, is_told = time.monotonic(), False
    while not group.wait(timeout_seconds=0.5):
        waited_s = time.monotonic() - began_s
        if asked.is_set():
            raise Interrupted(
                "interrupted before the training began; run the same command again to start it"
            )
        wanted = f"--workers {num_workers}: {num_workers} processes of 1 {kind} each"
        if waited_s > timeout_s:
            raise ClusterTooSmall(
                f"{wanted} could not be placed within {timeout_s:.0f} s; {_free(kind)}: ask for "
                "fewer workers, wait for other jobs to end, add nodes, or raise "
                "cluster.start_timeout_s"
            )
        if waited_s > _QUIET_S and not is_told:
            is_told = True
            progress(f"{wanted}: waiting up to {timeout_s:.0f} s for free {kind}s; {_free(kind)}")


def _free(kind: str) -> str:
    """Return a text with the total and free GPUs or CPUs of the cluster."""
    total = int(ray.cluster_resources().get(kind, 0))
    free = int(ray.available_resources().get(kind, 0))
    num_nodes = sum(bool(node["Alive"]) for node in ray.nodes())
    return f"the cluster has {total} {kind}s on {num_nodes} nodes, {free} of them free"


def _num_threads(group: Any, num_workers: int, kind: str) -> list[int]:
    node_of = _placement.placement_group_table(group)["bundles_to_node_id"]
    resources = {node["NodeID"]: node["Resources"] for node in ray.nodes()}
    return threads_of([node_of[index] for index in range(num_workers)], resources, kind)


def _environment(num_threads: int) -> dict[str, str]:
    threads = os.environ.get("OMP_NUM_THREADS", str(num_threads))
    return {**store_settings(os.environ), "OMP_NUM_THREADS": threads}


def _check_out(job: TrainJob) -> None:
    """Raise ConfigError if the run would be written into a Ray job's copy of the working folder."""
    if not job.out.is_absolute() and ray.get_runtime_context().runtime_env.get("working_dir"):
        raise ConfigError(
            f"--out {job.out}: the working directory of a Ray job is a copy that Ray deletes: give "
            "an absolute path"
        )
