"""Losses against numbers worked out by hand, and what has no influence on them."""

from __future__ import annotations

import math

import pytest
import torch

from trainer.fit.loss import SPREAD_SHARE, losses, spread_loss, time_loss


def _value_and_slope(kind, error):
    at = torch.tensor(error, dtype=torch.float64, requires_grad=True)
    value = time_loss(kind, at)
    value.backward()
    return value.item(), at.grad.item()


@pytest.mark.parametrize(
    ("kind", "error", "value", "slope"),
    [
        ("l1", -1.5, 1.5, -1.0),
        ("l1", 0.25, 0.25, 1.0),
        ("l2", -1.5, 2.25, -3.0),
        # a quarter of the time: 3/4 too low, and 0.05 * 2 of L1
        ("relative", -2.0, 0.75 + 0.1, -math.log(2) / 4 - 0.05),
        # sqrt(2) of the time
        ("relative", 0.5, math.sqrt(2) - 1 + 0.025, math.log(2) * math.sqrt(2) + 0.05),
        # eight times: 1 at twice, then the slope of 2**e there
        ("relative", 3.0, 1 + 4 * math.log(2) + 0.15, 2 * math.log(2) + 0.05),
    ],
)
def test_loss_and_slope_of_an_error(kind, error, value, slope):
    assert _value_and_slope(kind, error) == pytest.approx((value, slope), rel=1e-12)


def test_the_relative_loss_and_its_slope_are_continuous_at_twice_the_time():
    below, above = (_value_and_slope("relative", 1 + d) for d in (-1e-9, 1e-9))
    assert below == pytest.approx(above, abs=1e-7)


def test_the_relative_loss_of_a_far_error_is_finite():
    assert math.isfinite(time_loss("relative", torch.tensor(200.0)).item())


def test_the_spread_of_least_loss_is_the_mean_error():
    error = torch.tensor([0.1, 0.5, -0.9], dtype=torch.float64)
    spreads = torch.linspace(0.1, 2, 1901, dtype=torch.float64)
    total = torch.stack([spread_loss(one.expand(3), error).sum() for one in spreads])
    assert spreads[total.argmin()].item() == pytest.approx(0.5, abs=1e-3)


def test_the_spread_does_not_bend_the_mean():
    predicted = torch.tensor([[13.0, 15.0]], requires_grad=True)
    target, weight = torch.tensor([[12.0, 15.5]]), torch.tensor([[2.0, 3.0]])
    for spread in (0.1, 5.0):
        predicted.grad = None
        losses("l1", predicted, torch.full((1, 2), spread), target, weight).objective.backward()
        assert predicted.grad.tolist() == [[2.0, -3.0]]


def test_sums_are_weighted():
    predicted, target = torch.tensor([[13.0, 15.0]]), torch.tensor([[12.0, 15.5]])
    spread, weight = torch.tensor([[1.0, 0.5]]), torch.tensor([[2.0, 3.0]])
    sums = losses("l1", predicted, spread, target, weight)
    assert sums.of_time.item() == pytest.approx(2 * 1 + 3 * 0.5)
    of_spread = 2 * (math.log(2) + 1) + 3 * (math.log(1) + 1)
    assert sums.objective.item() == pytest.approx(3.5 + SPREAD_SHARE * of_spread)


@pytest.mark.parametrize("kind", ["l1", "l2", "relative"])
def test_what_is_said_without_a_weight_has_no_influence(kind):
    predicted = torch.tensor([[13.0, math.nan, math.inf]], requires_grad=True)
    spread = torch.tensor([[1.0, math.nan, 0.0]], requires_grad=True)
    target, weight = torch.tensor([[12.0, math.nan, 0.0]]), torch.tensor([[2.0, 0.0, 0.0]])
    sums = losses(kind, predicted, spread, target, weight)
    sums.objective.backward()
    assert math.isfinite(sums.objective.item())
    assert predicted.grad[0, 1:].tolist() == spread.grad[0, 1:].tolist() == [0.0, 0.0]
