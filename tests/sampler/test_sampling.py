"""Draws: the distribution, the restrictions, the reported log-probs."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from components.sampler.engine.sampling import draw, plan_draws


def reference_support(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> set[int]:
    """Ids that may be drawn, in float64."""
    probs = np.exp(logits / temperature - np.max(logits / temperature))
    probs /= probs.sum()
    order = np.argsort(-probs, kind="stable")
    before = np.cumsum(probs[order]) - probs[order]
    # A little slack: float32 may round a cumulative mass to the other side of top_p.
    return {int(i) for rank, i in enumerate(order) if (top_k < 1 or rank < top_k) and before[rank] <= top_p + 1e-5}


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    top_k=st.sampled_from([-1, 1, 3, 20, 200, 1000]),
    top_p=st.sampled_from([1.0, 0.9, 0.3, 1e-6]),
    temperature=st.sampled_from([1.0, 0.1, 2.0]),
)
def test_a_draw_never_leaves_the_restricted_support(seed: int, top_k: int, top_p: float, temperature: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(5, 300, generator=generator) * 3
    uniforms = torch.rand(5, generator=generator)
    uniforms[0], uniforms[1] = 0.0, 1 - 2**-24
    rows = torch.ones(5)
    plan = plan_draws(rows * temperature, (rows * top_k).long(), rows * top_p, 300)
    tokens, logprobs = draw(logits, uniforms, plan)
    expected = (logits.double() / temperature).log_softmax(-1)
    for row, token in enumerate(tokens.tolist()):
        assert token in reference_support(logits[row].double().numpy(), temperature, top_k, top_p)
        assert abs(expected[row, token].item() - logprobs[row].item()) < 1e-4


def test_settings_of_one_row_do_not_touch_another() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    uniforms = torch.tensor([0.3, 0.6, 0.9, 0.99])
    temperature, top_k, top_p = (
        torch.tensor([1.0, 0.5, 2.0, 1.0]),
        torch.tensor([-1, 1, 7, -1]),
        torch.tensor([1.0, 1.0, 0.8, 0.5]),
    )
    together = draw(logits, uniforms, plan_draws(temperature, top_k, top_p, 50))
    for row in range(4):
        one = slice(row, row + 1)
        alone = draw(logits[one], uniforms[one], plan_draws(temperature[one], top_k[one], top_p[one], 50))
        assert together[0][one].tolist() == alone[0].tolist()
        torch.testing.assert_close(together[1][one], alone[1])


def test_draws_follow_the_distribution() -> None:
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(1))
    count = 40_000
    uniforms = torch.rand(count, generator=torch.Generator().manual_seed(2))
    rows = torch.ones(count)
    tokens, _ = draw(logits.expand(count, -1), uniforms, plan_draws(rows, rows.long() * -1, rows, 12))
    share = torch.bincount(tokens, minlength=12) / count
    assert (share - logits[0].softmax(-1)).abs().max() < 0.01
