"""Regimes: how full a device is, by its work-groups and compute units. Plans and features share the rule."""

from __future__ import annotations

from llmperf_common.records import Regime

UNDER_UTILISED_GROUPS_PER_UNIT = 20
"""Work-groups a compute unit from which a device counts as fully utilised."""


def regime_of(num_work_groups: int, compute_units: int) -> Regime:
    """Return how full a device of ``compute_units`` is with ``num_work_groups`` work-groups.

    >>> regime_of(131, 132), regime_of(132, 132), regime_of(2640, 132)
    (<Regime.IDLE_SM: 'idle_sm'>, <Regime.UNDER_UTILISED: 'under_utilised'>, <Regime.FULLY_UTILISED: 'fully_utilised'>)
    """
    # With one compute unit every launch fills it; the smallest one is still the idle end of the scale.
    if num_work_groups < max(compute_units, 2):
        return Regime.IDLE_SM
    if num_work_groups < UNDER_UTILISED_GROUPS_PER_UNIT * compute_units:
        return Regime.UNDER_UTILISED
    return Regime.FULLY_UTILISED
