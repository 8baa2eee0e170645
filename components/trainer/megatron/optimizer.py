"""Optimizers: AdamW, and Muon for the matrices with AdamW for the rest, under Megatron's gradient handling.

Invariants: gradients are clipped by the norm over the whole model, whatever its layout; a norm that is not finite stops
the step before any weight changes; everything the next step depends on is in `state`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.adamw import adamw

from components.config import ModelConfig, OptimizerConfig
from components.errors import DivergedError
from components.trainer.megatron.muon import Muon, gradients_of, matrix_parts
from components.trainer.megatron.platform import cuda_as_cpu

ADAM_EPS = 1e-8


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
        self.betas = betas
        self.param_groups = _by_decay(parameters, lr, decay)
        self.state = {parameter: _moments(parameter) for parameter in parameters}

    @torch.no_grad()
    def step(self) -> None:
        """See `Inner.step`."""
        for group in self.param_groups:
            states = [self.state[parameter] for parameter in group["params"]]
            if states:
                adamw(
                    group["params"],
                    gradients_of(group["params"]),
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


class ModelOptimizer:
    """Everything that turns one model's gradients into one update.

    Args:
        network: the model.
        model: its shape.
        config: kind and rates.
        sharded: Megatron's data-parallel wrapper of the model when the state is cut over its ranks, else None.
    """

    def __init__(self, network: Any, model: ModelConfig, config: OptimizerConfig, *, sharded: Any = None) -> None:
        self.config = config
        self.steps = 0
        self.names = {parameter: name for name, parameter in network.named_parameters()}
        self._parts = _sharded(sharded, config) if sharded is not None else _whole(self.names, model, config)
        self._outer = _chained([part.outer for part in self._parts])

    def step(self, lr_share: float = 1.0) -> float:
        """Clips, updates, and gives the norm before clipping. Every rank must call it.

        Raises:
            DivergedError: the norm is not finite. No weight was changed.
        """
        warm = min(1.0, (self.steps + 1) / self.config.warmup_steps) if self.config.warmup_steps else 1.0
        for part in self._parts:
            for group in part.outer.optimizer.param_groups:
                group["lr"] = part.lr * warm * lr_share
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
        """Every moment and count, by parameter, whole ones: every rank must call it."""
        tensors = {"steps": torch.tensor(self.steps)}
        for part in self._parts:
            for parameter in part.parameters:
                entries = part.read(parameter)
                tensors |= {f"{self.names[parameter]}|{key}": value for key, value in entries.items()}
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes back what `state` gave; the caller has checked names and shapes."""
        self.steps = int(tensors["steps"])
        for part in self._parts:
            for parameter in part.parameters:
                prefix = f"{self.names[parameter]}|"
                part.write(parameter, {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})

    def _clip(self, norm: float) -> None:
        from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32

        parameters = [parameter for part in self._parts for parameter in part.outer.get_parameters()]
        clip_grad_by_total_norm_fp32(parameters, self.config.max_grad_norm, norm)


class Part(Protocol):
    """One of Megatron's optimizers, with the parameters it updates and where their state is.

    Attributes:
        outer: Megatron's optimizer.
        lr: learning rate.
        parameters: of the model, in their order.
    """

    outer: Any
    lr: float
    parameters: Sequence[Tensor]

    def read(self, parameter: Tensor) -> dict[str, Tensor]:
        """The state of a parameter, shaped like it but for counts."""
        ...

    def write(self, parameter: Tensor, entries: Mapping[str, Tensor]) -> None:
        """Copies state in."""
        ...


class WholePart:
    """State of whole parameters."""

    def __init__(self, inner: Inner, lr: float, config: Any, group: Any) -> None:
        from megatron.core.optimizer.optimizer import FP32Optimizer

        self.inner = inner
        self.lr = lr
        self.parameters: Sequence[Tensor] = list(inner.state)
        with cuda_as_cpu():
            self.outer = FP32Optimizer(inner, config, lambda *_: None)
        self.outer.grad_stats_parallel_group = group

    def read(self, parameter: Tensor) -> dict[str, Tensor]:
        """See `Part.read`."""
        return self.inner.state[parameter]

    def write(self, parameter: Tensor, entries: Mapping[str, Tensor]) -> None:
        """See `Part.write`."""
        for key, value in self.inner.state[parameter].items():
            value.copy_(entries[key])


