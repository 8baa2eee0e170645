"""The clipped objectives of actor and critic (paper Eq 17, 18) and the log-probs they are made of.

Invariant: a loss is a sum over the loss region divided by `denominator`, the number of loss tokens of the *global*
batch (where a stream is one term: the number of its streams). So micro-batches and ranks add up to the token mean
however the batch was cut, and positions outside the mask cannot reach the loss or its gradient, whatever stands there.
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
    mask, count = region(mask_N, denominator)
    log_ratio = keep(mask, logprobs_N - old_logprobs_N)
    gain = keep(mask, advantages_N)
    ratio = log_ratio.exp()
    surrogate = torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain)
    loss_sum = -keep(mask, surrogate).sum()
    with torch.no_grad():
        clipped = ((ratio > 1 + clip) & (gain > 0)) | ((ratio < 1 - clip) & (gain < 0))
        sums = {
            "loss": loss_sum.detach(),
            "clip_frac": (clipped & mask).sum(),
            "approx_kl": (torch.expm1(log_ratio) - log_ratio).sum(),
            "ratio": keep(mask, ratio).sum(),
        }
        tally = Tally.of(count, sums, {"ratio_max": largest(ratio, mask)})
    return loss_sum / denominator, tally


def sequence_policy_loss(
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    advantages_N: Tensor,
    mask_N: Tensor,
    stream_N: Tensor,
    *,
    clip: float,
    denominator: float | Tensor,
) -> tuple[Tensor, Tally]:
    """GSPO (arXiv 2507.18071): one ratio a stream, s = exp(mean of logprobs - old_logprobs), clipped as a whole.

    Args:
        stream_N: int64, the stream of each token, from 0. A stream must be here whole.
        advantages_N: equal on all tokens of a stream.
        denominator: streams with loss tokens in the global batch.

    The tally counts streams; it holds what `policy_loss` does, `approx_kl` being that of the mean ratio.
    """
    mask = mask_N.bool()
    has_tokens_S = stream_means(mask.to(logprobs_N.dtype), mask, stream_N) > 0
    new_S, old_S, gain_S = (stream_means(x, mask, stream_N) for x in (logprobs_N, old_logprobs_N, advantages_N))
    return policy_loss(new_S, old_S, gain_S, has_tokens_S, clip=clip, denominator=denominator)


def stream_means(x_N: Tensor, mask_N: Tensor, stream_N: Tensor) -> Tensor:
    """[S]: the mean of each stream over the mask, 0 for one without any. `stream_N` counts streams from 0."""
    mask = mask_N.bool()
    streams = int(stream_N.max()) + 1 if stream_N.numel() else 0
    tokens_S = x_N.new_zeros(streams).index_add(0, stream_N, mask.to(x_N.dtype))
    return x_N.new_zeros(streams).index_add(0, stream_N, keep(mask, x_N)) / tokens_S.clamp(min=1)


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
    mask, count = region(mask_N, denominator)
    error = keep(mask, values_N - returns_N)
    moved = keep(mask, values_N - old_values_N)
    clipped_error = keep(mask, old_values_N - returns_N) + moved.clamp(-clip, clip)
    loss_sum = torch.maximum(error.square(), clipped_error.square()).sum()
    with torch.no_grad():
        sums = {"loss": loss_sum.detach(), "clip_frac": (moved.abs() > clip).sum()}
        tally = Tally.of(count, sums, {"error_max": largest(error.abs(), mask)})
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


def region(mask_N: Tensor, denominator: float | Tensor) -> tuple[Tensor, Tensor]:
    """The mask as booleans and how many it sets; refuses an empty global batch."""
    if not float(denominator) > 0:
        raise ValueError(f"the global batch has no loss tokens: denominator {float(denominator)}")
    mask = mask_N.bool()
    return mask, mask.sum()


def keep(mask_N: Tensor, x_N: Tensor) -> Tensor:
    """Zero outside the mask, in value and in gradient, even over NaN and infinity."""
    return torch.where(mask_N, x_N, torch.zeros_like(x_N))


def largest(x_N: Tensor, mask_N: Tensor) -> Tensor:
    """Largest over the mask, -inf when it is empty."""
    lowest = torch.full_like(x_N, -torch.inf)
    return torch.where(mask_N, x_N, lowest).amax() if x_N.numel() else x_N.new_tensor(-torch.inf)
