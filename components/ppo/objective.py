"""The clipped objectives of actor and critic (paper Eq 17, 18) and the log-probs they are made of.

Invariant: a loss is a sum over the loss region divided by `denominator`, the number of loss tokens of the *global*
batch. So micro-batches and ranks add up to the token mean however the batch was cut, and positions outside the mask
cannot reach the loss or its gradient, whatever stands there.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from components.ppo.tally import Tally


def policy_loss(
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    advantages_N: Tensor,
    mask_N: Tensor,
    *,
    clip: float,
    denominator: float | Tensor,
) -> tuple[Tensor, Tally]:
    """Eq 18: -sum m min(r A, clip(r, 1 +- clip) A) / denominator, r = exp(logprobs - old_logprobs). Any shape.

    The tally holds `loss`, `clip_frac` (tokens whose gradient the clip removed), `approx_kl` (k3 of the policy step),
    `ratio` and `ratio_max`.
    """
    mask, count = _region(mask_N, denominator)
    log_ratio = _keep(mask, logprobs_N - old_logprobs_N)
    gain = _keep(mask, advantages_N)
    ratio = log_ratio.exp()
    surrogate = torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain)
    loss_sum = -_keep(mask, surrogate).sum()
    with torch.no_grad():
        clipped = ((ratio > 1 + clip) & (gain > 0)) | ((ratio < 1 - clip) & (gain < 0))
        sums = {
            "loss": loss_sum.detach(),
            "clip_frac": (clipped & mask).sum(),
            "approx_kl": (torch.expm1(log_ratio) - log_ratio).sum(),
            "ratio": _keep(mask, ratio).sum(),
        }
        tally = Tally.of(count, sums, {"ratio_max": _largest(ratio, mask)})
    return loss_sum / denominator, tally


def value_loss(
    values_N: Tensor,
    old_values_N: Tensor,
    returns_N: Tensor,
    mask_N: Tensor,
    *,
    clip: float,
    denominator: float | Tensor,
) -> tuple[Tensor, Tally]:
    """Eq 17: sum m max((V - R)^2, (V_clip - R)^2) / denominator, V_clip = V_old + clip(V - V_old, +-clip). Any shape.

    The tally holds `loss`, `clip_frac` (tokens that moved beyond the clip) and `error_max`.
    """
    mask, count = _region(mask_N, denominator)
    error = _keep(mask, values_N - returns_N)
    moved = _keep(mask, values_N - old_values_N)
    clipped_error = _keep(mask, old_values_N - returns_N) + moved.clamp(-clip, clip)
    loss_sum = torch.maximum(error.square(), clipped_error.square()).sum()
    with torch.no_grad():
        sums = {"loss": loss_sum.detach(), "clip_frac": (moved.abs() > clip).sum()}
        tally = Tally.of(count, sums, {"error_max": _largest(error.abs(), mask)})
    return loss_sum / denominator, tally


def token_logprobs(logits_NV: Tensor, ids_N: Tensor, *, temperature: float) -> Tensor:
    """Log-prob of each id at the sampling temperature: log_softmax(z / T), before any top-p or top-k, in float32.

    Raises:
        ValueError: `temperature` is not positive: a greedy draw has no log-prob to train on.
    """
    if not temperature > 0:
        raise ValueError(f"log-probs need a sampling temperature above 0, got {temperature}")
    scaled = logits_NV.float() / temperature
    return F.log_softmax(scaled, dim=-1).gather(-1, ids_N.long().unsqueeze(-1)).squeeze(-1)


def _region(mask_N: Tensor, denominator: float | Tensor) -> tuple[Tensor, Tensor]:
    if not float(denominator) > 0:
        raise ValueError(f"the global batch has no loss tokens: denominator {float(denominator)}")
    mask = mask_N.bool()
    return mask, mask.sum()


def _keep(mask_N: Tensor, x_N: Tensor) -> Tensor:
    """Zero outside the mask, in value and in gradient, even over NaN and infinity."""
    return torch.where(mask_N, x_N, torch.zeros_like(x_N))


def _largest(x_N: Tensor, mask_N: Tensor) -> Tensor:
    lowest = torch.full_like(x_N, -torch.inf)
    return torch.where(mask_N, x_N, lowest).amax() if x_N.numel() else x_N.new_tensor(-torch.inf)
