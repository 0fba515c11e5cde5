"""The config tree of collecting: what is planned, how it is timed, what it may cost.

``plan`` and ``timing`` decide what a time means, so they enter the plan hash; the other sections never do.
"""

from __future__ import annotations

from typing import Literal

import pydantic
from pydantic import Field

from llmperf_common.config import Node
from llmperf_common.records import Strategy

WALL_BUDGET_FACTOR = 5.0
"""Readings also stop after this many sample budgets of wall time: refilling buffers is no launch
time, and must not take the run."""


class PlanConfig(Node):
    """Which launch configs are timed; a pure function of these, the kernel and the device class."""

    strategies: tuple[Strategy, ...] = Field(
        (Strategy.MEMORY_ANALYSIS,),
        description="Input strategies; they share the configs of a kernel.",
        min_length=1,
    )
    samples_per_kernel: int = Field(
        68, ge=1, le=100_000, description="Launch configs planned a kernel, over all strategies."
    )
    seed: int = Field(
        0, ge=0, le=2**31 - 1, description="Seed of configs, their order and their inputs."
    )
    plain_share: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Share of global sizes with the usual inputs: scalars as their role says, floats 1.0, contents of one sign. The others get the inputs with which virtual launches see a kernel work; 1: none does.",
    )
    sampler: Literal["stratified", "uniform"] = Field(
        "stratified", description="Share work-group counts by regime, or draw them log-uniformly."
    )
    local_sizes: Literal["many", "few"] = Field(
        "many",
        description="Draw local sizes from all multiples of 32 (and 19 2-D, 15 3-D shapes), or from a few powers of two.",
    )
    sibling_share: float = Field(
        0.25,
        ge=0,
        le=1,
        description="How many configs get a sibling: the same global size with another local size.",
    )
    idle_share: float = Field(
        0.15, ge=0, le=1, description="Share of configs with fewer work-groups than compute units."
    )
    under_share: float = Field(
        0.35,
        ge=0,
        le=1,
        description="Share of configs up to 20 work-groups a compute unit; the rest is fully utilised.",
    )
    max_groups_per_unit: int = Field(
        1000, ge=21, le=100_000, description="Most work-groups a compute unit."
    )
    max_work_items: int = Field(
        2**26, ge=1024, le=2**31, description="Most work-items of a launch."
    )
    max_launch_bytes: int = Field(
        2**31, ge=2**20, le=2**40, description="Most bytes of all buffers of a launch."
    )

    @pydantic.model_validator(mode="after")
    def _shares_fit(self) -> PlanConfig:
        if self.idle_share + self.under_share > 1:
            raise ValueError("plan.idle_share + plan.under_share must be at most 1")
        return self


class TimingConfig(Node):
    """How one launch config is timed: the rule that docs/explanation/measurement.md explains."""

    warmups: int = Field(
        2,
        ge=1,
        le=100,
        description="Untimed launches before the first warm reading (the first of them is first_ns).",
    )
    min_readings: int = Field(
        5, ge=1, le=1000, description="Fewest warm readings of a launch of up to 5 ms."
    )
    max_readings: int = Field(50, ge=1, le=10_000, description="Most warm readings.")
    relative_standard_error: float = Field(
        0.01, gt=0, le=1, description="Stop when the mean is known this well."
    )
    sample_budget_ms: float = Field(
        200.0, gt=0, le=600_000, description="Stop when this much launch time was spent."
    )
    max_launch_ms: float = Field(
        250.0, gt=0, le=600_000, description="A longer launch is an over_time_budget row."
    )
    cold_readings: int = Field(
        3, ge=0, le=100, description="Readings after a flush of the last-level cache."
    )
    batch_step_share: float = Field(
        0.02,
        gt=0,
        le=1,
        description="Batch launches when the timer's step exceeds this share of the median.",
    )
    spin_up_ms: float = Field(
        20.0, ge=0, le=10_000, description="Busy work before a task's first timing."
    )
    sentinel_every_tasks: int = Field(
        10, ge=1, le=10_000, description="Time the sentinel kernel every so many tasks."
    )
    payload_checks: bool = Field(
        True,
        description="Check outputs on a task's smallest and largest config, and on any other one.",
    )
    one_processor: bool = Field(
        True,
        description="Issue all timed launches on an NVIDIA GPU from one processor of the host, where there are eight or more: "
        "processes then measure more similar times. Not in the plan hash.",
    )
    poll_hz: float = Field(
        10.0,
        ge=0,
        le=1000,
        description="Read an NVIDIA GPU's clocks and temperature so often a second, beside the launches; 0: never. "
        "Not in the plan hash.",
    )


