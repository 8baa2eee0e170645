"""Packing and micro-batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from components.config import ModelConfig
from components.errors import RecordError
from components.records import Sample
from components.trainer.batching import gather, micro_batches, pack, scatter


def first_fit_decreasing(lengths: list[int], capacity: int) -> list[list[int]]:
    """As the textbook has it, in quadratic time."""
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        for place, free in enumerate(room):
            if free >= lengths[index]:
                bins[place].append(index)
                room[place] -= lengths[index]
                break
        else:
            bins.append([index])
            room.append(capacity - lengths[index])
    return bins


@given(st.integers(1, 60).flatmap(lambda c: st.tuples(st.just(c), st.lists(st.integers(1, c), max_size=120))))
@settings(deadline=None)
def test_packing_gives_the_bins_of_first_fit_decreasing(case: tuple[int, list[int]]) -> None:
    capacity, lengths = case
    assert pack(lengths, capacity) == first_fit_decreasing(lengths, capacity)


def test_packing_refuses_what_fits_no_bin() -> None:
    for lengths in ([5, 11], [0]):
        with pytest.raises(ValueError, match=r"1\.\.10"):
            pack(lengths, 10)


def test_every_stream_is_packed_once_and_within_the_capacity(samples: list[Sample]) -> None:
    batches = micro_batches(samples, 64, replay=True)
    assert sorted(index for batch in batches for index in batch.streams) == list(range(len(samples)))
    for batch in batches:
        assert len(batch.ids_T) == sum(batch.lengths) <= 64
        expected = np.concatenate([samples[index].tokens[:-1] for index in batch.streams])
        assert np.array_equal(batch.ids_T.numpy(), expected)
        routing = np.concatenate([samples[index].routing for index in batch.streams])
        assert batch.routing_LRK is not None
        assert np.array_equal(batch.routing_LRK.numpy(), routing.transpose(1, 0, 2))


def test_a_stream_of_one_token_is_left_out(model: ModelConfig, samples: list[Sample]) -> None:
    single = Sample(np.array([1], np.int32), np.array([False]), np.zeros(1, np.float32), None, "single")
    batches = micro_batches([single, samples[0]], 64, replay=False)
    assert [batch.streams for batch in batches] == [(1,)]
    assert micro_batches([single], 64, replay=True) == []


def test_a_stream_longer_than_the_capacity_names_the_setting(samples: list[Sample]) -> None:
    with pytest.raises(RecordError, match="micro_batch_tokens 50"):
        micro_batches(samples, 50, replay=False)


def test_gather_undoes_scatter(samples: list[Sample]) -> None:
    arrays = [np.zeros(len(sample.tokens), dtype=np.float32) for sample in samples]
    for number, batch in enumerate(micro_batches(samples, 64, replay=False)):
        values = torch.arange(len(batch.targets_M)).float() + 1 + 100 * number
        scatter(batch, values, arrays)
        assert torch.equal(gather(batch, arrays), values)
    for array, sample in zip(arrays, samples, strict=True):
        assert np.array_equal(array != 0, sample.loss_mask)
