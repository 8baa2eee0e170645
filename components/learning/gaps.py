"""How far the engines and the policies stand apart, and what the known corrections would make of it.

Invariant: three series, never one. `engine` is sampler against trainer at equal weights, `policy` is the update between
generation and now, `total` is both (Eq 15, 24). All log-probs are at the sampling temperature. Whether a correction is
applied or not, what it would do is measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from components.config import CorrectionsConfig
from components.errors import RecordError
from components.ppo import (
    icepop_weights,
    logprob_gap,
    sequence_k3_weights,
    sequence_ratio_weights,
    tis_weights,
)
from components.records import Float32, Sample

MEANS = ("token_mean", "trial_mean", "max")
SHAPES = ("k3", "frac_gt_ln2", "ess")


def gap_metrics(
    samples: Sequence[Sample], behaviour: Sequence[Float32], current: Sequence[Float32]
) -> dict[str, float]:
    """`gap/...` over the loss region.

    `gap/<series>_<term>` for the three series; k3, the share beyond ln 2 and the effective sample size of `total` are
    named without its name. A trial is a mean over its own tokens, however many chunks they came in.

    Raises:
        RecordError: no token of the batch was sampled.
    """
    trials = {trial: row for row, trial in enumerate(dict.fromkeys(sample.trial_id for sample in samples))}
    mask = np.concatenate([sample.loss_mask for sample in samples])
    if not mask.any():
        raise RecordError("the batch has no trainable token")
    trial_ids = np.concatenate([np.full(len(sample.tokens), trials[sample.trial_id]) for sample in samples])
    sampler = np.concatenate([sample.logprobs for sample in samples])
    before, now = np.concatenate(behaviour), np.concatenate(current)
    series = {
        "engine": logprob_gap(before, sampler, mask, trial_ids_N=trial_ids),
        "policy": logprob_gap(now, before, mask, trial_ids_N=trial_ids),
        "total": logprob_gap(now, sampler, mask, trial_ids_N=trial_ids),
    }
    metrics = {f"gap/{name}_{term}": gap[term] for name, gap in series.items() for term in MEANS}
    metrics |= {f"gap/{name}_{term}": series[name][term] for name in ("engine", "policy") for term in SHAPES}
    metrics |= {f"gap/{term}": series["total"][term] for term in SHAPES}
    metrics["gap/tokens"] = series["total"]["tokens"]
    return metrics


def corrections(
    samples: Sequence[Sample], behaviour: Sequence[Float32], config: CorrectionsConfig
) -> tuple[list[Float32], dict[str, float]]:
    """The weight of each token under `config.apply` (1 where nothing is applied), and `correction/...`.

    Each of the four is measured whether it is applied or not: the share of tokens that `tis` would cap and its mean
    weight, the share of tokens that `icepop` would drop, the share of streams that either sequence mask would drop.
    """
    ratio = torch.from_numpy(
        np.concatenate([np.where(s.loss_mask, old - s.logprobs, 0) for s, old in zip(samples, behaviour, strict=True)])
    )
    mask = torch.from_numpy(np.concatenate([sample.loss_mask for sample in samples]))
    lengths = [len(sample.tokens) for sample in samples]
    stream = torch.from_numpy(np.repeat(np.arange(len(samples)), lengths))
    each = {
        "tis": tis_weights(ratio, cap=config.tis_cap),
        "icepop": icepop_weights(ratio, low=config.icepop_low, high=config.icepop_high),
        "sequence_k3": sequence_k3_weights(ratio, mask, stream, limit=config.sequence_k3),
        "sequence_ratio": sequence_ratio_weights(
            ratio, mask, stream, low=config.sequence_low, high=config.sequence_high
        ),
    }
    weight = torch.ones_like(ratio)
    for name in config.apply:
        weight = weight * each[name]
    metrics = _measured(each, mask, stream, config.tis_cap)
    metrics["correction/weight_mean"] = float(weight[mask].mean())
    return np.split(weight.float().numpy(), np.cumsum(lengths)[:-1]), metrics


def _measured(each: dict[str, Tensor], mask: Tensor, stream: Tensor, cap: float) -> dict[str, float]:
    chosen = {name: weight[mask].double() for name, weight in each.items()}
    streams, first = np.unique(stream[mask].numpy(), return_index=True)
    return {
        "correction/tis_capped": float((chosen["tis"] >= cap).double().mean()),
        "correction/tis_weight_mean": float(chosen["tis"].mean()),
        "correction/icepop_dropped": float((chosen["icepop"] == 0).double().mean()),
        "correction/sequence_k3_dropped": float((chosen["sequence_k3"][first] == 0).double().mean()),
        "correction/sequence_ratio_dropped": float((chosen["sequence_ratio"][first] == 0).double().mean()),
        "correction/streams": float(len(streams)),
    }
