"""The config tree of ``llmperf collect``: what is planned, how it is timed, what it may cost.

The keys of ``plan`` and ``timing`` decide what a time means and enter the plan hash, except where
a description says otherwise. The keys of the other sections never do.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Literal

import pydantic
from pydantic import Field

from llmperf_common.config import Node
from llmperf_common.records import Strategy
from workers.timing_rule import TimingRule


class PlanConfig(Node):
    """The keys that decide, with kernel and device class, which launch configs are timed."""

    strategies: tuple[Strategy, ...] = Field(
        (Strategy.MEMORY_ANALYSIS,),
        description="Input strategies, in order; together they plan `samples_per_kernel` configs.",
        min_length=1,
    )
    samples_per_kernel: int = Field(
        68, ge=1, le=100_000, description="Launch configs per kernel, over all strategies."
    )
    seed: int = Field(
        0, ge=0, le=2**31 - 1, description="Seed of the configs, their order and their inputs."
    )
    plain_share: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Share of global sizes that keep the usual inputs: integer scalars have the "
        "value of their role, floating-point scalars are 1.0, and buffers hold no negative "
        "numbers. The other sizes get inputs that keep more work-items active in virtual "
        "launches. 1: all sizes keep the usual inputs.",
    )
    sampler: Literal["stratified", "uniform"] = Field(
        "stratified",
        description="`stratified`: each regime gets its share of the configs. `uniform`: "
        "work-group counts are drawn log-uniformly over all regimes.",
    )
    local_sizes: Literal["many", "few"] = Field(
        "many",
        description="`many`: all multiples of 32 up to 1,024 in 1-D, 19 shapes in 2-D, 15 in 3-D. "
        "`few`: powers of two from 32 on in 1-D, 6 shapes in 2-D and in 3-D.",
    )
    sibling_share: float = Field(
        0.25,
        ge=0,
        le=1,
        description="Probability that a config gets a sibling, which has the same global size but "
        "another local size.",
    )
    idle_share: float = Field(
        0.15, ge=0, le=1, description="Share of configs with fewer work-groups than compute units."
    )
    under_share: float = Field(
        0.35,
        ge=0,
        le=1,
        description="Share of configs with 1 to 20 work-groups per compute unit. The remaining "
        "configs have 20 or more.",
    )
    max_groups_per_unit: int = Field(
        1000, ge=21, le=100_000, description="Maximum number of work-groups per compute unit."
    )
    max_work_items: int = Field(
        2**26, ge=1024, le=2**31, description="Maximum number of work-items of a launch."
    )
    max_launch_bytes: int = Field(
        2**31,
        ge=2**20,
        le=2**40,
        description="Maximum number of bytes that the buffers of a launch have together.",
    )

    @pydantic.model_validator(mode="after")
    def _shares_fit(self) -> PlanConfig:
        if self.idle_share + self.under_share > 1:
            raise ValueError("plan.idle_share + plan.under_share must be at most 1")
        return self


class TimingConfig(Node):
    """How one launch config is timed; docs/explanation/measurement.md explains the rule."""

    warmups: int = Field(
        2,
        ge=1,
        le=100,
        description="Launches before the first warm reading; the first one gives `first_ns`.",
    )
    min_readings: int = Field(
        5, ge=1, le=1000, description="Minimum number of warm readings of a launch of up to 5 ms."
    )
    max_readings: int = Field(50, ge=1, le=10_000, description="Maximum number of warm readings.")
    relative_standard_error: float = Field(
        0.01, gt=0, le=1, description="Stop at this relative standard error of the mean."
    )
    sample_budget_ms: float = Field(
        200.0, gt=0, le=600_000, description="Stop after this much launch time of one config."
    )
    max_launch_ms: float = Field(
        250.0,
        gt=0,
        le=600_000,
        description="A config with a longer launch gets an over_time_budget row.",
    )
    cold_readings: int = Field(
        3,
        ge=0,
        le=100,
        description="Number of readings that each follow a flush of the last-level cache.",
    )
    batch_step_share: float = Field(
        0.02,
        gt=0,
        le=1,
        description="Time several launches as one reading if the timer's step exceeds this share "
        "of the launch time.",
    )
    spin_up_ms: float = Field(
        20.0, ge=0, le=10_000, description="Untimed device work before a task's first launch."
    )
    sentinel_every_tasks: int = Field(
        10, ge=1, le=10_000, description="Time the sentinel kernel once in this many tasks."
    )
    payload_checks: bool = Field(
        True,
        description="Check outputs on a task's smallest, its largest and one other config.",
    )
    one_processor: bool = Field(
        True,
        description="Issue all launches on an NVIDIA GPU from one fixed processor of the host, if "
        "the host has at least eight: times then differ less between processes. Not in the plan "
        "hash.",
    )
    poll_hz: float = Field(
        10.0,
        ge=0,
        le=1000,
        description="How many times per second to read an NVIDIA GPU's clocks and temperature "
        "while kernels run; 0: never. Not in the plan hash.",
    )

    def rule(self) -> TimingRule:
        """Return the values that a run child needs."""
        return TimingRule(**{one.name: getattr(self, one.name) for one in fields(TimingRule)})


class LimitsConfig(Node):
    """What a kernel or a run may cost."""

    build_timeout_s: float = Field(
        60.0, gt=0, le=3600, description="Kill a compile child after this long."
    )
    analysis_timeout_s: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="Kill an analysis child after this long; the strategy `simple` then plans the "
        "configs of its kernel.",
    )
    analysis_device: Literal["auto", "same"] = Field(
        "auto",
        description="Where kernels of a GPU are analysed. `auto`: on a CPU OpenCL device if there "
        "is one. `same`: on the GPU.",
    )
    check_reach: Literal["auto", "off"] = Field(
        "auto",
        description="`auto`: do not launch configs on a GPU that would access memory outside their "
        "buffers and their padding, or outside their local memory. If all extents of a kernel are "
        "validated, the extents show which configs would do so; otherwise some work-items of each "
        "config run on a CPU OpenCL device first. `off`: launch all configs.",
    )
    work: Literal["auto", "off"] = Field(
        "auto",
        description="`auto`: count what each launch executes (columns `work` of `samples`), by "
        "virtual launches on a CPU OpenCL device if there is one. `off`: leave `work` null; on a GPU "
        "smaller virtual launches still serve `limits.check_reach`.",
    )
    work_timeout_s: float = Field(
        20.0,
        gt=0,
        le=3600,
        description="Kill a child that counts the work of a kernel after this long; the launches "
        "not counted by then have a null `work`.",
    )
    config_timeout_s: float | None = Field(
        None,
        gt=0,
        le=3600,
        description="Kill a run child that takes longer than this for one config. Unset: "
        "2 s on a GPU (0.75 s for a child that uses its processor all this time, as it does "
        "while it waits for a launch), 30 s elsewhere, or longer if the limits under `timing` "
        "allow a config more time.",
    )
    task_timeout_s: float = Field(
        600.0,
        gt=0,
        le=86_400,
        description="Kill a run child that has held the device for this long for one task; configs "
        "not reached become over_time_budget rows.",
    )
    task_budget_s: float | None = Field(
        None,
        gt=0,
        le=86_400,
        description="Begin no further config of a task after its configs have taken this long; "
        "those not reached become over_time_budget rows. Each config counts with at most four "
        "times its launch time plus 0.05 s, because longer delays come from the host. Unset: no "
        "limit.",
    )
    deaths_to_quarantine: int = Field(
        2, ge=1, le=10, description="Quarantine a kernel after this many deaths of run children."
    )
    faults_to_end_strategy: int | None = Field(
        None,
        ge=1,
        le=10,
        description="Quarantine the remaining configs of one input strategy of a kernel after this "
        "many device faults. Unset: 1 on a GPU, `deaths_to_quarantine` elsewhere.",
    )
    kernel_resources: Literal["auto", "off"] = Field(
        "auto",
        description="`auto`: find registers, spills and occupancy of kernels on an NVIDIA GPU if "
        "pycuda is installed. `off`: leave these columns null.",
    )
    compile_children: int | None = Field(
        None,
        ge=1,
        le=256,
        description="Number of child processes of each of three kinds: those that compile, those "
        "that analyse or count work, and those that find access ranges. Unset: 1 of each kind on a "
        "CPU device; on a GPU up to 4 that compile and 16 of each other kind (0.4 GiB of memory "
        "each), and fewer on a host with fewer than 20 processors.",
    )
    allow_busy_gpu: bool = Field(
        False,
        description="Measure even if other processes use the NVIDIA GPU, although these processes "
        "then change the times.",
    )
    max_time_s: float | None = Field(
        None, gt=0, description="Claim no further tasks after this long."
    )
    max_failures: int | None = Field(
        None, ge=0, description="Stop with exit code 5 after more failed rows than this."
    )


class StoreConfig(Node):
    """How often results become durable and visible."""

    commit_interval_s: float = Field(
        4.0,
        ge=0,
        le=60,
        description="Commit a shard at most this long after the first task in it has finished.",
    )
    publish_interval_s: float = Field(
        1.5,
        ge=0,
        le=60,
        description="Publish a manifest at most once per interval of this length.",
    )
    max_shard_rows: int = Field(
        20_000, ge=1, le=10_000_000, description="Commit earlier if this many sample rows wait."
    )


class LedgerConfig(Node):
    """Leases of tasks."""

    lease_ttl_s: float = Field(
        60.0, ge=1, le=3600, description="A lease that is not renewed for this long expires."
    )
    away_limit_s: float = Field(
        600.0,
        ge=0,
        description="End the run once the ledger has been unreachable for this long. The next run "
        "measures uncommitted tasks again.",
    )
    claim_ahead: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="Maximum number of tasks that a collector holds at once: some run or wait for "
        "the device, the others are analysed and compiled. Unset: on a GPU one per run child and "
        "per compile child, plus two per analysis child; on a CPU device 1, plus one per compile "
        "child and per analysis child.",
    )


class CollectConfig(Node):
    """The whole tree of ``llmperf collect``."""

    plan: PlanConfig = PlanConfig()
    timing: TimingConfig = TimingConfig()
    limits: LimitsConfig = LimitsConfig()
    store: StoreConfig = StoreConfig()
    ledger: LedgerConfig = LedgerConfig()
