"""The limits of a run on its device, with values for the keys that the configuration leaves open.

Owns the values that differ between a GPU and a CPU device. A GPU's time is scarce, and its faults
destroy the context. A CPU device's work competes with LLMPerf's own for the same cores.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from workers.config import CollectConfig
from workers.sandbox.processors import FEWEST_PROCESSORS, num_set_aside
from workers.timing_rule import WALL_BUDGET_FACTOR

GPU_RUN_CHILDREN = 6
"""Number of run children of a GPU: one holds the device, one has loaded a program and waits, one
loads a program, and the others start after faults. A start takes 1.8 s if one GPU of the host is at
work, and 5 s if three other GPUs are at work, too (H200)."""
_FEW_RUN_CHILDREN = 4
"""Number of run children of a GPU on a host with so few processors that starting children would
slow down the timing."""
_CPU_RUN_CHILDREN = 4
"""Maximum number of run children of a CPU device, which are started together, each for one task.
One at a time is at work."""
_GPU_CONFIG_TIMEOUT_S = 2.0
_GPU_SPIN_TIMEOUT_S = 0.75
"""Smallest value of ``Limits.spin_timeout_s`` on a GPU."""
_SPIN_SLACK = 1.2
"""Ratio of ``spin_timeout_s`` to the longest time that a correct config may take."""
_LAUNCHES_OF_A_LONG_CONFIG = 11
"""Number of launches of a config that may each last ``timing.max_launch_ms``: the first, one warm,
three cold, and those of the payload checks."""
_CPU_CONFIG_TIMEOUT_S = 30.0
_MOST_GPU_COMPILERS = 4
"""Maximum number of compile children of a GPU, each of which has a context on the card. Four are
enough, because a build takes 0.1 s and a task takes several times as long."""
_MOST_GPU_ANALYSERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on the cost of one kernel, and the number of child processes of each kind.

    Fields are named like the keys in ``limits`` and ``ledger`` that set them. Keys that the user
    leaves open get the value for this device.

    ``spin_timeout_s`` has no key: seconds after which a run child is killed that has been silent in
    a config, if it uses its processor all the time. NVIDIA's driver waits for a launch in this way.
    A child that waits for anything else, such as the driver's lock, is given ``config_timeout_s``.
    """

    build_timeout_s: float
    analysis_timeout_s: float
    work_timeout_s: float
    config_timeout_s: float
    spin_timeout_s: float
    task_timeout_s: float
    task_budget_s: float | None
    deaths_to_quarantine: int
    faults_to_end_strategy: int
    num_compile_children: int
    num_analysis_children: int
    num_run_children: int
    claim_ahead: int


def limits_on(config: CollectConfig, *, gpu: bool, shared: bool) -> Limits:
    """Return the limits for one device.

    Args:
        config: the user's configuration.
        gpu: whether the device is a GPU.
        shared: whether several run children may have a task (one of them launches at a time);
            otherwise one has a task, and the others have only started.
    """
    given = config.limits
    timing = config.timing
    honest_ms = _LAUNCHES_OF_A_LONG_CONFIG * timing.max_launch_ms
    honest_ms += WALL_BUDGET_FACTOR * timing.sample_budget_ms
    timeout_s = max(_GPU_CONFIG_TIMEOUT_S if gpu else _CPU_CONFIG_TIMEOUT_S, honest_ms / 1e3)
    config_timeout_s = given.config_timeout_s or timeout_s
    spin_timeout_s = config_timeout_s
    if gpu and given.config_timeout_s is None:
        spin_timeout_s = min(timeout_s, max(_GPU_SPIN_TIMEOUT_S, _SPIN_SLACK * honest_ms / 1e3))
    processors = len(os.sched_getaffinity(0))
    compilers = analysers = 1
    if gpu:
        compilers = max(1, min(_MOST_GPU_COMPILERS, processors // 4))
        beside_timing = max(1, processors // 2, processors - num_set_aside(processors))
        analysers = min(_MOST_GPU_ANALYSERS, beside_timing)
    compilers = given.compile_children or compilers
    analysers = given.compile_children or analysers
    has_many = processors >= FEWEST_PROCESSORS
    run_children = (GPU_RUN_CHILDREN if has_many else _FEW_RUN_CHILDREN) if shared else 1
    claim_ahead = config.ledger.claim_ahead or (
        run_children + compilers + (2 if gpu else 1) * analysers
    )
    if not shared:
        run_children = min(claim_ahead, _CPU_RUN_CHILDREN)
    return Limits(
        build_timeout_s=given.build_timeout_s,
        analysis_timeout_s=given.analysis_timeout_s,
        work_timeout_s=given.work_timeout_s,
        config_timeout_s=config_timeout_s,
        spin_timeout_s=spin_timeout_s,
        task_timeout_s=given.task_timeout_s,
        task_budget_s=given.task_budget_s,
        deaths_to_quarantine=given.deaths_to_quarantine,
        faults_to_end_strategy=given.faults_to_end_strategy
        or (1 if gpu else given.deaths_to_quarantine),
        num_compile_children=compilers,
        num_analysis_children=analysers,
        num_run_children=run_children,
        claim_ahead=claim_ahead,
    )
