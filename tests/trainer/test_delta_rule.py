"""The gated delta rule against its definition, position by position in float64."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from components.trainer.megatron.delta_rule import CHUNK, convolve, scan, solve

HEADS, KEYS, VALUES, CHANNELS, TAPS = 2, 6, 5, 3, 4
Inputs = tuple[Tensor, ...]


def random_inputs(total: int, *, dtype: torch.dtype = torch.float64) -> Inputs:
    """Query, key, value, decay, beta."""
    torch.manual_seed(total)
    query, key, value = (torch.randn(total, HEADS, size, dtype=dtype) for size in (KEYS, KEYS, VALUES))
    decay = -3 * torch.rand(total, HEADS, dtype=dtype)
    return tuple(x.requires_grad_() for x in (query, key, value, decay, torch.rand(total, HEADS, dtype=dtype)))


def slow_rule(inputs: Inputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """One stream: S decays, what S has at the key is replaced by the value, the query reads S."""
    outputs = []
    for query, key, value, decay, beta in zip(*inputs, strict=True):
        query, key = (x * (x.square().sum(-1, keepdim=True) + 1e-6) ** -0.5 for x in (query, key))
        state = state * decay.exp()[:, None, None]
        found = torch.einsum("hdv,hd->hv", state, key)
        state = state + torch.einsum("hd,hv->hdv", key, beta[:, None] * (value - found))
        outputs.append(torch.einsum("hdv,hd->hv", state, query / KEYS**0.5))
    return torch.stack(outputs), state


def slow_streams(inputs: Inputs, lengths: Sequence[int], states: Tensor) -> tuple[Tensor, Tensor]:
    parts = zip(*(torch.split(x, list(lengths)) for x in inputs), strict=True)
    outputs, left = zip(*(slow_rule(part, state) for part, state in zip(parts, states, strict=True)), strict=True)
    return torch.cat(outputs), torch.stack(left)


@pytest.mark.parametrize("lengths", [[1], [CHUNK], [CHUNK + 1, CHUNK - 1, 3], [150, 130, 2]])
def test_chunks_give_what_one_position_after_the_other_gives(lengths: list[int]) -> None:
    inputs = random_inputs(sum(lengths))
    states = torch.randn(len(lengths), HEADS, KEYS, VALUES, dtype=torch.float64, requires_grad=True)
    output, left = scan(solve(*inputs, lengths), states)
    expected, expected_left = slow_streams(inputs, lengths, states)
    torch.testing.assert_close(output, expected, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(left, expected_left, atol=1e-12, rtol=1e-10)
    weights, state_weights = torch.randn_like(output), torch.randn_like(left)
    gradients, references = (
        torch.autograd.grad((a * weights).sum() + (b * state_weights).sum(), (*inputs, states))
        for a, b in ((output, left), (expected, expected_left))
    )
    torch.testing.assert_close(gradients, references, atol=1e-11, rtol=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=4))
def test_streams_that_are_cut_anywhere_go_on_from_what_they_left_behind(cuts: list[tuple[int, int]]) -> None:
    wholes = [front + back for front, back in cuts]
    inputs = [x.detach() for x in random_inputs(sum(wholes))]
    taps, rows = torch.randn(CHANNELS, TAPS).double(), torch.randn(sum(wholes), CHANNELS).double()
    window = torch.zeros(len(cuts), TAPS - 1, CHANNELS).double()
    state = torch.zeros(len(cuts), HEADS, KEYS, VALUES).double()
    outputs, convolved = scan(solve(*inputs, wholes), state)[0], convolve(rows, taps, window, wholes)[0]

    sides: list[list[int]] = [[], []]
    start = 0
    for front, back in cuts:
        sides[0] += range(start, start + front)
        sides[1] += range(start + front, start + front + back)
        start += front + back
    for side, lengths in zip(sides, zip(*cuts, strict=True), strict=True):
        part, window = convolve(rows[side], taps, window, lengths)
        torch.testing.assert_close(part, convolved[side], atol=1e-12, rtol=1e-12)
        part, state = scan(solve(*(x[side] for x in inputs), lengths), state)
        torch.testing.assert_close(part, outputs[side], atol=1e-12, rtol=1e-10)


def test_a_stream_sees_no_other_stream() -> None:
    lengths = [70, 5, 66]
    inputs = [x.detach() for x in random_inputs(sum(lengths))]
    taps, rows = torch.randn(CHANNELS, TAPS).double(), torch.randn(sum(lengths), CHANNELS).double()
    window = torch.zeros(3, TAPS - 1, CHANNELS).double()
    state = torch.zeros(3, HEADS, KEYS, VALUES).double()
    outputs, left = scan(solve(*inputs, lengths), state)
    convolved, _ = convolve(rows, taps, window, lengths)
    for x in (*inputs[:3], rows):
        x[70:75] += 1
    others, others_left = scan(solve(*inputs, lengths), state)
    convolved_others, _ = convolve(rows, taps, window, lengths)
    for place in (slice(0, 70), slice(75, None)):
        assert torch.equal(outputs[place], others[place])
        assert torch.equal(convolved[place], convolved_others[place])
    assert torch.equal(left[[0, 2]], others_left[[0, 2]])
    assert not torch.equal(left[1], others_left[1])


def test_the_convolution_is_causal_and_its_last_tap_meets_the_position_itself() -> None:
    rows = torch.arange(6.0).view(6, 1)
    output, window = convolve(rows, torch.tensor([[1000.0, 100.0, 10.0, 1.0]]), torch.zeros(1, 3, 1), [6])
    assert output[:, 0].tolist() == [0, 1, 12, 123, 1234, 2345]
    assert window[0, :, 0].tolist() == [3, 4, 5]


def test_half_precision_is_computed_in_float32() -> None:
    inputs = [x.detach().bfloat16() for x in random_inputs(80, dtype=torch.float32)]
    output, left = scan(solve(*inputs, [80]), torch.zeros(1, HEADS, KEYS, VALUES))
    assert output.dtype == left.dtype == torch.float32
    expected, _ = slow_rule(tuple(x.double() for x in inputs), torch.zeros(HEADS, KEYS, VALUES).double())
    torch.testing.assert_close(output.double(), expected, atol=1e-5, rtol=1e-4)
