"""Muon: the optimizer of the matrices inside a model's layers.

Muon (Jordan et al. 2024) replaces a matrix' momentum by the nearest semi-orthogonal matrix, found by five Newton-Schulz
iterations. It acts on the matrices as the architecture names them (q, k, v, gate and up by themselves), however they
are fused in memory. Matrices of equal shape are iterated as one batch, a tall one as its transpose.

Invariant: the update of a matrix is that of the whole matrix. One that is cut over tensor-parallel ranks is gathered,
iterated by each of them, and every rank adds its own part.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from components.config import ModelConfig

MOMENTUM = 0.95
ITERATIONS = 5
QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of the iteration: steep at 0, so that small singular values reach the region of 1 in five steps."""


@dataclass(frozen=True, eq=False)
class Cut:
    """How matrices are spread over the ranks of a group: along their rows (1) or their columns (2)."""

    group: dist.ProcessGroup
    dim: int

    def gather(self, part: Tensor) -> Tensor:
        """The whole matrices, on every rank."""
        parts = [torch.empty_like(part) for _ in range(self.group.size())]
        dist.all_gather(parts, part.contiguous(), group=self.group)
        return torch.cat(parts, self.dim)

    def own(self, whole: Tensor) -> Tensor:
        """This rank's part of them."""
        return whole.chunk(self.group.size(), self.dim)[self.group.rank()]


@dataclass(frozen=True, eq=False)
class Matrices:
    """The matrices inside one parameter: `rows` of it (None: all), cut into `count` equal ones; or parts of theirs."""

    parameter: Tensor
    count: int
    rows: Tensor | None = None
    cut: Cut | None = None

    def read(self, update: Tensor) -> Tensor:
        """[count, r, c], whole, out of a tensor shaped like the parameter."""
        chosen = update if self.rows is None else update.index_select(0, self.rows)
        matrices = chosen.reshape(self.count, -1, update.shape[-1])
        return matrices if self.cut is None else self.cut.gather(matrices)

    def add(self, change: Tensor, factor: float) -> None:
        """Adds `factor` times [count, r, c] to the parameter."""
        if self.cut is not None:
            change = self.cut.own(change)
        if self.rows is None:
            self.parameter.add_(change.reshape(self.parameter.shape), alpha=factor)
        else:
            self.parameter.index_add_(0, self.rows, change.reshape(-1, change.shape[-1]), alpha=factor)


