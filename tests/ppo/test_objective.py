"""The clipped losses against float64 loops, and the properties that micro-batching must not break."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from components.ppo import Tally, policy_loss, sequence_policy_loss, value_loss


def draw(seed, n=60):
    generator = torch.Generator().manual_seed(seed)
    new, old = (-torch.rand(n, generator=generator, dtype=torch.float64) * 2 for _ in range(2))
    gain, target = (torch.randn(n, generator=generator, dtype=torch.float64) for _ in range(2))
    mask = torch.rand(n, generator=generator) < 0.6
    mask[0] = True
    return new, old, gain, target, mask


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), clip=st.sampled_from([0.1, 0.2, 0.5]))
def test_policy_loss_equals_equation_18(seed, clip):
    new, old, gain, _, mask = draw(seed)
    loss, tally = policy_loss(new, old, gain, mask, clip=clip, denominator=mask.sum())
    terms, clipped = [], 0
    for p, q, a in zip(new[mask].tolist(), old[mask].tolist(), gain[mask].tolist(), strict=True):
        r = np.exp(p - q)
        terms.append(-min(r * a, min(max(r, 1 - clip), 1 + clip) * a))
        clipped += (r > 1 + clip and a > 0) or (r < 1 - clip and a < 0)
    assert float(loss) == pytest.approx(np.mean(terms), abs=1e-12)
    ratio = (new - old)[mask].exp()
    assert tally["loss"] == pytest.approx(np.mean(terms), abs=1e-12)
    assert tally["clip_frac"] == pytest.approx(clipped / len(terms))
    assert tally["ratio_max"] == pytest.approx(float(ratio.max()))
    assert tally["approx_kl"] == pytest.approx(float((ratio - 1 - ratio.log()).mean()))


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), clip=st.sampled_from([0.1, 0.2, 0.5]))
def test_value_loss_equals_equation_17(seed, clip):
    value, old, _, target, mask = draw(seed)
    loss, tally = value_loss(value, old, target, mask, clip=clip, denominator=float(mask.sum()))
    terms = []
    for v, o, r in zip(value[mask].tolist(), old[mask].tolist(), target[mask].tolist(), strict=True):
        held = o + min(max(v - o, -clip), clip)
        terms.append(max((v - r) ** 2, (held - r) ** 2))
    assert float(loss) == pytest.approx(np.mean(terms), abs=1e-12)
    assert tally["clip_frac"] == pytest.approx(float(((value - old).abs() > clip)[mask].double().mean()))


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), cut=st.integers(1, 59))
def test_micro_batches_add_up_to_the_whole_batch_in_loss_gradient_and_metrics(seed, cut):
    new, old, gain, target, mask = draw(seed)
    total = mask.sum()

    def both(part, leaf):
        p, p_tally = policy_loss(leaf[part], old[part], gain[part], mask[part], clip=0.2, denominator=total)
        v, v_tally = value_loss(leaf[part], old[part], target[part], mask[part], clip=0.2, denominator=total)
        (p + v).backward()
        return float((p + v).detach()), p_tally, v_tally

    whole, cutted = new.clone().requires_grad_(), new.clone().requires_grad_()
    loss, *tallies = both(slice(None), whole)
    first, *first_tallies = both(slice(0, cut), cutted)
    second, *second_tallies = both(slice(cut, None), cutted)
    assert first + second == pytest.approx(loss, abs=1e-12)
    torch.testing.assert_close(whole.grad, cutted.grad)
    for want, a, b in zip(tallies, first_tallies, second_tallies, strict=True):
        assert dict(a + b) == pytest.approx(dict(want))


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), clip=st.sampled_from([4e-4, 0.05, 0.2]))
def test_sequence_policy_loss_has_one_ratio_and_one_clip_a_stream(seed, clip):
    new, old, _, _, mask = draw(seed)
    stream = torch.arange(60) // 9
    gain_S = torch.randn(7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    mask[stream == 6] = False
    leaf = new.clone().requires_grad_()
    denominator = int(stream[mask].unique().numel())
    loss, tally = sequence_policy_loss(leaf, old, gain_S[stream], mask, stream, clip=clip, denominator=denominator)
    loss.backward()
    terms, gradient = [], torch.zeros(60, dtype=torch.float64)
    for s in stream[mask].unique().tolist():
        own = mask & (stream == s)
        ratio, a = float((new - old)[own].mean().exp()), float(gain_S[s])
        held = min(max(ratio, 1 - clip), 1 + clip)
        terms.append(-min(ratio * a, held * a))
        if ratio * a <= held * a:
            gradient[own] = -ratio * a / own.sum() / denominator
    assert float(loss.detach()) == pytest.approx(np.mean(terms), abs=1e-12)
    assert tally["loss"] == pytest.approx(np.mean(terms), abs=1e-12)
    torch.testing.assert_close(leaf.grad, gradient)


def test_what_stands_outside_the_mask_reaches_neither_loss_nor_gradient():
    nan, inf = float("nan"), float("inf")
    mask = torch.tensor([True, False, False, False])
    new = torch.tensor([-1.0, nan, -inf, 500.0], requires_grad=True)
    rest = torch.tensor([-1.2, nan, -inf, -500.0])
    loss, tally = policy_loss(new, rest, torch.tensor([1.0, nan, inf, -inf]), mask, clip=0.2, denominator=1)
    value, value_tally = value_loss(new, rest, torch.tensor([0.5, nan, inf, 3.0]), mask, clip=0.2, denominator=1)
    (loss + value).backward()
    assert torch.isfinite(loss + value)
    assert new.grad.tolist()[1:] == [0, 0, 0]
    assert new.grad[0] != 0
    assert all(np.isfinite(x) for x in [*tally.values(), *value_tally.values()])


def test_the_first_step_of_a_fresh_snapshot_has_ratio_one_and_the_plain_gradient():
    new = torch.tensor([-1.0, -2.0], requires_grad=True)
    loss, tally = policy_loss(
        new, new.detach(), torch.tensor([2.0, -4.0]), torch.ones(2), clip=0.2, denominator=torch.tensor(2)
    )
    loss.backward()
    assert new.grad.tolist() == [-1.0, 2.0]
    assert (tally["ratio"], tally["approx_kl"], tally["clip_frac"]) == (1, 0, 0)


def test_an_empty_micro_batch_adds_nothing_and_measures_nothing():
    new = torch.zeros(3, requires_grad=True)
    loss, tally = policy_loss(new, new.detach(), new.detach(), torch.zeros(3), clip=0.2, denominator=7)
    loss.backward()
    assert float(loss.detach()) == 0
    assert not new.grad.any()
    assert dict(tally) == {}
    with pytest.raises(KeyError):
        tally["loss"]


def test_a_global_batch_without_loss_tokens_is_refused():
    x = torch.zeros(3)
    with pytest.raises(ValueError, match="no loss tokens"):
        policy_loss(x, x, x, x, clip=0.2, denominator=x.sum())


def test_tallies_of_different_losses_do_not_add():
    one = torch.tensor(1.0)
    with pytest.raises(ValueError, match="different losses"):
        Tally.of(one, {"a": one}, {}) + Tally.of(one, {"b": one}, {})
