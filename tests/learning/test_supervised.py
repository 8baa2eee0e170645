"""Batches of the supervised stages are a pure function of samples, seed and cursor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.config import SupervisedConfig, load
from components.learning.supervised import Supervised
from components.records import Sample

CONFIG = load("configs/miniature.yaml").sft


def _sample(length: int, name: int) -> Sample:
    mask = np.zeros(length, dtype=np.bool_)
    mask[1:] = True
    tokens = np.full(length, name, dtype=np.int32)
    return Sample(tokens, mask, np.zeros(length, dtype=np.float32), None, str(name))


def _config(**changes: object) -> SupervisedConfig:
    return CONFIG.model_copy(update=changes)


@given(st.lists(st.integers(2, 300), min_size=1, max_size=60), st.integers(0, 5))
def test_an_epoch_holds_every_sample_once_within_the_budget(lengths: list[int], seed: int) -> None:
    samples = [_sample(length, index) for index, length in enumerate(lengths)]
    run = Supervised(samples, _config(tokens=sum(lengths), batch_tokens=512), seed)
    batches = [batch for _, _, batch in run.batches()]
    assert run.steps() == len(batches)
    assert sorted(int(s.tokens[0]) for batch in batches for s in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or sum(len(s.tokens) for s in batch) <= 512


def test_a_run_resumed_at_a_step_sees_the_batches_it_would_have_seen() -> None:
    samples = [_sample(20 + index, index) for index in range(30)]
    run = Supervised(samples, _config(tokens=5_000, batch_tokens=256), 3)
    whole = [(step, share, [s.trial_id for s in batch]) for step, share, batch in run.batches()]
    rest = [(step, share, [s.trial_id for s in batch]) for step, share, batch in run.batches(first_step=7)]
    assert rest == whole[7:]
    assert len(rest) > 0


@pytest.mark.parametrize(("seen", "share"), [(0, 1.0), (500, 1.0), (750, 0.5), (1_000, 0.03)])
def test_the_learning_rate_is_constant_then_linear(seen: int, share: float) -> None:
    run = Supervised([], _config(tokens=1_000, constant_share=0.5, final_lr_share=0.03), 0)
    assert run.lr_share(seen) == pytest.approx(share)
