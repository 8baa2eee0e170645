"""The token mean over the global batch: what it is made of may be cut into micro-batches and ranks at will.

The equality is to rounding: 1e-12 in float64, 1e-6 in float32, for loss, gradient and every figure that is reported.
"""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from components.ppo import Bins, hl_gauss_loss, policy_loss, sequence_policy_loss, value_loss

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}
BINS = Bins(-1.0, 1.0, 7, 0.75)
LOSSES = ("policy", "sequence", "value", "hl_gauss")


def streams(seed, dtype):
    """Ragged streams of (new, old, gain, target, mask); the last has no loss token."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for index, n in enumerate([5, 30, 1, 12, 64, 9]):
        new, old, gain, target = (torch.randn(n, generator=generator, dtype=torch.float64).to(dtype) for _ in range(4))
        mask = torch.rand(n, generator=generator) < 0.6
        mask[0] = index < 5
        made.append((new * 0.3, old * 0.3, gain, target, mask & (index < 5)))
    return made


def loss_of(kind, parts, leaf, where, tokens, sequences):
    """The loss of some streams of the batch; `leaf` holds the new log-probs (or values) of the whole batch."""
    new = torch.cat([leaf[where[p]] for p in parts])
    _, old, gain, target, mask = (torch.cat(columns) for columns in zip(*(STREAMS[p] for p in parts), strict=True))
    if kind == "policy":
        return policy_loss(new, old, gain, mask, clip=0.2, denominator=tokens)
    if kind == "sequence":
        number = torch.cat([torch.full_like(STREAMS[p][4], i, dtype=torch.int64) for i, p in enumerate(parts)])
        return sequence_policy_loss(new, old, gain, mask, number, clip=0.2, denominator=sequences)
    if kind == "value":
        return value_loss(new, old, target, mask, clip=0.2, denominator=tokens)
    logits = new[:, None] * torch.linspace(-1, 1, BINS.count, dtype=new.dtype)
    return hl_gauss_loss(logits, target, mask, bins=BINS, denominator=tokens)


STREAMS: list = []


def evaluate(kind, cuts):
    """Loss, gradient and figures when the batch is cut into these lists of streams."""
    leaf = torch.cat([stream[0] for stream in STREAMS]).requires_grad_()
    ends = np.cumsum([len(stream[0]) for stream in STREAMS])
    where = [slice(end - len(stream[0]), end) for end, stream in zip(ends, STREAMS, strict=True)]
    tokens = sum(int(stream[4].sum()) for stream in STREAMS)
    sequences = sum(bool(stream[4].any()) for stream in STREAMS)
    total, tally = 0.0, None
    for parts in cuts:
        loss, own = loss_of(kind, parts, leaf, where, tokens, sequences)
        loss.backward()
        total += float(loss.detach())
        tally = own if tally is None else tally + own
    return total, leaf.grad, dict(tally)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 10_000), owner=st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_however_a_batch_is_dealt_out_loss_gradient_and_figures_are_the_same(kind, dtype, seed, owner):
    STREAMS[:] = streams(seed, dtype)
    whole = evaluate(kind, [list(range(6))])
    dealt = evaluate(kind, [part for rank in range(4) if (part := [i for i in range(6) if owner[i] == rank])])
    tolerance = TOLERANCE[dtype]
    assert dealt[0] == pytest.approx(whole[0], abs=tolerance)
    torch.testing.assert_close(dealt[1], whole[1], atol=tolerance, rtol=0)
    assert dealt[2] == pytest.approx(whole[2], abs=tolerance)


def test_a_mean_of_micro_batch_means_would_be_another_number():
    """The fault that the reduction avoids: the same tokens weigh otherwise when the packing changes."""
    STREAMS[:] = streams(3, torch.float64)
    means = []
    for parts in ([0, 1, 2], [3, 4]):
        tokens = sum(int(STREAMS[p][4].sum()) for p in parts)
        new, old, gain, _, mask = (torch.cat(columns) for columns in zip(*(STREAMS[p] for p in parts), strict=True))
        means.append(float(policy_loss(new, old, gain, mask, clip=0.2, denominator=tokens)[0]))
    assert abs(np.mean(means) - evaluate("policy", [list(range(6))])[0]) > 1e-3
