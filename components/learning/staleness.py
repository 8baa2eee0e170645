"""Chunks of older weights in a batch (design section 6).

A carried trial brings chunks that were drawn under the versions of earlier steps, with one reward. Each has its ratio
taken against the snapshot of its own version. Invariant: a chunk that is older than the snapshots are kept is not
trained on, and is counted; nothing is trained against a snapshot that did not draw it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from components.records import Float32, Sample
from components.trainer import Trainer


def age_of(sample: Sample, version: int) -> int:
    """Rotations since the weights that drew a chunk were current, at the update that makes `version` the next one.

    1 as a rule. What was drawn under the very weights that the update begins with is their snapshot's too.
    """
    return max(1, version - sample.weight_version)


def kept(samples: Sequence[Sample], version: int, max_staleness: int) -> list[int]:
    """Indices of the chunks that are trained on at the update from `version`."""
    return [index for index, sample in enumerate(samples) if age_of(sample, version) <= max_staleness]


def staleness_metrics(samples: Sequence[Sample], version: int, max_staleness: int) -> dict[str, float]:
    """`staleness/...`: mean over sampled tokens, greatest of a chunk, chunks and tokens that are not trained on."""
    tokens = np.array([sample.loss_mask.sum() for sample in samples])
    stale = np.array([version - sample.weight_version for sample in samples])
    old = np.array([age_of(sample, version) > max_staleness for sample in samples], dtype=np.bool_)
    metrics = {"staleness/dropped_chunks": float(old.sum()), "staleness/dropped_tokens": float(tokens[old].sum())}
    if tokens.sum():
        metrics |= {"staleness/mean": float((stale * tokens).sum() / tokens.sum()), "staleness/max": float(stale.max())}
    return metrics


def behaviour_logprobs(
    trainer: Trainer, samples: Sequence[Sample], *, version: int, temperature: float
) -> list[Float32]:
    """float32[N] a sample: log-probs of each chunk under the snapshot of the version that drew it, routing replayed."""
    found: dict[int, Float32] = {}
    ages = [age_of(sample, version) for sample in samples]
    for age in sorted(set(ages)):
        rows = [row for row, its in enumerate(ages) if its == age]
        of_age = trainer.logprobs(
            [samples[row] for row in rows], weights="behaviour", replay=True, temperature=temperature, age=age
        )
        found |= dict(zip(rows, of_age, strict=True))
    return [found[row] for row in range(len(samples))]
