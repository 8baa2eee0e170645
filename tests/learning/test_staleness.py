"""Chunks of older weights."""

from dataclasses import replace

import numpy as np
import pytest

from components.learning.staleness import behaviour_logprobs, kept, staleness_metrics
from tests.learning.test_ppo_step import RecordingTrainer, _sample

SAMPLES = [
    replace(_sample(index, 9 + index), weight_version=version) for index, version in enumerate([5, 4, 5, 3, 6, 4])
]


def test_each_chunk_is_read_under_the_snapshot_of_its_own_version():
    trainer = RecordingTrainer()
    found = behaviour_logprobs(trainer, SAMPLES, version=6, temperature=1.0)
    assert trainer.calls == [
        "logprobs behaviour replay=True T=1",
        "logprobs behaviour replay=True T=1 age=2",
        "logprobs behaviour replay=True T=1 age=3",
    ]
    for sample, logprobs in zip(SAMPLES, found, strict=True):
        shift = {6: 0.25, 5: 0.25, 4: 0.35, 3: 0.45}[sample.weight_version]
        np.testing.assert_allclose(logprobs[sample.loss_mask], sample.logprobs[sample.loss_mask] + shift, atol=1e-6)


@pytest.mark.parametrize(("oldest", "chosen"), [(1, [0, 2, 4]), (2, [0, 1, 2, 4, 5]), (3, [0, 1, 2, 3, 4, 5])])
def test_what_is_older_than_the_snapshots_is_left_out(oldest, chosen):
    assert kept(SAMPLES, 6, oldest) == chosen


def test_what_is_left_out_is_counted_and_the_mean_is_over_sampled_tokens():
    metrics = staleness_metrics(SAMPLES, 6, 2)
    tokens = np.array([sample.loss_mask.sum() for sample in SAMPLES])
    assert metrics["staleness/dropped_chunks"] == 1
    assert metrics["staleness/dropped_tokens"] == tokens[3]
    assert metrics["staleness/max"] == 3
    assert metrics["staleness/mean"] == pytest.approx((tokens * [1, 2, 1, 3, 0, 2]).sum() / tokens.sum())


def test_of_no_tokens_there_is_no_mean():
    assert staleness_metrics([], 6, 2) == {"staleness/dropped_chunks": 0, "staleness/dropped_tokens": 0}
