"""Log-probs and entropy from logits whose vocabulary is cut over tensor-parallel ranks.

Invariant: every rank of the group gets the same figures, those of the whole vocabulary.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from components.ppo import token_logprobs


def logprobs(logits_MV: Tensor, targets_M: Tensor, *, temperature: float) -> Tensor:
    """float32[M]: log-prob of each target at `temperature`; `logits_MV` is this rank's part of the vocabulary.

    Raises:
        ValueError: `temperature` is not positive.
    """
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

    if parallel_state.get_tensor_model_parallel_world_size() == 1:
        return token_logprobs(logits_MV, targets_M, temperature=temperature)
    if not temperature > 0:
        raise ValueError(f"log-probs need a sampling temperature above 0, got {temperature}")
    # Megatron writes its softmax over what it is given; a quotient is nobody else's.
    losses: Tensor = vocab_parallel_cross_entropy(logits_MV.float() / temperature, targets_M)
    return -losses


@torch.no_grad()
def entropy(logits_MV: Tensor, *, temperature: float) -> Tensor:
    """float32[M]: entropy of each row's distribution at `temperature`; no gradient."""
    from megatron.core import parallel_state

    scaled = logits_MV.float() / temperature
    group = parallel_state.get_tensor_model_parallel_group()
    if group.size() == 1:
        logs = torch.log_softmax(scaled, dim=-1)
        negative: Tensor = torch.linalg.vecdot(logs.exp(), logs)
        return -negative
    top = scaled.amax(-1)
    dist.all_reduce(top, dist.ReduceOp.MAX, group)
    shifted = scaled - top[:, None]
    weights = shifted.exp()
    sums = torch.stack([weights.sum(-1), torch.linalg.vecdot(weights, shifted)])
    dist.all_reduce(sums, group=group)
    total, weighted = sums.unbind()
    return total.log() - weighted / total