class ShardedPart:
    """State that Megatron's distributed optimizer cuts, as flat ranges, over the ranks of a data-parallel group."""

    def __init__(self, wrapped: Any, buffers: Any, parameters: Sequence[Tensor], config: OptimizerConfig) -> None:
        from megatron.core import parallel_state
        from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

        self.lr = config.lr
        self.parameters: Sequence[Tensor] = list(parameters)
        self.group = buffers[0].data_parallel_group
        inner = torch.optim.AdamW(
            _by_decay(parameters, config.lr, config.weight_decay),
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=ADAM_EPS,
            fused=True,
        )
        # Without gradients, the ranges of a parameter are leaves, as an optimizer wants them.
        with cuda_as_cpu(), torch.no_grad():
            self.outer = DistributedOptimizer(
                inner,
                _megatron_config(config, sharded=True),
                None,
                None,
                model_chunks=[wrapped],
                per_model_buffers={0: buffers},
                data_parallel_group=self.group,
                data_parallel_group_gloo=None,
                data_parallel_group_idx=0,
                distributed_optimizer_instance_id=0,
            )
        self.outer.grad_stats_parallel_group = parallel_state.get_intra_distributed_optimizer_instance_group()
        for group in inner.param_groups:
            for shard in group["params"]:
                inner.state[shard] = _moments(shard)

    def read(self, parameter: Tensor) -> dict[str, Tensor]:
        """See `Part.read`. Every rank must call it."""
        place, state = self._own(parameter)
        found = {"step": torch.zeros((), device=parameter.device)}
        for key in ("exp_avg", "exp_avg_sq"):
            found[key] = torch.zeros_like(parameter)
            if state is not None:
                found[key].view(-1)[place].copy_(state[key])
            dist.all_reduce(found[key], group=self.group)
        if state is not None:
            found["step"].copy_(state["step"])
        dist.all_reduce(found["step"], dist.ReduceOp.MAX, group=self.group)
        return found

    def write(self, parameter: Tensor, entries: Mapping[str, Tensor]) -> None:
        """See `Part.write`."""
        place, state = self._own(parameter)
        if state is not None:
            state["step"].copy_(entries["step"])
            for key in ("exp_avg", "exp_avg_sq"):
                state[key].copy_(entries[key].view(-1)[place])

    def _own(self, parameter: Tensor) -> tuple[slice, dict[str, Tensor] | None]:
        """The range of a parameter that this rank updates, and its state; none when other ranks have all of it."""
        if parameter not in self.outer.model_param_group_index_map:
            return slice(0, 0), None
        held = self.outer._get_model_param_range_map(parameter)["param"]
        group, order = self.outer.model_param_group_index_map[parameter]
        shard = self.outer.optimizer.param_groups[group]["params"][order]
        return slice(held.start, held.end), self.outer.optimizer.state[shard]


def _moments(parameter: Tensor) -> dict[str, Tensor]:
    zeros = torch.zeros_like(parameter), torch.zeros_like(parameter)
    step = torch.zeros((), device=parameter.device)  # where the fused kernel wants it
    return {"step": step, "exp_avg": zeros[0], "exp_avg_sq": zeros[1]}


def _by_decay(parameters: Sequence[Tensor], lr: float, decay: float) -> list[dict[str, Any]]:
    """Matrices decay, vectors do not."""
    matrices, vectors = ([p for p in parameters if (p.ndim > 1) == flat] for flat in (True, False))
    return [
        {"params": matrices, "lr": lr, "weight_decay": decay},
        {"params": vectors, "lr": lr, "weight_decay": 0.0},
    ]


def _whole(names: Mapping[Tensor, str], model: ModelConfig, config: OptimizerConfig) -> list[Part]:
    """Adam, and Muon when it is asked for, for the parameters whose gradients are reduced over all data ranks, and once
    more for experts that are not."""
    from megatron.core import parallel_state

    theirs = _megatron_config(config, sharded=False)
    parts: list[Part] = []
    for experts in (False, True):
        group = (
            parallel_state.get_expert_tensor_model_pipeline_parallel_group()
            if experts
            else parallel_state.get_model_parallel_group()
        )
        own = {parameter: name for parameter, name in names.items() if _expert_parallel(parameter) == experts}
        tensor = parallel_state.get_tensor_model_parallel_group()
        matrices = matrix_parts(own, model, tensor) if config.kind == "muon" else []
        taken = {part.parameter for part in matrices}
        rest = [parameter for parameter in own if parameter not in taken]
        if rest:
            adam = Adam(rest, config.lr, (config.beta1, config.beta2), config.weight_decay)
            parts.append(WholePart(adam, config.lr, theirs, group))
        if config.matrix_lr is not None and matrices:
            parts.append(
                WholePart(Muon(matrices, config.matrix_lr, config.weight_decay), config.matrix_lr, theirs, group)
            )
    return parts


def _sharded(wrapped: Any, config: OptimizerConfig) -> list[Part]:
    if config.kind != "adam":
        raise ValueError("muon needs whole matrices: trainer.distributed_optimizer must be false")
    parameters = list(wrapped.module.parameters())
    parts: list[Part] = []
    for experts, buffers in ((False, wrapped.buffers), (True, wrapped.expert_parallel_buffers)):
        own = [parameter for parameter in parameters if _expert_parallel(parameter) == experts]
        if own:
            parts.append(ShardedPart(wrapped, buffers, own, config))
    return parts


def _expert_parallel(parameter: Tensor) -> bool:
    """Whether Megatron reduces its gradient over the expert-data-parallel group."""
    return not vars(parameter).get("allreduce", True)


def _megatron_config(config: OptimizerConfig, *, sharded: bool) -> Any:
    from megatron.core.optimizer.optimizer_config import OptimizerConfig as MegatronConfig

    return MegatronConfig(
        optimizer="adam",
        lr=config.lr,
        clip_grad=config.max_grad_norm,
        params_dtype=torch.float32,
        use_distributed_optimizer=sharded,
    )


def _chained(optimizers: Sequence[Any]) -> Any:
    from megatron.core.optimizer.optimizer import ChainedOptimizer

    return ChainedOptimizer(list(optimizers))
