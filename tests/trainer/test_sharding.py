"""How positions are cut over ranks, and micro-batches dealt out."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.records import Sample
from components.trainer.batching import MicroBatch, gather, micro_batches, scatter
from components.trainer.sharding import PADDING, Share, positions, router_rows

LENGTHS = st.lists(st.integers(1, 40), max_size=8)
RANKS = st.integers(1, 4)


def share(cp: tuple[int, int], tp: tuple[int, int], dp: tuple[int, int] = (0, 1), even: bool = False) -> Share:
    return Share(dp, cp, tp, even)


@given(LENGTHS, RANKS, RANKS)
@settings(deadline=None)
def test_context_ranks_have_every_position_exactly_once_and_equally_many(lengths: list[int], cp: int, tp: int) -> None:
    cuts = [positions(lengths, share((rank, cp), (0, tp))) for rank in range(cp)]
    assert len({len(cut.index_T) for cut in cuts}) == 1
    assert len({cut.borders for cut in cuts}) == 1
    found = Counter(np.concatenate([cut.index_T for cut in cuts]).tolist())
    found.pop(PADDING, None)
    assert found == Counter(range(sum(lengths)))
    assert len(cuts[0].index_T) % tp == 0
    assert sum(len(cut.index_T) for cut in cuts) == cuts[0].borders[-1]


@given(LENGTHS, RANKS, RANKS, st.integers(0, 200))
@settings(deadline=None)
def test_padding_stays_below_two_pieces_a_stream_and_one_unit(lengths: list[int], cp: int, tp: int, total: int) -> None:
    cut = positions(lengths, share((0, cp), (0, tp)), total=total)
    unit = share((0, cp), (0, tp)).unit
    least = sum(lengths) + len(lengths) * (2 * cp - 1)
    assert cut.borders[-1] <= max(least, total, 1) + unit - 1
    assert cut.borders[-1] >= total
    if cp == tp == 1 and total <= sum(lengths) and lengths:
        assert np.array_equal(cut.index_T, np.arange(sum(lengths)))


def test_a_context_rank_takes_a_piece_from_each_end_of_every_stream() -> None:
    # Streams of 6 and 3 positions in four pieces of 2 and 1: the last piece of the first is padding, as is the fourth
    # position of the second.
    first, second = (positions([6, 3], share((rank, 2), (0, 1))) for rank in range(2))
    assert first.borders == second.borders == (0, 8, 12)
    assert first.index_T.tolist() == [0, 1, PADDING, PADDING, 6, PADDING]
    assert second.index_T.tolist() == [2, 3, 4, 5, 7, 8]


def test_router_rows_are_consecutive_parts_of_a_ranks_positions() -> None:
    cut = positions([5], share((0, 1), (0, 3)))
    rows = [router_rows(cut.index_T, share((0, 1), (rank, 3))).tolist() for rank in range(3)]
    assert rows == [[0, 1], [2, 3], [4, PADDING]]


def cut_up(samples: list[Sample], capacity: int, dp: int, cp: int, tp: int, even: bool) -> list[list[MicroBatch]]:
    """The micro-batches of every rank."""
    return [
        micro_batches(samples, capacity, replay=True, share=share((c, cp), (t, tp), (d, dp), even))
        for d in range(dp)
        for c in range(cp)
        for t in range(tp)
    ]


@pytest.mark.parametrize(
    ("dp", "cp", "tp", "even"), [(2, 1, 1, False), (3, 2, 2, True), (7, 1, 2, True), (1, 3, 1, False)]
)
def test_routing_rows_stay_with_their_tokens_on_every_rank(
    samples: list[Sample], dp: int, cp: int, tp: int, even: bool
) -> None:
    # slime #2264 and miles #3146 are of this kind: rows that fit in number, and belong to other tokens.
    everywhere = cut_up(samples, 128, dp, cp, tp, even)
    assert len({len(batches) for batches in everywhere}) == 1
    seen: Counter[tuple[int, int]] = Counter()
    for place, batches in enumerate(everywhere):
        for batch in batches:
            assert batch.routing_LRK is not None
            rows = batch.routing_LRK.transpose(0, 1).numpy()
            size = len(batch.ids_T) // tp
            mine = slice(place % tp * size, (place % tp + 1) * size)
            owners = np.repeat(np.array(batch.streams, int), batch.lengths)
            laid = positions(batch.lengths, share((place // tp % cp, cp), (0, tp)), total=batch.borders[-1]).index_T
            for row, at, token in zip(rows, laid[mine], batch.ids_T[mine].tolist(), strict=True):
                if at == PADDING:
                    assert (row == PADDING).all()
                    continue
                stream = int(owners[at])
                offset = int(at - np.flatnonzero(owners == stream)[0])
                routing = samples[stream].routing
                assert routing is not None
                assert np.array_equal(row, routing[offset])
                assert token == samples[stream].tokens[offset]
                seen[stream, offset] += 1
    assert seen == Counter({(i, j): 1 for i, sample in enumerate(samples) for j in range(len(sample.tokens) - 1)})


@pytest.mark.parametrize(("dp", "cp"), [(1, 1), (2, 1), (1, 2), (2, 3)])
def test_what_all_ranks_scatter_adds_up_to_what_they_gathered(samples: list[Sample], dp: int, cp: int) -> None:
    generator = np.random.default_rng(0)
    given_arrays = [generator.random(len(sample.tokens)).astype(np.float32) for sample in samples]
    total = [np.zeros(len(sample.tokens), np.float32) for sample in samples]
    for batches in cut_up(samples, 64, dp, cp, 1, False):
        own = [np.zeros(len(sample.tokens), np.float32) for sample in samples]
        for batch in batches:
            scatter(batch, gather(batch, given_arrays), own)
        for array, part in zip(total, own, strict=True):
            array += part
    for array, wanted, sample in zip(total, given_arrays, samples, strict=True):
        assert np.array_equal(array, np.where(sample.loss_mask, wanted, 0))


def test_data_ranks_that_meet_in_a_collective_have_equal_lengths(samples: list[Sample]) -> None:
    first, second = cut_up(samples, 64, 2, 1, 1, True)
    assert [len(batch.ids_T) for batch in first] == [len(batch.ids_T) for batch in second]
    first, second = cut_up(samples[:1], 64, 2, 1, 1, True)
    assert (first[0].streams, second[0].streams) == ((0,), ())
    assert len(first[0].ids_T) == len(second[0].ids_T)
    assert second[0].padding_T is not None
    assert second[0].padding_T.all()
    assert not len(second[0].targets_M)
