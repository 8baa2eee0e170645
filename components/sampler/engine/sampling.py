"""Drawing tokens: tempered log-probs, top-k/top-p restriction, inverse-CDF draws from given uniforms.

Semantics are SGLang's: the reported log-prob is log_softmax(logits / T) in float32, before top-k and top-p; both
restrictions look at the tempered distribution. T = 0 is top_k = 1 at T = 1, so greedy log-probs are untempered.

Invariant: a draw depends on its own logits and its own uniform only, and never has probability zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Keeps a uniform of 1 - 2^-24 times the total strictly below the total after rounding.
_BELOW_ONE = 1.0 - 2.0**-22
# Above this, sorting the whole row costs less than a partial sort.
_PARTIAL_SORT = 128


@dataclass(frozen=True, slots=True, eq=False)
class DrawPlan:
    """How the rows of a batch are drawn.

    Attributes:
        temperature: [n, 1], or None when every row has T = 1.
        restricted: indexes of the rows with a top-k or top-p, or None when there are none.
        top_k: int64[m, 1] of those rows, `vocab` where absent.
        top_p: float32[m, 1] of those rows.
        widest: largest top_k of those rows.
    """

    temperature: Tensor | None
    restricted: Tensor | None = None
    top_k: Tensor | None = None
    top_p: Tensor | None = None
    widest: int = 0


def plan_draws(temperature: Tensor, top_k: Tensor, top_p: Tensor, vocab: int) -> DrawPlan:
    """Prepares the draws of rows with these settings; top_k <= 0 and top_p >= 1 mean no restriction."""
    tempered = None if bool((temperature == 1).all()) else temperature[:, None]
    rows = ((top_k > 0) & (top_k < vocab) | (top_p < 1)).nonzero()[:, 0]
    if not len(rows):
        return DrawPlan(tempered)
    k = top_k[rows]
    k = torch.where((k > 0) & (k < vocab), k, vocab)[:, None]
    return DrawPlan(tempered, rows, k, top_p[rows][:, None], int(k.max()))


def draw(logits_NV: Tensor, uniforms_N: Tensor, plan: DrawPlan) -> tuple[Tensor, Tensor]:
    """Draws one token a row. Returns (ids int64[n], log-probs float32[n])."""
    logits = logits_NV if plan.temperature is None else logits_NV / plan.temperature
    logprobs = logits.log_softmax(-1)
    if plan.restricted is None:
        tokens = _invert(logprobs.exp(), uniforms_N)
    elif len(plan.restricted) == len(logits):
        tokens = _restricted(logprobs.exp(), uniforms_N, plan)
    else:
        probs = logprobs.exp()
        tokens = _invert(probs, uniforms_N)
        rows = plan.restricted
        tokens[rows] = _restricted(probs[rows], uniforms_N[rows], plan)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def _restricted(probs: Tensor, uniforms: Tensor, plan: DrawPlan) -> Tensor:
    assert plan.top_k is not None
    assert plan.top_p is not None
    if plan.widest <= _PARTIAL_SORT:
        ranked, ids = probs.topk(plan.widest, dim=-1)
    else:
        ranked, ids = probs.sort(dim=-1, descending=True, stable=True)
    before = ranked.cumsum(-1) - ranked
    ranks = torch.arange(ranked.shape[1])
    kept = (ranks < plan.top_k) & ((before <= plan.top_p) | (ranks == 0))
    return ids.gather(1, _invert(ranked * kept, uniforms)[:, None])[:, 0]


def _invert(mass: Tensor, uniforms: Tensor) -> Tensor:
    """First index whose cumulative mass exceeds the uniform's share of the total: one of positive mass."""
    cumulative = mass.cumsum(-1)
    target = (uniforms * _BELOW_ONE)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True)[:, 0]
