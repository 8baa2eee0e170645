"""Faults that an update had elsewhere (the public report is named), against a trainer whose figures are known."""

from __future__ import annotations

import numpy as np
import pytest

from components.errors import RecordError
from components.trainer import LearnItem
from tests.learning.test_ppo_step import CONFIG, _baseline, _learn, _sample


def test_a_trial_in_k_chunks_gives_each_its_full_reward() -> None:
    # slime v0.3.0 gave reward / k to each of k segments.
    samples = [_sample(0, 9, "x"), _sample(1, 12, "x"), _sample(2, 9, "x")]
    trainer, _ = _learn(samples=samples, rewards=[0.6, 0.6, 0.6])
    for item in trainer.items:
        np.testing.assert_allclose(item.returns_N[item.sample.loss_mask], 0.6, atol=1e-6)


def test_the_engine_gap_is_measured_against_the_sampler_not_against_itself() -> None:
    # slime v0.3.0 with --use-rollout-logprobs: the old log-prob was the sampler's own, so the gap was 0 whatever ran.
    _, metrics = _learn(engine_gap=0.25)
    assert metrics["gap/engine_token_mean"] == pytest.approx(0.25, abs=1e-6)
    assert metrics["gap/policy_token_mean"] == pytest.approx(0.5, abs=1e-6)


def test_both_sides_of_the_ratio_are_asked_for_at_the_sampling_temperature() -> None:
    # miles #1345, slime #2085: the trainer's log-probs at temperature 1, the sampler's at T.
    trainer, _ = _learn(temperature=0.7)
    asked = [call for call in trainer.calls if "T=" in call]
    assert len(asked) == 3
    assert all("T=0.7" in call for call in asked)


def test_every_sample_of_the_batch_reaches_the_update_whatever_the_group_sizes() -> None:
    # slime build_dp_schedule: of 5 groups in steps of 2 the fifth vanished. miles #2800: one trial cost its group.
    samples = [_sample(index, 9, f"trial-{index}") for index in range(7)]
    groups = ["a", "a", "a", "b", "b", "c", "d"]
    trainer, metrics = _learn(_baseline("grpo"), samples=samples, rewards=[0.1 * n for n in range(7)], groups=groups)
    assert [item.sample.trial_id for item in trainer.items] == [sample.trial_id for sample in samples]
    assert (metrics["group/count"], metrics["group/single"], metrics["group/compared"]) == (4, 2, 2)


def test_a_stream_without_a_trainable_token_is_counted_and_adds_nothing() -> None:
    empty = _sample(2, 9)
    mask = np.zeros_like(empty.loss_mask)
    silent = type(empty)(empty.tokens, mask, np.zeros_like(empty.logprobs), None, "silent")
    trainer, metrics = _learn(samples=[_sample(0, 9), silent], rewards=[0.4, 0.9])
    assert metrics["ppo/chunks_without_tokens"] == 1
    assert not trainer.items[1].advantages_N.any()
    alone, _ = _learn(samples=[_sample(0, 9)], rewards=[0.4])
    np.testing.assert_array_equal(trainer.items[0].advantages_N, alone.items[0].advantages_N)


def test_a_figure_that_is_not_finite_stops_before_a_weight_moves() -> None:
    # The kind of "missing log-probs became 0.0 with mask 1" (slime v0.3.0, AReaL #1554): nothing is filled in.
    sample = _sample(0, 9)
    good = np.zeros(9, dtype=np.float32)
    bad = good.copy()
    bad[2] = np.nan
    with pytest.raises(RecordError, match="not finite"):
        LearnItem(sample, advantages_N=good, old_logprobs_N=bad)
    with pytest.raises(RecordError, match="arrays of"):
        LearnItem(sample, advantages_N=good, old_logprobs_N=good[:-1])


def test_a_correction_that_is_off_cannot_change_what_is_trained() -> None:
    # The paper's objective has none of them; measured figures must not leak into it.
    plain, _ = _learn(engine_gap=0.0)
    far, metrics = _learn(CONFIG, engine_gap=3.0)
    assert metrics["correction/icepop_dropped"] == 1
    for item, other in zip(far.items, plain.items, strict=True):
        np.testing.assert_array_equal(item.advantages_N, other.advantages_N)
