"""A value as a distribution over bins, against the normal distribution of the standard library."""

from __future__ import annotations

from statistics import NormalDist

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from components.ppo import Bins, hl_gauss_loss

BINS = Bins(low=-0.25, high=1.75, count=20, spread=0.75)


@settings(deadline=None, max_examples=40)
@given(value=st.floats(-1, 3), count=st.integers(2, 60), spread=st.floats(0.3, 3))
def test_a_target_is_the_gaussian_around_the_return_cut_to_the_bins(value, count, spread):
    bins = Bins(-0.25, 1.75, count, spread)
    got = bins.targets(torch.tensor([value], dtype=torch.float64))[0].numpy()
    normal = NormalDist(min(max(value, bins.low), bins.high), spread * bins.width)
    cdf = np.array([normal.cdf(bins.low + index * bins.width) for index in range(count + 1)])
    np.testing.assert_allclose(got, np.diff(cdf) / (cdf[-1] - cdf[0]), atol=1e-9)
    assert got.sum() == pytest.approx(1)


def test_the_value_of_a_perfect_prediction_is_the_return_away_from_the_border():
    returns = torch.linspace(0.1, 1.4, 30, dtype=torch.float64)
    values = BINS.values(BINS.targets(returns).clamp(min=1e-300).log())
    torch.testing.assert_close(values, returns, atol=0.01, rtol=0)


def test_the_loss_is_the_cross_entropy_over_the_mask_and_its_gradient_is_prediction_less_target():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(12, BINS.count, generator=generator, dtype=torch.float64, requires_grad=True)
    returns = torch.rand(12, generator=generator, dtype=torch.float64) * 2
    mask = torch.arange(12) % 3 > 0
    loss, tally = hl_gauss_loss(logits, returns, mask, bins=BINS, denominator=16)
    loss.backward()
    target = BINS.targets(returns)
    want = -(target * logits.detach().log_softmax(-1)).sum(-1)[mask].sum()
    assert float(loss.detach()) == pytest.approx(float(want) / 16)
    assert tally["loss"] == pytest.approx(float(want) / 8)
    gradient = torch.where(mask[:, None], (logits.detach().softmax(-1) - target) / 16, 0.0)
    torch.testing.assert_close(logits.grad, gradient)
    assert tally["square_error"] == pytest.approx(float((BINS.values(logits.detach()) - returns)[mask].square().mean()))


def test_a_return_beyond_the_bins_is_taken_at_the_border_and_counted():
    logits = torch.zeros(3, BINS.count)
    loss, tally = hl_gauss_loss(
        logits, torch.tensor([2.5, 0.5, float("nan")]), torch.tensor([1, 1, 0]), bins=BINS, denominator=2
    )
    assert torch.isfinite(loss)
    assert tally["outside_bins"] == 0.5
    torch.testing.assert_close(BINS.targets(torch.tensor([2.5])), BINS.targets(torch.tensor([1.75])))
