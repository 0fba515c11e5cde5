"""The plan of a run: every kernel of a corpus on every device class, in a fixed order.

Owns the tasks, their ids and the plan's identity. The plan is immutable. Every process derives the
same plan from the corpus and ``run.json``. Does not own which process works on a task
(``llmperf_common/ledger``) or how to find a task by its id (``task_index.py``).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

from llmperf_common.analysis import ANALYSIS_VERSION, Analysis
from llmperf_common.empty_configs import empty_config
from llmperf_common.ids import HARNESS_VERSION, content_id, task_id
from llmperf_common.records import DeviceClass, Kernel, LaunchConfig, Strategy
from workers.config import PlanConfig, TimingConfig
from workers.plan.launch_plan import num_configs, plan_configs
from workers.plan.strategies.rules import needs_analysis

_LATER_FACTS = frozenset({"max_constant_buffer_bytes"})
"""Facts of a device class that datasets of the first schema versions do not have."""
_OUTSIDE_THE_PLAN = {"one_processor", "poll_hz"}
"""Keys of ``timing`` that change neither what is launched nor how often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One kernel on one device class; ``index`` is the task's place in the plan.

    The kernel is compiled once, and all its configs run.
    """

    index: int
    task_id: str
    kernel: Kernel
    device_class: DeviceClass


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All tasks of a run. Task ``i`` is kernel ``i mod K`` on device class ``i div K``.

    The class has no ``slots``, because ``plan_hash`` is computed when first read, and kept.

    Args:
        kernels: the corpus, sorted by id.
        corpus_sha256: the corpus' identity.
        device_classes: the classes on which tasks run; all their facts enter the hash.
        plan_config: which launch configs are planned.
        timing_config: how each config is timed.

    Raises:
        ValueError: Two kernels have the same id, or two device classes have the same name.
    """

    kernels: tuple[Kernel, ...]
    corpus_sha256: str
    device_classes: tuple[DeviceClass, ...]
    plan_config: PlanConfig
    timing_config: TimingConfig

    def __post_init__(self) -> None:
        if len({kernel.kernel_id for kernel in self.kernels}) != len(self.kernels):
            raise ValueError("two kernels of the plan have the same id; list each kernel once")
        if len({one.name for one in self.device_classes}) != len(self.device_classes):
            raise ValueError("two device classes of the plan have the same name; list each once")

    @cached_property
    def plan_hash(self) -> str:
        """Identity of the plan: 20 hex digits over everything that decides what is timed and how.

        Covers the corpus, device classes, plan and timing configuration, the version of the
        measuring code and, if a strategy needs it, the version of the analysis. Does not cover
        limits, ledger, storage or logging. Facts that were added later are left out if they are
        null, so earlier datasets keep their hash.
        """
        parts: dict[str, object] = {
            "corpus_sha256": self.corpus_sha256,
            "device_classes": [_hashed(one) for one in self.device_classes],
            "plan": self._hashed_config(),
            "timing": self.timing_config.model_dump(mode="json", exclude=_OUTSIDE_THE_PLAN),
            "harness_version": HARNESS_VERSION,
        }
        if needs_analysis(self.plan_config.strategies):
            parts["analysis_version"] = ANALYSIS_VERSION
        return content_id("plan", parts)

    def _hashed_config(self) -> dict[str, object]:
        """Return the keys that decide the launch configs (not ``plain_share`` in simple plans)."""
        is_varied = needs_analysis(self.plan_config.strategies)
        left_out = set() if is_varied else {"plain_share"}
        return self.plan_config.model_dump(mode="json", exclude=left_out)

    @property
    def num_tasks(self) -> int:
        """Number of kernels times number of device classes."""
        return len(self.kernels) * len(self.device_classes)

    def task(self, index: int) -> Task:
        """Return the task at an index.

        Raises:
            IndexError: The plan has no task of this index.
        """
        if not 0 <= index < self.num_tasks:
            raise IndexError(f"task index {index} is outside the plan of {self.num_tasks} tasks")
        class_index, kernel_index = divmod(index, len(self.kernels))
        kernel = self.kernels[kernel_index]
        device_class = self.device_classes[class_index]
        return Task(
            index=index,
            task_id=task_id(
                plan_hash=self.plan_hash,
                kernel_id=kernel.kernel_id,
                device_class=device_class.name,
            ),
            kernel=kernel,
            device_class=device_class,
        )

    def tasks_of_class(self, device_class: str) -> range:
        """Return the indices of the tasks of one device class, given by its name.

        Raises:
            KeyError: The plan has no such device class.
        """
        for number, one in enumerate(self.device_classes):
            if one.name == device_class:
                first = number * len(self.kernels)
                return range(first, first + len(self.kernels))
        raise KeyError(device_class)

    def needs_analysis(self, kernel: Kernel) -> bool:
        """Return whether a task of this kernel begins with its memory analysis."""
        return (
            kernel.failure is None
            and kernel.analysis is None
            and needs_analysis(self.plan_config.strategies)
        )

    @property
    def first_strategy(self) -> Strategy:
        """The strategy label of a row without a launch config."""
        return self.plan_config.strategies[0]

    def configs(self, task: Task, analysis: Analysis | None = None) -> tuple[LaunchConfig, ...]:
        """Return the launch configs of a task, in the order to run them.

        There is at least one: a kernel that cannot be launched has a single config with empty
        sizes, which becomes its one failed row.

        Args:
            task: a task of this plan.
            analysis: the result of the task's own analysis; None: the analysis in the corpus, if
                there is one.
        """
        planned: tuple[LaunchConfig, ...] = ()
        if task.kernel.failure is None:
            known = analysis or task.kernel.analysis
            planned = plan_configs(task.kernel, task.device_class, self.plan_config, known)
        return planned or (
            empty_config(
                kernel_id=task.kernel.kernel_id,
                device_class=task.device_class.name,
                strategy=self.first_strategy,
            ),
        )

    def num_samples(self, task: Task, analysis: Analysis | None = None) -> int:
        """Return how many rows the task gives, as ``len(configs(task, analysis))`` but faster.

        While the kernel's analysis is not known, this is an estimate: ``samples_per_kernel``.
        """
        if task.kernel.failure is not None:
            return 1
        if analysis is None and self.needs_analysis(task.kernel):
            return self.plan_config.samples_per_kernel
        known = analysis or task.kernel.analysis
        return max(1, num_configs(task.kernel, task.device_class, self.plan_config, known))


def _hashed(device_class: DeviceClass) -> dict[str, object]:
    facts = dataclasses.asdict(device_class)
    return {
        name: facts[name] for name in facts if name not in _LATER_FACTS or facts[name] is not None
    }
