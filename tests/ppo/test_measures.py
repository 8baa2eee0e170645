"""The log-prob gap and explained variance; the latter, and the losses, over real gloo ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from components.ppo import explained_variance, logprob_gap


def test_the_gap_series_equal_their_definitions():
    generator = np.random.default_rng(0)
    train, rollout = -generator.random(200) * 2, -generator.random(200) * 2
    mask, trial = generator.random(200) < 0.5, np.arange(200) // 23
    got = logprob_gap(train, torch.from_numpy(rollout), mask, trial)
    d = (train - rollout)[mask]
    owner = trial[mask]
    w = np.exp(d)
    want = {
        "tokens": len(d),
        "token_mean": np.abs(d).mean(),
        "trial_mean": np.mean([np.abs(d[owner == t]).mean() for t in np.unique(owner)]),
        "max": np.abs(d).max(),
        "k1": -d.mean(),
        "k3": (np.exp(d) - d - 1).mean(),
        "frac_gt_ln2": (np.abs(d) > np.log(2)).mean(),
        "ess": w.sum() ** 2 / (len(w) * (w**2).sum()),
    }
    assert got == pytest.approx(want)


def test_the_gap_is_a_token_mean_however_tokens_are_spread_over_trials():
    # Eq 15: normalising by the number of micro-batches inflates the gap some thousandfold.
    train = torch.tensor([[-1.0, -1.0, -1.0], [-1.0, 0.0, 0.0]])
    rollout = torch.tensor([[-1.1, -1.1, -1.1], [-1.5, 9.0, 9.0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    got = logprob_gap(train, rollout, mask)
    assert got["token_mean"] == pytest.approx((0.1 * 3 + 0.5) / 4)
    assert got["trial_mean"] == pytest.approx((0.1 + 0.5) / 2)
    assert logprob_gap(train.flatten(), rollout.flatten(), mask.flatten())["trial_mean"] == got["token_mean"]


def test_equal_log_probs_have_no_gap_and_an_empty_region_has_no_measurement():
    x = np.full(4, -0.3, np.float32)
    got = logprob_gap(x, x, np.ones(4, bool))
    assert (got["token_mean"], got["max"], got["k3"], got["ess"]) == (0, 0, 0, 1)
    assert logprob_gap(x, x, np.zeros(4, bool)) == {"tokens": 0.0}
    with pytest.raises(ValueError, match="differ in shape"):
        logprob_gap(x, x[:3], x)


def test_the_gap_ignores_autograd_and_what_lies_outside_the_mask():
    train = torch.tensor([-0.5, float("nan")], requires_grad=True)
    assert logprob_gap(train, torch.tensor([-0.25, 0.0]), torch.tensor([1, 0]))["token_mean"] == 0.25


def test_explained_variance_is_one_for_a_perfect_critic_and_negative_for_a_noisy_one():
    returns = torch.tensor([0.0, 1.0, 2.0, 99.0])
    mask = torch.tensor([1, 1, 1, 0])
    assert explained_variance(returns, returns + 5, mask) == 1  # a constant error is not variance
    assert explained_variance(returns, torch.zeros(4), mask) == 0
    assert explained_variance(returns, -returns, mask) == pytest.approx(-3)


def test_explained_variance_of_returns_that_do_not_vary_is_not_a_number():
    ones = torch.ones(3)
    assert np.isnan(explained_variance(ones, torch.rand(3), ones))
    assert np.isnan(explained_variance(ones, ones, torch.zeros(3)))
    apart = torch.tensor([1.0, np.nextafter(np.float32(1), np.float32(2)), 1.0])
    assert np.isnan(explained_variance(apart, torch.zeros(3), torch.ones(3))), "they differ by rounding alone"


RANK = """
import json, sys, torch, torch.distributed as dist
from components.ppo import explained_variance, policy_loss, value_loss
rank = int(sys.argv[1])
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[2], 3), rank=rank, world_size=3)
g = torch.Generator().manual_seed(0)
returns, values, mask = torch.rand(30, generator=g) + 100, torch.rand(30, generator=g), torch.rand(30, generator=g) < .7
mask[20:] = False                       # the last rank has no loss token at all
part = slice(rank * 10, rank * 10 + 10)
got = explained_variance(returns[part], values[part], mask[part], dist.group.WORLD)
want = explained_variance(returns, values, mask)
rows = [[got, want, 1e-9]]
for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
    new, old, gain = ((torch.rand(30, generator=g, dtype=torch.float64) - .5).to(dtype) for _ in range(3))
    tokens = mask.sum().clone()
    mine = mask[part].sum()
    dist.all_reduce(mine)
    assert mine == tokens
    whole, leaf = new.clone().requires_grad_(), new[part].clone().requires_grad_()
    for loss in (
        lambda x, p: policy_loss(x, old[p], gain[p], mask[p], clip=.2, denominator=tokens),
        lambda x, p: value_loss(x, old[p], gain[p], mask[p], clip=.2, denominator=tokens),
    ):
        want_loss, want_tally = loss(whole, slice(None))
        own_loss, own_tally = loss(leaf, part)
        want_loss.backward(); own_loss.backward()
        summed = own_loss.detach().clone()
        dist.all_reduce(summed)
        rows.append([float(summed), float(want_loss.detach()), tolerance])
        tally = own_tally.reduce()
        rows += [[tally[name], want_tally[name], tolerance] for name in want_tally]
    rows.append([float((leaf.grad - whole.grad[part]).abs().max()), 0.0, tolerance])
print(json.dumps(rows))
dist.destroy_process_group()
"""


def test_ranks_with_unequal_tokens_report_the_global_variance_losses_and_gradients(tmp_path):
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, env=env
        )
        for rank in range(3)
    ]
    for process in ranks:
        out, _ = process.communicate(timeout=200)
        rows = json.loads(out)
        assert len(rows) == 1 + 2 * (2 + 5 + 3 + 1)
        for got, want, tolerance in rows:
            assert got == pytest.approx(want, abs=tolerance)
