"""Regimes: how full a launch makes a device. Launch plans and features share the rule below."""

from __future__ import annotations

from llmperf_common.records import Regime

UNDER_UTILISED_GROUPS_PER_UNIT = 20
"""Smallest number of work-groups per compute unit at which a device counts as fully utilised."""


def regime_of(num_work_groups: int, compute_units: int) -> Regime:
    """Return the regime of ``num_work_groups`` work-groups on ``compute_units`` compute units.

    >>> [regime_of(groups, 132).value for groups in (131, 132, 2640)]
    ['idle_sm', 'under_utilised', 'fully_utilised']
    """
    # One work-group fills a device of one compute unit, but still counts as ``idle_sm``.
    if num_work_groups < max(compute_units, 2):
        return Regime.IDLE_SM
    if num_work_groups < UNDER_UTILISED_GROUPS_PER_UNIT * compute_units:
        return Regime.UNDER_UTILISED
    return Regime.FULLY_UTILISED
