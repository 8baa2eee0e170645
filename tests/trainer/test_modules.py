"""The modules against slow references in float64."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from components.trainer.megatron.modules import (
    PADDING_SHARE,
    PackedAttention,
    RMSNorm,
    StackedExperts,
    ValueHead,
    similar_runs,
)

CONFIG = SimpleNamespace(
    kv_channels=8,
    params_dtype=torch.float32,
    sequence_parallel=False,
    layernorm_zero_centered_gamma=False,
    hidden_size=12,
    moe_ffn_hidden_size=8,
    expert_model_parallel_size=1,
    tensor_model_parallel_size=1,
    context_parallel_size=1,
    perform_initialization=True,
    init_method=torch.nn.init.normal_,
    output_layer_init_method=torch.nn.init.normal_,
)


def slow_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One stream, [n, heads, d]; keys are shared by consecutive query heads."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = torch.einsum("ihd,jhd->hij", query, key) / query.shape[-1] ** 0.5
    hidden = torch.ones(len(query), len(query)).triu(1).bool()
    return torch.einsum("hij,jhd->ihd", scores.masked_fill(hidden, -torch.inf).softmax(-1), value).flatten(1)


@pytest.mark.parametrize("lengths", [[7], [5, 5, 5], [9, 8, 2, 1], [1, 30, 2]])
def test_packed_attention_attends_within_each_stream_only(lengths: list[int]) -> None:
    torch.manual_seed(0)
    total = sum(lengths)
    query, key, value = (torch.randn(total, n, 8, dtype=torch.float64, requires_grad=True) for n in (4, 2, 2))
    borders = torch.tensor([0, *lengths]).cumsum(0)
    attention = PackedAttention(CONFIG, 1, None, "self")
    output = attention(query, key, value, packed_seq_params=SimpleNamespace(cu_seqlens_q=borders))
    parts = [[x[a:b] for x in (query, key, value)] for a, b in pairwise(borders)]
    expected = torch.cat([slow_attention(*part) for part in parts])
    torch.testing.assert_close(output, expected, atol=1e-12, rtol=1e-12)
    weights = torch.randn_like(output)
    gradients = torch.autograd.grad((output * weights).sum(), (query, key, value))
    references = torch.autograd.grad((expected * weights).sum(), (query, key, value))
    torch.testing.assert_close(gradients, references, atol=1e-12, rtol=1e-12)


@given(st.lists(st.integers(1, 500), max_size=60))
def test_runs_keep_the_order_and_bound_the_padding(lengths: list[int]) -> None:
    runs = similar_runs(lengths)
    assert [length for run in runs for length in run] == lengths
    for run in runs:
        assert sum(run) >= (1 - PADDING_SHARE) * max(run) * len(run) - 1e-9


def test_the_norm_has_the_right_gradient() -> None:
    torch.manual_seed(0)
    norm = RMSNorm(CONFIG, 6, eps=1e-6).double()
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(5, 3, 6, dtype=torch.float64, requires_grad=True)
    expected = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * norm.weight
    torch.testing.assert_close(norm(x), expected)
    assert torch.autograd.gradcheck(norm, (x,))
    assert torch.autograd.gradcheck(lambda w: torch.func.functional_call(norm, {"weight": w}, (x,)), (norm.weight,))


def test_stacked_experts_equal_experts_one_by_one() -> None:
    torch.manual_seed(0)
    experts = StackedExperts(4, CONFIG)
    counts = torch.tensor([3, 0, 5, 1])
    hidden = torch.randn(9, 12, requires_grad=True)
    probs = torch.rand(9, requires_grad=True)
    inputs = (hidden, probs, experts.linear_fc1, experts.linear_fc2)
    output, bias = experts(hidden, counts, probs)
    assert bias is None

    rows = torch.repeat_interleave(torch.arange(4), counts)
    slow_inputs = [x.detach().double().requires_grad_() for x in inputs]
    x, p, first, second = slow_inputs
    outputs = []
    for row, expert in enumerate(rows):
        gate, up = (first[expert] @ x[row]).chunk(2)
        outputs.append(p[row] * (second[expert] @ (torch.nn.functional.silu(gate) * up)))
    expected = torch.stack(outputs)
    torch.testing.assert_close(output.double(), expected, atol=1e-4, rtol=1e-5)
    gradients = torch.autograd.grad(output.square().sum(), inputs)
    for fast, slow in zip(gradients, torch.autograd.grad(expected.square().sum(), slow_inputs), strict=True):
        torch.testing.assert_close(fast.double(), slow, atol=1e-3, rtol=1e-4)


def test_a_fresh_value_head_predicts_zero_in_float32() -> None:
    values, bias = ValueHead(CONFIG, 1)(torch.randn(3, 1, 12, dtype=torch.bfloat16))
    assert values.dtype == torch.float32
    assert values.shape == (3, 1, 1)
    assert not values.any()
    assert bias is None
