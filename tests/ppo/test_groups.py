"""The baselines' judgement: groups by themselves, and what they could teach."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from components.ppo import group_advantages, group_statistics


@settings(deadline=None, max_examples=60)
@given(
    groups=st.lists(st.lists(st.floats(0, 2, width=32), min_size=1, max_size=6), min_size=1, max_size=6),
    shuffle=st.randoms(use_true_random=False),
)
def test_each_group_is_normalised_by_its_own_mean_and_unbiased_deviation(groups, shuffle):
    trials = [(reward, index) for index, group in enumerate(groups) for reward in group]
    shuffle.shuffle(trials)
    got = group_advantages(
        torch.tensor([reward for reward, _ in trials], dtype=torch.float64), torch.tensor([g for _, g in trials])
    )
    for (reward, index), advantage in zip(trials, got.tolist(), strict=True):
        group = np.array(groups[index])
        deviation = group.std(ddof=1) if len(group) > 1 else 0.0
        if deviation > 1e-5 * max(abs(group.mean()), 1e-30):
            assert advantage == pytest.approx((reward - group.mean()) / deviation, abs=1e-9)
        elif deviation == 0:
            assert advantage == 0


def test_a_group_of_equal_rewards_carries_no_signal_even_when_its_mean_rounds():
    a = group_advantages(torch.tensor([0.1, 0.1, 0.1, 7.0, 7.0], dtype=torch.float64), torch.tensor([4, 4, 4, 9, 9]))
    assert a.tolist() == [0.0] * 5


def test_groups_may_be_interleaved():
    rewards, groups = torch.tensor([1.0, 10.0, 3.0, 30.0]), torch.tensor([7, 2, 7, 2])
    torch.testing.assert_close(group_advantages(rewards, groups), torch.tensor([-1.0, -1.0, 1.0, 1.0]) * 0.5**0.5)


def test_groups_without_spread_are_counted_and_told_apart_from_those_that_failed():
    rewards = torch.tensor([0.0, 0.0, 0.5, 0.5, 0.1, 0.3, 0.9])
    groups = torch.tensor([0, 0, 1, 1, 2, 2, 3])
    assert group_statistics(rewards, groups) == pytest.approx(
        {
            "count": 4,
            "size_mean": 7 / 4,
            "single": 1,
            "compared": 3,
            "zero_variance": 2 / 3,
            "all_zero": 1 / 3,
            "deviation_mean": 0.2 * 0.5**0.5 / 3,
        },
        abs=1e-7,
    )


def test_without_a_group_of_two_there_is_no_share_to_report():
    assert group_statistics(torch.tensor([0.1, 0.2]), torch.tensor([0, 1])) == {
        "count": 2,
        "size_mean": 1,
        "single": 2,
        "compared": 0,
    }