def newton_schulz(stack_BRC: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrix of each of a stack with R <= C, roughly: singular values end in 0.7..1.2."""
    a, b, c = QUINTIC
    x: Tensor = stack_BRC / (torch.linalg.matrix_norm(stack_BRC, keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


class Muon:
    """Muon with Nesterov momentum and decoupled weight decay, over the matrices inside its parameters."""

    def __init__(self, matrices: Sequence[Matrices], lr: float, decay: float) -> None:
        parameters = list(dict.fromkeys(part.parameter for part in matrices))
        self.param_groups: list[dict[str, Any]] = [{"params": parameters, "lr": lr, "weight_decay": decay}]
        self.state = {parameter: {"momentum": torch.zeros_like(parameter)} for parameter in parameters}
        self._stacks: dict[tuple[int, int], list[Matrices]] = defaultdict(list)
        for part in matrices:
            rows, columns = part.read(part.parameter.detach()).shape[1:]
            self._stacks[min(rows, columns), max(rows, columns)].append(part)

    @torch.no_grad()
    def step(self) -> None:
        """See `Inner.step`."""
        (group,) = self.param_groups
        parameters: list[Tensor] = group["params"]
        gradients = gradients_of(parameters)
        momenta = [self.state[parameter]["momentum"] for parameter in parameters]
        torch._foreach_mul_(momenta, MOMENTUM)
        torch._foreach_add_(momenta, gradients)
        updates = dict(zip(parameters, torch._foreach_add(gradients, momenta, alpha=MOMENTUM), strict=True))
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        for stack in self._stacks.values():
            self._update(stack, updates, group["lr"])

    def _update(self, parts: Sequence[Matrices], updates: Mapping[Tensor, Tensor], lr: float) -> None:
        read = [part.read(updates[part.parameter]) for part in parts]
        tall = [matrices.shape[1] > matrices.shape[2] for matrices in read]
        wide = [matrices.mT if is_tall else matrices for matrices, is_tall in zip(read, tall, strict=True)]
        done = torch.split(newton_schulz(torch.cat(wide)), [len(matrices) for matrices in read])
        for part, matrices, is_tall in zip(parts, done, tall, strict=True):
            change = matrices.mT if is_tall else matrices
            part.add(change, -lr * math.sqrt(max(1.0, change.shape[1] / change.shape[2])))


def matrix_parts(
    names: Mapping[Tensor, str], model: ModelConfig, group: dist.ProcessGroup | None = None
) -> list[Matrices]:
    """The matrices that Muon takes: all but embeddings, routers, heads and convolutions. `group` cuts all of them but
    those of the routed experts."""
    ranks = 1 if group is None else group.size()
    rows_cut, columns_cut = (None if group is None or ranks == 1 else Cut(group, dim) for dim in (1, 2))
    parts: list[Matrices] = []
    for parameter, name in names.items():
        kind = name.removesuffix(".weight").rpartition(".")[2]
        if kind == "linear_qkv":
            parts += _chosen(parameter, _query_key_value_rows(model, ranks), rows_cut)
        elif kind == "in_proj":
            parts += _chosen(parameter, _delta_net_rows(model, ranks), rows_cut)
        elif "shared_experts.linear_fc1" in name:
            parts += _chosen(parameter, torch.arange(len(parameter)).view(-1, 2).unbind(1), rows_cut)
        elif kind in ("linear_proj", "out_proj") or "shared_experts.linear_fc2" in name:
            parts.append(Matrices(parameter, 1, cut=columns_cut))
        elif kind == "linear_fc1":
            parts.append(Matrices(parameter, 2 * len(parameter)))
        elif kind == "linear_fc2":
            parts.append(Matrices(parameter, len(parameter)))
    return parts


def _chosen(parameter: Tensor, kinds: Sequence[Tensor], cut: Cut | None) -> list[Matrices]:
    """One matrix of each kind of rows."""
    return [Matrices(parameter, 1, rows.to(parameter.device), cut) for rows in kinds]


def _query_key_value_rows(model: ModelConfig, ranks: int) -> list[Tensor]:
    """Of queries, their gates when the attention is gated, keys and values (`mixers`)."""
    each = model.num_attention_heads // model.num_key_value_heads * model.head_dim
    gates = [] if model.hybrid is None else [each]
    return _rows_by_group(model.num_key_value_heads // ranks, [each, *gates, model.head_dim, model.head_dim])


def _delta_net_rows(model: ModelConfig, ranks: int) -> list[Tensor]:
    """Of queries, keys, values, their gates, β and α (`mixers`)."""
    hybrid = model.hybrid
    assert hybrid is not None
    heads = hybrid.linear_num_value_heads // hybrid.linear_num_key_heads
    key, values = hybrid.linear_key_head_dim, heads * hybrid.linear_value_head_dim
    return _rows_by_group(hybrid.linear_num_key_heads // ranks, [key, key, values, values, heads, heads])


def _rows_by_group(groups: int, sizes: list[int]) -> list[Tensor]:
    """The rows of each kind in a fused matrix that holds so many of each, one kind behind the other, in every group."""
    rows = torch.arange(groups * sum(sizes)).view(groups, -1)
    return [part.flatten() for part in torch.split(rows, sizes, 1)]


def gradients_of(parameters: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of each; all have one."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    assert len(gradients) == len(parameters)
    return gradients
