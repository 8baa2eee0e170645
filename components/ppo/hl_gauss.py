"""A value as a distribution over bins, trained by cross entropy (HL-Gauss: Farebrother et al. 2024, arXiv 2403.03950).

Invariant: a target's probabilities sum to 1 and are those of a Gaussian around the return within [low, high]; a return
beyond the bins is taken at the border and counted. Like every loss here it is a sum over the loss region divided by the
global batch's tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from components.ppo.objective import keep, largest, region
from components.ppo.tally import Tally


@dataclass(frozen=True, slots=True)
class Bins:
    """`count` bins of equal width over [low, high]; a target is a Gaussian of deviation `spread` widths."""

    low: float
    high: float
    count: int
    spread: float

    @property
    def width(self) -> float:
        return (self.high - self.low) / self.count

    def edges(self, like: Tensor) -> Tensor:
        """[count + 1], in the precision and on the device of `like`."""
        return torch.linspace(self.low, self.high, self.count + 1, dtype=like.dtype, device=like.device)

    def targets(self, returns_N: Tensor) -> Tensor:
        """[N, count]: the probability of each bin."""
        inside_N = returns_N.clamp(self.low, self.high)
        scaled = (self.edges(returns_N) - inside_N.unsqueeze(-1)) / (self.spread * self.width * math.sqrt(2))
        cdf: Tensor = torch.special.erf(scaled)
        return (cdf[..., 1:] - cdf[..., :-1]) / (cdf[..., -1:] - cdf[..., :1])

    def values(self, logits_NK: Tensor) -> Tensor:
        """[N]: the mean of the predicted distribution, each bin at its centre."""
        edges = self.edges(logits_NK)
        return torch.softmax(logits_NK, dim=-1) @ ((edges[1:] + edges[:-1]) / 2)


def hl_gauss_loss(
    logits_NK: Tensor, returns_N: Tensor, mask_N: Tensor, *, bins: Bins, denominator: float | Tensor
) -> tuple[Tensor, Tally]:
    """Sum of m * cross entropy(target of the return, prediction) / denominator, in the logits' precision.

    The tally holds `loss`, `square_error` of the mean value, `outside_bins` (returns beyond the bins) and `error_max`.
    """
    mask, count = region(mask_N, denominator)
    returns = keep(mask, returns_N.to(logits_NK.dtype))
    log_probs = torch.log_softmax(logits_NK, dim=-1)
    loss_sum = -keep(mask, (bins.targets(returns) * log_probs).sum(-1)).sum()
    with torch.no_grad():
        error = keep(mask, bins.values(logits_NK) - returns)
        outside = mask & ((returns < bins.low) | (returns > bins.high))
        sums = {"loss": loss_sum.detach(), "square_error": error.square().sum(), "outside_bins": outside.sum()}
        tally = Tally.of(count, sums, {"error_max": largest(error.abs(), mask)})
    return loss_sum / denominator, tally
