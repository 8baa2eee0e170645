"""Adam and Muon against slow references in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from components.config import ModelConfig, OptimizerConfig, TrainerConfig
from components.errors import DivergedError
from components.trainer.megatron.muon import ITERATIONS, MOMENTUM, QUINTIC, Muon, matrix_parts, newton_schulz
from components.trainer.megatron.optimizer import ModelOptimizer
from components.trainer.megatron.platform import prepare
from components.trainer.megatron.specs import build_actor


def slow_orthogonal(matrix: Tensor) -> Tensor:
    """The iteration on the singular values: it leaves the singular vectors alone."""
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    s = s / (s.norm() + 1e-7)
    a, b, c = QUINTIC
    for _ in range(ITERATIONS):
        s = a * s + b * s**3 + c * s**5
    return u @ torch.diag(s) @ v


def test_newton_schulz_brings_singular_values_near_one() -> None:
    torch.manual_seed(0)
    stack = torch.randn(5, 6, 10, dtype=torch.float64)
    done = newton_schulz(stack)
    torch.testing.assert_close(done, torch.stack([slow_orthogonal(m) for m in stack]), atol=1e-9, rtol=1e-9)
    values = torch.linalg.svdvals(done)
    assert values.min() > 0.4
    assert values.max() < 1.3


def test_batched_muon_equals_muon_matrix_by_matrix(model: ModelConfig) -> None:
    prepare()
    network = build_actor(model, TrainerConfig()).double()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    names = {parameter: name for name, parameter in network.named_parameters()}
    matrices = matrix_parts(names, model)
    parameters = {names[part.parameter]: part.parameter for part in matrices}
    assert len(parameters) == 4 * model.num_hidden_layers
    lr, decay = 0.02, 0.1
    muon = Muon(matrices, lr, decay)
    expected = {name: p.detach().clone() for name, p in parameters.items()}
    momenta = {name: torch.zeros_like(p) for name, p in parameters.items()}
    torch.manual_seed(1)
    for _ in range(3):
        for name, parameter in parameters.items():
            parameter.grad = torch.randn_like(parameter)
            momenta[name] = MOMENTUM * momenta[name] + parameter.grad
            expected[name] *= 1 - lr * decay
            update = parameter.grad + MOMENTUM * momenta[name]
            for where in slow_matrices(name, model):
                matrix = update[where]
                scale = math.sqrt(max(1, matrix.shape[0] / matrix.shape[1]))
                expected[name][where] -= lr * scale * slow_orthogonal(matrix)
        muon.step()
    for name, parameter in parameters.items():
        torch.testing.assert_close(parameter.detach(), expected[name], atol=1e-9, rtol=1e-9, msg=name)


def slow_matrices(name: str, model: ModelConfig) -> list[object]:
    """Where each matrix of the architecture stands inside a fused parameter."""
    inner, head = model.moe_intermediate_size, model.head_dim
    experts = range(model.num_experts)
    if "linear_fc1" in name:
        return [(e, rows) for e in experts for rows in (slice(0, inner), slice(inner, 2 * inner))]
    if "linear_fc2" in name:
        return list(experts)
    if "linear_qkv" not in name:
        return [slice(None)]
    each = model.num_attention_heads // model.num_key_value_heads
    query, key, value = [], [], []
    for start in range(0, model.num_key_value_heads * (each + 2) * head, (each + 2) * head):
        query += range(start, start + each * head)
        key += range(start + each * head, start + (each + 1) * head)
        value += range(start + (each + 1) * head, start + (each + 2) * head)
    return [query, key, value]


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.matrix = nn.Parameter(torch.randn(4, 3))
        self.vector = nn.Parameter(torch.randn(3))


def test_adam_clips_warms_up_and_decays_matrices_only(model: ModelConfig) -> None:
    prepare()
    network = Small()
    config = OptimizerConfig(lr=0.01, beta1=0.9, beta2=0.98, weight_decay=0.1, max_grad_norm=1.0, warmup_steps=4)
    optimizer = ModelOptimizer(network, model, config)
    weights = {name: p.detach().double().clone() for name, p in network.named_parameters()}
    first = {name: torch.zeros_like(w) for name, w in weights.items()}
    second = {name: torch.zeros_like(w) for name, w in weights.items()}
    for step in range(1, 7):
        share = 0.5 if step > 4 else 1.0
        gradients = {name: torch.randn(w.shape, dtype=torch.float64) for name, w in weights.items()}
        for name, parameter in network.named_parameters():
            parameter.grad = gradients[name].float()
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients.values()))
        assert optimizer.step(share) == pytest.approx(norm, rel=1e-6)
        lr = 0.01 * min(1, step / 4) * share
        for name, weight in weights.items():
            gradient = gradients[name] * min(1, 1 / norm)
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.98 * second[name] + 0.02 * gradient.square()
            weight *= 1 - lr * (0.1 if name == "matrix" else 0)
            weight -= lr * (first[name] / (1 - 0.9**step)) / ((second[name] / (1 - 0.98**step)).sqrt() + 1e-8)
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(parameter.detach().double(), weights[name], atol=2e-6, rtol=1e-5)


def test_a_gradient_that_is_not_finite_changes_no_weight(model: ModelConfig) -> None:
    prepare()
    network = Small()
    optimizer = ModelOptimizer(network, model, OptimizerConfig(lr=0.01))
    before = network.matrix.detach().clone()
    network.matrix.grad = torch.full((4, 3), float("nan"))
    network.vector.grad = torch.ones(3)
    with pytest.raises(DivergedError, match="step 1"):
        optimizer.step()
    assert torch.equal(network.matrix, before)
