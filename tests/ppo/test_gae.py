"""Advantages against a slow float64 reference that follows Eq 16 token by token."""

from __future__ import annotations

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from components.ppo import advantages, length_adaptive_lambda, moments, place_terminal, whiten


def reference(rewards, values, mask, gamma, lam):
    """Steps are the trainable tokens; a reward on an observation belongs to the action before it."""
    out_a, out_r = np.zeros(rewards.shape), np.zeros(rewards.shape)
    for row in range(len(rewards)):
        steps = np.flatnonzero(mask[row])
        carry, following = 0.0, 0.0
        ends = [*steps[1:], rewards.shape[1]][: len(steps)]
        for j, end in reversed(list(zip(steps, ends, strict=True))):
            reward = rewards[row, j:end].sum()
            delta = reward + gamma * following - values[row, j]
            carry = delta + gamma * lam * carry
            following = values[row, j]
            out_a[row, j], out_r[row, j] = carry, carry + values[row, j]
    return out_a, out_r


@settings(deadline=None, max_examples=80)
@given(
    data=st.data(),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 90)),
    gamma=st.sampled_from([1.0, 0.99, 0.5, 0.0]),
    lam=st.sampled_from([1.0, 0.95, 0.3, 0.0]),
    double=st.booleans(),
)
def test_advantages_and_returns_equal_the_token_by_token_recurrence(data, shape, gamma, lam, double):
    numbers = hnp.arrays(np.float32, shape, elements=st.floats(-3, 3, width=32))
    rewards, values = data.draw(numbers), data.draw(numbers)
    mask = data.draw(hnp.arrays(np.bool_, shape))
    dtype = torch.float64 if double else torch.float32
    args = (torch.from_numpy(rewards).to(dtype), torch.from_numpy(values).to(dtype), torch.from_numpy(mask))
    kept = [x.clone() for x in args]
    a, r = advantages(*args, gamma=gamma, lam=lam)
    want_a, want_r = reference(rewards.astype(np.float64), values.astype(np.float64), mask, gamma, lam)
    tolerance = 1e-10 if double else 1e-5
    np.testing.assert_allclose(a.numpy(), want_a, atol=tolerance, rtol=1e-6)
    np.testing.assert_allclose(r.numpy(), want_r, atol=tolerance, rtol=1e-6)
    assert all(torch.equal(before, after) for before, after in zip(kept, args, strict=True))


def test_a_long_stream_is_exact_to_one_part_in_a_million():
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(2, 40_000, generator=generator)
    mask = torch.rand(2, 40_000, generator=generator) < 0.4
    rewards = place_terminal(torch.tensor([0.3, 1.2]), mask)
    for lam in (1.0, 0.95):
        a, _ = advantages(rewards, values, mask, gamma=1.0, lam=lam)
        want, _ = reference(rewards.double().numpy(), values.double().numpy(), mask.numpy(), 1.0, lam)
        assert np.abs(a.numpy() - want).max() < 1e-6


def test_at_gamma_and_lambda_one_the_advantage_is_the_reward_minus_the_value():
    values, mask = torch.rand(3, 50), torch.rand(3, 50) < 0.5
    a, r = advantages(place_terminal(torch.tensor([0.1, 0.2, 0.3]), mask), values, mask, gamma=1.0, lam=1.0)
    want = torch.tensor([[0.1], [0.2], [0.3]]).expand(3, 50)
    torch.testing.assert_close(r, torch.where(mask, want, 0.0))
    torch.testing.assert_close(a, torch.where(mask, want - values, 0.0))


def test_a_row_without_trainable_tokens_contributes_zeros():
    mask = torch.tensor([[0, 0, 0], [0, 1, 0]])
    rewards = place_terminal(torch.tensor([5.0, 2.0]), mask)
    assert rewards.tolist() == [[0, 0, 0], [0, 2, 0]]
    a, r = advantages(rewards, torch.ones(2, 3), mask, gamma=1.0, lam=1.0)
    assert a.tolist() == [[0, 0, 0], [0, 1, 0]]
    assert r.tolist() == [[0, 0, 0], [0, 2, 0]]


def test_values_of_observations_may_be_anything():
    nan = float("nan")
    a, _ = advantages(
        torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.5, nan, 0.5]]), torch.tensor([[1, 0, 1]]), gamma=1, lam=1
    )
    assert a.tolist() == [[0.5, 0.0, 0.5]]


def test_shapes_and_discounts_that_make_no_sense_are_refused():
    x = torch.zeros(1, 3)
    with pytest.raises(ValueError, match="one shape"):
        advantages(x, torch.zeros(1, 2), x, gamma=1, lam=1)
    with pytest.raises(ValueError, match="must lie in"):
        advantages(x, x, x, gamma=1.1, lam=1)


def test_each_row_may_have_a_lambda_of_its_own():
    values, mask = torch.rand(3, 40, dtype=torch.float64), torch.rand(3, 40) < 0.6
    rewards = place_terminal(torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64), mask)
    lams = [0.0, 0.7, 1.0]
    a, r = advantages(rewards, values, mask, gamma=1.0, lam=torch.tensor(lams))
    for row, lam in enumerate(lams):
        one = slice(row, row + 1)
        own_a, own_r = advantages(rewards[one], values[one], mask[one], gamma=1.0, lam=float(np.float32(lam)))
        torch.testing.assert_close(a[one], own_a)
        torch.testing.assert_close(r[one], own_r)
    with pytest.raises(ValueError, match="must lie in"):
        advantages(rewards, values, mask, gamma=1.0, lam=torch.tensor([0.5, 1.5, 0.5]))


def test_length_adaptive_lambda_follows_the_trainable_tokens_of_each_row():
    mask = torch.zeros(3, 400)
    mask[0, ::2] = mask[1, :10] = 1
    got = length_adaptive_lambda(mask, 0.05)
    assert got.tolist() == pytest.approx([1 - 1 / (0.05 * 200), 0, 0])  # below 1/alpha tokens there is no trace


def test_whitened_advantages_have_mean_zero_and_deviation_one_over_the_mask():
    mask = torch.rand(5, 40) < 0.5
    values = torch.rand(5, 40) * 9 + 4
    kept = values.clone()
    white = whiten(values, mask)
    mean, deviation = moments(white, mask)
    assert abs(mean) < 1e-6
    assert abs(deviation - 1) < 1e-5
    assert not white[~mask].any()
    assert torch.equal(values, kept)
    assert not whiten(torch.ones(3), torch.ones(3)).any()
    assert all(np.isnan(x) for x in moments(values, torch.zeros(5, 40)))
