"""The weights of the known corrections, against their definitions written out."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from components.ppo import icepop_weights, sequence_k3_weights, sequence_ratio_weights, tis_weights

RATIOS = [0.1, 0.5, 0.9, 1.0, 1.9, 2.0, 4.9, 6.0]
LOG = torch.tensor(RATIOS, dtype=torch.float64).log()


def test_tis_caps_the_ratio_and_leaves_it_below():
    assert tis_weights(LOG, cap=2.0).tolist() == pytest.approx([0.1, 0.5, 0.9, 1.0, 1.9, 2.0, 2.0, 2.0])


def test_icepop_keeps_the_ratio_inside_the_band_and_drops_the_token_outside():
    got = icepop_weights(LOG, low=0.45, high=5.0).tolist()
    assert got == pytest.approx([0, 0.5, 0.9, 1.0, 1.9, 2.0, 4.9, 0])


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10_000), limit=st.sampled_from([0.001, 0.01, 0.1]), width=st.sampled_from([0.02, 0.2]))
def test_a_stream_is_kept_or_dropped_as_a_whole_by_the_mean_of_its_own_tokens(seed, limit, width):
    rng = np.random.default_rng(seed)
    stream = np.repeat(np.arange(5), [4, 1, 9, 3, 7])
    log_ratio = rng.normal(0, rng.choice([0.01, 0.1, 0.5], 5)[stream])
    mask = rng.random(len(stream)) < 0.7
    args = (torch.from_numpy(log_ratio), torch.from_numpy(mask), torch.from_numpy(stream))
    k3 = sequence_k3_weights(*args, limit=limit).numpy()
    geometric = sequence_ratio_weights(*args, low=1 - width, high=1 + width).numpy()
    for row in range(5):
        own = log_ratio[(stream == row) & mask]
        mean_k3 = np.mean(np.exp(own) - own - 1) if len(own) else 0.0
        mean_ratio = np.exp(own.mean()) if len(own) else 1.0
        assert (k3[stream == row] == (mean_k3 <= limit)).all()
        assert (geometric[stream == row] == (1 - width <= mean_ratio <= 1 + width)).all()


def test_engines_that_agree_weigh_every_token_one_and_extremes_stay_finite():
    zero, mask, stream = torch.zeros(3), torch.ones(3), torch.tensor([0, 0, 1])
    far = torch.tensor([500.0, -500.0, 0.0])
    for log_ratio, want in ((zero, True), (far, False)):
        weights = (
            tis_weights(log_ratio, cap=2.0),
            icepop_weights(log_ratio, low=0.5, high=5.0),
            sequence_k3_weights(log_ratio, mask, stream, limit=0.01),
            sequence_ratio_weights(log_ratio, mask, stream, low=0.98, high=1.02),
        )
        for weight in weights:
            assert torch.isfinite(weight).all()
            assert (weight >= 0).all()
            assert not want or (weight == 1).all()


def test_a_weight_is_outside_autograd():
    log_ratio = torch.zeros(3, requires_grad=True)
    assert not tis_weights(log_ratio, cap=2.0).requires_grad
    assert not icepop_weights(log_ratio, low=0.5, high=5.0).requires_grad