class LimitsConfig(Node):
    """What a kernel or a run may cost."""

    build_timeout_s: float = Field(
        60.0, gt=0, le=3600, description="Kill a compile child after this long."
    )
    analysis_timeout_s: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="Kill a child that has not analysed a kernel after this long; it is planned simply.",
    )
    analysis_device: Literal["auto", "same"] = Field(
        "auto",
        description="Analyse kernels of a GPU on a CPU OpenCL device where there is one, or on the GPU itself.",
    )
    check_reach: Literal["auto", "off"] = Field(
        "auto",
        description="Before a GPU launches a kernel of which some extent is not validated, see on a CPU OpenCL device how far its smaller configs reach, and do not launch those that would leave their buffers; or never.",
    )
    work: Literal["auto", "off"] = Field(
        "auto",
        description="Count what each launch executes by virtual launches on a CPU OpenCL device where there is one (columns `work` of `samples`), or do not.",
    )
    work_timeout_s: float = Field(
        20.0,
        gt=0,
        le=3600,
        description="Kill a child that has not counted the launches of a kernel after this long; those it had not come to have no `work`.",
    )
    config_timeout_s: float | None = Field(
        None,
        gt=0,
        le=3600,
        description="Kill a run child that gives no answer for one config after this long; unset: 2 s on a GPU, 30 s elsewhere, or more where timing allows launches that need it.",
    )
    task_timeout_s: float = Field(
        600.0,
        gt=0,
        le=86_400,
        description="Kill a run child that has had the device for one task for this long; configs not reached become over_time_budget rows.",
    )
    task_budget_s: float | None = Field(
        None,
        gt=0,
        le=86_400,
        description="Begin no further config of a task whose configs have taken this long, of each at most four times its launches and 0.05 s: what is longer is the host's. Those not reached become over_time_budget rows. Unset: no limit.",
    )
    deaths_to_quarantine: int = Field(
        2, ge=1, le=10, description="Deaths of run children after which a kernel is given up."
    )
    faults_to_end_strategy: int | None = Field(
        None,
        ge=1,
        le=10,
        description="Device faults of a kernel after which its other configs of the same input strategy are given up; unset: 1 on a GPU, deaths_to_quarantine elsewhere.",
    )
    kernel_resources: Literal["auto", "off"] = Field(
        "auto",
        description="Find out registers, spills and occupancy of kernels on an NVIDIA GPU where pycuda is installed, or not.",
    )
    compile_children: int | None = Field(
        None,
        ge=1,
        le=256,
        description="Compile processes at once, as many that analyse or count work, and as many that see how far kernels reach; "
        "unset: on a GPU at most 4 that compile and 16 of each other kind (0.4 GiB of memory each), fewer where there "
        "are fewer than 20 processors, 1 elsewhere.",
    )
    allow_busy_gpu: bool = Field(
        False,
        description="Time on an NVIDIA GPU although other processes compute on it; the times are then of both.",
    )
    max_time_s: float | None = Field(
        None, gt=0, description="Stop taking new tasks after this long."
    )
    max_failures: int | None = Field(
        None, ge=0, description="Stop, with exit code 5, after more failed rows than this."
    )


class StoreConfig(Node):
    """How often results become durable and visible."""

    commit_interval_s: float = Field(
        4.0,
        ge=0,
        le=60,
        description="Commit a shard at most this long after its first finished task.",
    )
    publish_interval_s: float = Field(
        1.5,
        ge=0,
        le=60,
        description="Publish a manifest at most this often.",
    )
    max_shard_rows: int = Field(
        20_000, ge=1, le=10_000_000, description="Commit earlier when this many sample rows wait."
    )


class LedgerConfig(Node):
    """Leases of tasks."""

    lease_ttl_s: float = Field(
        60.0, ge=1, le=3600, description="A lease not renewed for this long is free again."
    )
    away_limit_s: float = Field(
        600.0,
        ge=0,
        description="A ledger that cannot be reached for this long ends the run; uncommitted tasks are measured again by the next one.",
    )
    claim_ahead: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="Tasks a worker holds at once: some run or wait for the device, the others are analysed and compiled; unset: one for each run and compile child, and 2 for each that analyses (1 on CPU devices).",
    )


class CollectConfig(Node):
    """The whole tree of ``llmperf collect``."""

    plan: PlanConfig = PlanConfig()
    timing: TimingConfig = TimingConfig()
    limits: LimitsConfig = LimitsConfig()
    store: StoreConfig = StoreConfig()
    ledger: LedgerConfig = LedgerConfig()
