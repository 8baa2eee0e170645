"""Optimizers: AdamW, and Muon for the matrices with AdamW for the rest, under Megatron's gradient handling.

Invariants: gradients are clipped by the norm over the whole model; a norm that is not finite stops the step before any
weight changes; everything the next step depends on is in `state`.

Muon (Jordan et al. 2024) replaces a matrix' momentum by the nearest semi-orthogonal matrix, found by five Newton-Schulz
iterations. It acts on the matrices as the architecture names them (q, k, v, gate and up by themselves), however they
are fused in memory. Matrices of equal shape are iterated as one batch, a tall one as its transpose.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from components.config import ModelConfig, OptimizerConfig
from components.errors import DivergedError
from components.trainer.megatron.platform import cuda_as_cpu

MOMENTUM = 0.95
ITERATIONS = 5
QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of the iteration: steep at 0, so that small singular values reach the region of 1 in five steps."""

ADAM_EPS = 1e-8


@dataclass(frozen=True, eq=False)
class Matrices:
    """The matrices inside one parameter: `rows` of it (None: all), cut into `count` equal ones."""

    parameter: Tensor
    count: int
    rows: Tensor | None = None

    def read(self, update: Tensor) -> Tensor:
        """[count, r, c] out of a tensor shaped like the parameter."""
        chosen = update if self.rows is None else update.index_select(0, self.rows)
        return chosen.reshape(self.count, -1, update.shape[-1])

    def add(self, change: Tensor, factor: float) -> None:
        """Adds `factor` times [count, r, c] to the parameter."""
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


class Inner(Protocol):
    """What Megatron asks of an optimizer that it wraps. `torch.optim.Optimizer` would load the compiler, a second."""

    param_groups: list[dict[str, Any]]
    state: dict[Tensor, dict[str, Tensor]]

    def step(self) -> None:
        """One update from the gradients, at each group's `lr`."""
        ...


class Adam:
    """AdamW, one fused kernel a group. Matrices decay, vectors do not."""

    def __init__(self, parameters: Sequence[Tensor], lr: float, betas: tuple[float, float], decay: float) -> None:
        matrices, vectors = ([p for p in parameters if (p.ndim > 1) == flat] for flat in (True, False))
        self.betas = betas
        self.param_groups: list[dict[str, Any]] = [
            {"params": matrices, "lr": lr, "weight_decay": decay},
            {"params": vectors, "lr": lr, "weight_decay": 0.0},
        ]
        self.state = {
            p: {"step": torch.zeros(()), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            for p in parameters
        }

    @torch.no_grad()
    def step(self) -> None:
        """See `Inner.step`."""
        for group in self.param_groups:
            states = [self.state[parameter] for parameter in group["params"]]
            if states:
                adamw(
                    group["params"],
                    _gradients(group["params"]),
                    [state["exp_avg"] for state in states],
                    [state["exp_avg_sq"] for state in states],
                    [],
                    [state["step"] for state in states],
                    fused=True,
                    amsgrad=False,
                    beta1=self.betas[0],
                    beta2=self.betas[1],
                    lr=group["lr"],
                    weight_decay=group["weight_decay"],
                    eps=ADAM_EPS,
                    maximize=False,
                )


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
        gradients = _gradients(parameters)
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


class ModelOptimizer:
    """Everything that turns one model's gradients into one update."""

    def __init__(self, network: Any, model: ModelConfig, config: OptimizerConfig) -> None:
        self.config = config
        self.steps = 0
        self.names = {parameter: name for name, parameter in network.named_parameters()}
        matrices = matrix_parts(self.names, model) if config.kind == "muon" else []
        taken = {part.parameter for part in matrices}
        rest = [parameter for parameter in self.names if parameter not in taken]
        adam = Adam(rest, config.lr, (config.beta1, config.beta2), config.weight_decay)
        self._inner: list[tuple[Inner, float]] = [(adam, config.lr)]
        if config.matrix_lr is not None:
            self._inner.append((Muon(matrices, config.matrix_lr, config.weight_decay), config.matrix_lr))
        self._outer = _megatron(self._inner, config)

    def step(self, lr_share: float = 1.0) -> float:
        """Clips, updates, and gives the norm before clipping.

        Raises:
            DivergedError: the norm is not finite. No weight was changed.
        """
        warm = min(1.0, (self.steps + 1) / self.config.warmup_steps) if self.config.warmup_steps else 1.0
        for optimizer, lr in self._inner:
            for group in optimizer.param_groups:
                group["lr"] = lr * warm * lr_share
        with cuda_as_cpu():
            self._outer.prepare_grads()
            norm = float(self._outer.get_grad_norm())
            if not math.isfinite(norm):
                raise DivergedError(f"gradient norm {norm} at optimizer step {self.steps + 1}; no weight was changed")
            self._clip(norm)
            self._outer.step_with_ready_grads()
            self._outer.zero_grad(set_to_none=True)
        self.steps += 1
        return norm

    def state(self) -> dict[str, Tensor]:
        """Every moment and count, by parameter."""
        tensors = {"steps": torch.tensor(self.steps)}
        for optimizer, _ in self._inner:
            for parameter, entries in optimizer.state.items():
                tensors |= {f"{self.names[parameter]}|{key}": value for key, value in entries.items()}
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes back what `state` gave; the caller has checked names and shapes."""
        self.steps = int(tensors["steps"])
        for optimizer, _ in self._inner:
            for parameter, entries in optimizer.state.items():
                for key, value in entries.items():
                    value.copy_(tensors[f"{self.names[parameter]}|{key}"])

    def _clip(self, norm: float) -> None:
        from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32

        clip_grad_by_total_norm_fp32(list(self.names), self.config.max_grad_norm, norm)


def _gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    assert len(gradients) == len(parameters)
    return gradients


def matrix_parts(names: Mapping[Tensor, str], model: ModelConfig) -> list[Matrices]:
    """The matrices that Muon takes: all but embeddings, routers and heads."""
    parts: list[Matrices] = []
    for parameter, name in names.items():
        kind = name.removesuffix(".weight").rpartition(".")[2]
        if kind == "linear_qkv":
            parts += [Matrices(parameter, 1, rows) for rows in _query_key_value_rows(model)]
        elif kind == "linear_fc1":
            parts.append(Matrices(parameter, 2 * len(parameter)))
        elif kind == "linear_fc2":
            parts.append(Matrices(parameter, len(parameter)))
        elif kind == "linear_proj":
            parts.append(Matrices(parameter, 1))
    return parts


def _query_key_value_rows(model: ModelConfig) -> Iterable[Tensor]:
    groups, head = model.num_key_value_heads, model.head_dim
    each = model.num_attention_heads // groups
    rows = torch.arange(groups * (each + 2) * head).view(groups, each + 2, head)
    return rows[:, :each].flatten(), rows[:, each].flatten(), rows[:, each + 1].flatten()


def _megatron(inner: Sequence[tuple[Inner, float]], config: OptimizerConfig) -> Any:
    from megatron.core import parallel_state
    from megatron.core.optimizer.optimizer import ChainedOptimizer, FP32Optimizer
    from megatron.core.optimizer.optimizer_config import OptimizerConfig as MegatronConfig

    theirs = MegatronConfig(optimizer="adam", lr=config.lr, clip_grad=config.max_grad_norm, params_dtype=torch.float32)
    with cuda_as_cpu():
        chained = [FP32Optimizer(optimizer, theirs, lambda *_: None) for optimizer, _ in inner]
    for optimizer in chained:
        optimizer.grad_stats_parallel_group = parallel_state.get_model_parallel_group()
    return ChainedOptimizer(chained)
