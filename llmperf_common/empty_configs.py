"""The placeholder launch config of a kernel that fails before any launch is planned."""

from __future__ import annotations

from llmperf_common.ids import sample_id
from llmperf_common.records import LaunchConfig, Strategy


def empty_config(*, kernel_id: str, device_class: str, strategy: Strategy) -> LaunchConfig:
    """Return a config with empty sizes, for the only row of a kernel that fails before planning."""
    return LaunchConfig(
        sample_id=sample_id(
            kernel_id=kernel_id, global_size=(), local_size=(), args=(), device_class=device_class
        ),
        global_size=(),
        local_size=(),
        args=(),
        regime=None,
        strategies=(strategy,),
        seed=0,
    )
