"""Records survive their bytes, and nothing that no router produced is taken for one."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from components.errors import RecordError
from components.routing import bytes_per_token, checksum, decode, encode, flips, validate


def choose(rng, rows, layers, topk, experts):
    """What a router could have chosen."""
    return rng.random((rows, layers, experts)).argsort(-1)[..., :topk]


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(0, 20),
    layers=st.integers(1, 5),
    experts=st.sampled_from([4, 8, 128, 256, 257, 300, 512]),
    dtype=st.sampled_from([np.uint16, np.int32, np.int64]),
)
def test_a_record_survives_its_bytes_in_the_width_its_experts_need(seed, rows, layers, experts, dtype):
    topk = min(experts, 4)
    routing = choose(np.random.default_rng(seed), rows, layers, topk, experts).astype(dtype)
    got = decode(encode(routing), rows, layers, topk, experts)
    assert got.dtype == (np.uint8 if experts <= 256 else np.uint16)
    np.testing.assert_array_equal(got, routing)
    assert checksum(got) == checksum(routing)
    got[:] = 0  # its own memory: a replay buffer may write into it


def test_a_token_of_the_large_model_takes_384_bytes():
    routing = choose(np.random.default_rng(0), 3, 48, 8, 256).astype(np.int32)
    assert len(encode(routing)) == 3 * 384
    assert bytes_per_token(48, 8, 256) == 384
    assert bytes_per_token(48, 8, 512) == 768 == len(encode(choose(np.random.default_rng(0), 40, 48, 8, 512))) / 40


def test_bytes_are_little_endian_whatever_the_array_was():
    routing = np.array([[[256, 1]]], dtype=">u2")
    assert encode(routing) == b"\x00\x01\x01\x00"
    assert decode(b"\x00\x01\x01\x00", 1, 1, 2, 300).tolist() == [[[256, 1]]]


@pytest.mark.parametrize("size", [0, 5, 7, 11, 13])
def test_bytes_of_another_length_are_refused(size):
    with pytest.raises(RecordError, match="are not 3 rows"):
        decode(bytes(size), 3, 1, 2, 8)


def test_an_expert_that_does_not_exist_is_named_with_its_place():
    with pytest.raises(RecordError, match=r"row 1 layer 0 names experts \[3, 8\] of 8"):
        decode(bytes([0, 1, 3, 8]), 2, 1, 2, 8)


def test_an_expert_chosen_twice_is_named_with_its_place():
    routing = choose(np.random.default_rng(0), 70, 1_000, 3, 8).astype(np.uint8)
    validate(routing, 8)
    routing[69, 998, 2] = routing[69, 998, 0]
    with pytest.raises(RecordError, match="row 69 layer 998 repeats an expert"):
        validate(routing, 8)


@pytest.mark.parametrize(
    "bad", [np.zeros((2, 2), np.uint8), np.zeros((1, 1, 1)), np.full((1, 1, 1), -1), np.full((1, 1, 1), 70_000)]
)
def test_what_is_no_record_is_not_encoded(bad):
    with pytest.raises(RecordError):
        encode(bad)


def test_permuted_rows_of_the_right_shape_are_caught_by_content():
    routing = choose(np.random.default_rng(0), 9, 2, 2, 8)
    expected = checksum(routing)
    for other in (routing[::-1], np.roll(routing, 1, axis=0), routing[:, ::-1], routing.reshape(2, 9, 2)):
        assert checksum(other) != expected


def test_flips_compare_choices_as_sets():
    one = np.array([[[0, 1], [2, 3]], [[0, 1], [2, 3]]], np.uint8)
    two = np.array([[[1, 0], [3, 2]], [[0, 5], [4, 5]]], np.uint8)
    got = flips(one, two)
    assert (got.rows, got.experts, got.choices, got.tokens, got.layers_per_token) == (2, 3 / 8, 0.5, 0.5, 1)
    assert flips(one, two, np.array([True, False])).experts == 0
    assert np.isnan(flips(one, two, np.array([False, False])).experts)
    with pytest.raises(RecordError, match="differ in shape"):
        flips(one, two[:1])
