"""The table of deaths: every phase has a rule, and each rule is what ``docs/how-to/read-failures.md`` promises."""

from __future__ import annotations

import pytest

from llmperf_common.failures import FailureCode, Stage
from workers.execution.death_rules import DEATH_RULES, Charged, Excuse
from workers.execution.run_phases import ON_DEVICE, Phase


def test_every_phase_has_a_rule() -> None:
    assert set(DEATH_RULES) == set(Phase)


def test_a_death_is_charged_to_what_had_begun() -> None:
    charged = {phase: rule.charged for phase, rule in DEATH_RULES.items()}
    assert charged == {
        Phase.STARTING: Charged.NOTHING,
        Phase.IDLE: Charged.NOTHING,
        Phase.WAITING: Charged.DEVICE,
        Phase.PREPARING: Charged.DEVICE,
        Phase.LOADING: Charged.KERNEL,
        Phase.HOLDING: Charged.KERNEL,
        Phase.IN_CONFIG: Charged.CONFIG,
        Phase.BETWEEN: Charged.CONFIG,
    }


@pytest.mark.parametrize("phase", list(Phase))
def test_a_row_comes_of_a_death_exactly_where_a_kernel_is_charged(phase: Phase) -> None:
    rule = DEATH_RULES[phase]
    if rule.charged in (Charged.KERNEL, Charged.CONFIG):
        assert rule.stage is (Stage.BUILD if phase is Phase.LOADING else Stage.LAUNCH)
        assert rule.code(is_silence=True, has_traceback=False) in (
            FailureCode.BUILD_TIMEOUT,
            FailureCode.HANG,
        )
        assert rule.code(is_silence=False, has_traceback=False) in (
            FailureCode.COMPILER_CRASH,
            FailureCode.DEVICE_FAULT,
        )
    else:
        assert rule.stage is None
        with pytest.raises(AssertionError, match="no row"):
            rule.code(is_silence=False, has_traceback=False)


@pytest.mark.parametrize("phase", [Phase.LOADING, Phase.HOLDING, Phase.IN_CONFIG, Phase.BETWEEN])
@pytest.mark.parametrize("is_silence", [True, False])
def test_a_traceback_of_our_own_is_no_fault_of_the_kernel(phase: Phase, is_silence: bool) -> None:
    code = DEATH_RULES[phase].code(is_silence=is_silence, has_traceback=True)
    assert code is FailureCode.INTERNAL_ERROR


def test_a_launch_in_progress_is_excused_once_and_after_its_result_always() -> None:
    excuses = {phase: rule.excuse for phase, rule in DEATH_RULES.items()}
    assert excuses[Phase.BETWEEN] is Excuse.ALWAYS
    for phase in (Phase.LOADING, Phase.HOLDING, Phase.IN_CONFIG):
        assert excuses[phase] is Excuse.ONCE


def test_only_a_child_that_may_have_the_device_fails_a_launch() -> None:
    launching = {phase for phase, rule in DEATH_RULES.items() if rule.stage is Stage.LAUNCH}
    assert launching == ON_DEVICE - {Phase.PREPARING}
