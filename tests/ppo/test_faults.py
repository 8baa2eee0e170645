"""Faults that PPO had elsewhere, each on its tiny input (the public report is named), and the kind behind each."""

from __future__ import annotations

import math

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from components.ppo import (
    Bins,
    advantages,
    group_advantages,
    hl_gauss_loss,
    logprob_gap,
    place_terminal,
    policy_loss,
    sequence_policy_loss,
    token_logprobs,
    value_loss,
    whiten,
)


def test_groups_of_unequal_size_are_not_normalised_across_the_batch():
    # slime #1414/#2230/#1918, AReaL #1419/#1454/#1563: [1, 3] and [5] gave [-1, 0, 1].
    gain = group_advantages(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 1]))
    torch.testing.assert_close(gain, torch.tensor([-(0.5**0.5), 0.5**0.5, 0.0]))


@settings(deadline=None, max_examples=40)
@given(
    rewards=hnp.arrays(np.float64, st.integers(2, 12), elements=st.floats(0, 2, width=32)),
    other=st.floats(-5, 5),
    data=st.data(),
)
def test_what_another_group_earned_never_moves_an_advantage(rewards, other, data):
    groups = data.draw(hnp.arrays(np.int64, len(rewards), elements=st.integers(0, 3)))
    before = group_advantages(torch.from_numpy(rewards), torch.from_numpy(groups))
    moved = rewards.copy()
    moved[groups == 0] += other
    after = group_advantages(torch.from_numpy(moved), torch.from_numpy(groups))
    assert torch.equal(before[groups != 0], after[groups != 0])


def test_gae_does_not_bootstrap_from_a_masked_token():
    # miles #1827, ROLL #447, verl #2337: ROLL gave [5.7, 6, 0], from the masked value 100.
    gain, _ = advantages(
        torch.tensor([[0.0, 1.0, 0.0]]),
        torch.tensor([[0.0, 0.0, 100.0]]),
        torch.tensor([[1, 1, 0]]),
        gamma=1.0,
        lam=0.95,
    )
    torch.testing.assert_close(gain, torch.tensor([[0.95, 1.0, 0.0]]))


def test_a_reward_behind_the_mask_lands_on_the_last_trainable_token():
    # miles #1827: a reward on a masked tail was lost.
    mask = torch.tensor([[1, 1, 0]])
    gain, _ = advantages(torch.tensor([[0.0, 0.0, 1.0]]), torch.zeros(1, 3), mask, gamma=1.0, lam=0.95)
    torch.testing.assert_close(gain, torch.tensor([[0.95, 1.0, 0.0]]))
    assert place_terminal(torch.tensor([1.0]), mask).tolist() == [[0, 1, 0]]


@settings(deadline=None, max_examples=40)
@given(data=st.data(), lam=st.sampled_from([1.0, 0.95, 0.5]), gamma=st.sampled_from([1.0, 0.9]))
def test_observations_may_hold_any_value_and_be_of_any_length(data, lam, gamma):
    """The kind of the two above: an observation is no step, whatever stands on it and however long it is."""
    mask = data.draw(hnp.arrays(np.bool_, (1, 30)))
    values = np.where(mask, data.draw(hnp.arrays(np.float64, (1, 30), elements=st.floats(-2, 2))), np.nan)
    rewards = place_terminal(torch.tensor([0.7], dtype=torch.float64), torch.from_numpy(mask))
    gain, _ = advantages(rewards, torch.from_numpy(values), torch.from_numpy(mask), gamma=gamma, lam=lam)
    short = mask[0]
    if short.any():
        alone, _ = advantages(
            rewards[:, short], torch.from_numpy(values[:, short]), torch.ones(1, int(short.sum())), gamma=gamma, lam=lam
        )
        torch.testing.assert_close(gain[:, short], alone, atol=1e-12, rtol=0)
    assert not gain[:, ~short].any()


def test_no_function_changes_what_it_is_given():
    # slime #2114: the KL tensor was overwritten in place, so the logged KL was the reward ([.1, .2] became [-.05, .9]).
    generator = torch.Generator().manual_seed(0)
    a, b, c, d = (torch.rand(2, 6, generator=generator) for _ in range(4))
    mask, stream = torch.ones(2, 6), torch.arange(12).view(2, 6) // 6
    logits = torch.rand(12, 4, generator=generator)
    given_ = (a, b, c, d, mask, stream, logits)
    kept = [x.clone() for x in given_]
    advantages(a, b, mask, gamma=1.0, lam=0.9)
    policy_loss(a, b, c, mask, clip=0.2, denominator=12)
    sequence_policy_loss(
        a.flatten(), b.flatten(), c.flatten(), mask.flatten(), stream.flatten(), clip=0.2, denominator=2
    )
    value_loss(a, b, c, mask, clip=0.2, denominator=12)
    hl_gauss_loss(logits, d.flatten(), mask.flatten(), bins=Bins(0, 1, 4, 0.75), denominator=12)
    logprob_gap(a, b, mask)
    whiten(a, mask)
    group_advantages(a[0], stream.flatten()[:6])
    token_logprobs(logits, torch.zeros(12), temperature=0.5)
    assert all(torch.equal(before, after) for before, after in zip(kept, given_, strict=True))


def test_the_gap_is_not_inflated_by_the_number_of_micro_batches():
    # The paper: normalising by the number of micro-batches inflated the gap some thousandfold.
    train = torch.full((1, 4_000), -1.0)
    gap = logprob_gap(train, train - 0.02, torch.ones(1, 4_000))
    assert gap["token_mean"] == pytest.approx(0.02, rel=1e-4)
    assert gap["tokens"] == 4_000


def test_log_probs_are_taken_at_the_sampling_temperature_on_both_sides():
    # miles #1345, slime #2085/#2297, prime-rl #679, vime #69: one side at T, the other at 1; or after top-p.
    logits = torch.tensor([[1.0, 2.0, 4.0]])
    got = token_logprobs(logits, torch.tensor([1]), temperature=0.5)
    torch.testing.assert_close(got, torch.log_softmax(torch.tensor([2.0, 4.0, 8.0]), 0)[1:2])


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_without_log_probs_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature"):
        token_logprobs(torch.zeros(1, 3), torch.tensor([0]), temperature=temperature)


def test_nan_outside_the_loss_region_reaches_neither_loss_nor_gradient():
    # The kind of AReaL #1554, NeMo #3297: what was not measured was taken for 0 and trained on; ours is never read.
    new = torch.tensor([-1.0, math.nan], requires_grad=True)
    loss, tally = policy_loss(
        new,
        torch.tensor([-1.1, math.nan]),
        torch.tensor([1.0, math.nan]),
        torch.tensor([1, 0]),
        clip=0.2,
        denominator=1,
    )
    loss.backward()
    assert new.grad.tolist()[1] == 0
    assert all(math.isfinite(value) for value in tally.values())
