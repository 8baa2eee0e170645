"""One model of this process: its forward and backward passes over micro-batches, its replay, its optimizer.

Invariant: `run` leaves no state behind but gradients; `train` leaves none at all but the update. Micro-batches add up:
a loss is already divided by the global batch's denominator, so how the batch was cut does not change the result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from components.config import ModelConfig, OptimizerConfig
from components.trainer.batching import MicroBatch
from components.trainer.megatron.modules import RowSelector
from components.trainer.megatron.optimizer import ModelOptimizer
from components.trainer.megatron.platform import cuda_as_cpu, plain_torch
from components.trainer.megatron.replay import ReplayController

Result = TypeVar("Result")
Loss = Callable[[Tensor, MicroBatch], tuple[Tensor, Result]]
"""From a model's outputs at the trainable positions, [M, V] or [M, 1], to a loss and what is to be kept of it."""

AUX_LOSS = "load_balancing_loss"
"""Megatron's name of the auxiliary loss in its tracker."""


class Network:
    """A GPT model under Megatron's data-parallel wrapper and schedule."""

    def __init__(self, module: Any, model: ModelConfig, optimizer: OptimizerConfig | None) -> None:
        self.module = module
        self.config = module.config
        self.replay = ReplayController(module)
        self.selector = RowSelector(module.output_layer)
        self.optimizer: ModelOptimizer | None = None
        self._model = module
        if optimizer is not None:
            self._model = _data_parallel(module)
            self.optimizer = ModelOptimizer(module, model, optimizer)

    def parameters(self) -> dict[str, Tensor]:
        """Every parameter by Megatron's name, detached, sharing memory."""
        return {name: parameter.detach() for name, parameter in self.module.named_parameters()}

    @torch.no_grad()
    def set_parameters(self, values: Mapping[str, Tensor]) -> None:
        """Copies `values` into the parameters of these names."""
        parameters = self.parameters()
        for name, value in values.items():
            parameters[name].copy_(value)

    @contextlib.contextmanager
    def holding(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """The block runs with other weights; the current ones are back afterwards."""
        current = {name: parameter.clone() for name, parameter in self.parameters().items()}
        self.set_parameters(values)
        try:
            yield
        finally:
            self.set_parameters(current)

    def evaluate(self, batches: Sequence[MicroBatch], read: Callable[[Tensor, MicroBatch], Result]) -> list[Result]:
        """What `read` makes of the outputs of each micro-batch; no gradients."""

        def loss(outputs: Tensor, batch: MicroBatch) -> tuple[Tensor, Result]:
            return outputs.new_zeros(()), read(outputs, batch)

        with torch.no_grad():
            return self._run(batches, loss, forward_only=True)

    def train(
        self, batches: Sequence[MicroBatch], loss: Loss[Result], *, lr_share: float = 1.0, aux_loss_coef: float = 0.0
    ) -> tuple[list[Result], float]:
        """One optimizer step on the sum of the micro-batches' losses; gives what was kept and the gradient norm."""
        if self.optimizer is None:
            raise ValueError("this model was built without an optimizer")
        self._model.zero_grad_buffer()
        self.config.moe_aux_loss_coeff = aux_loss_coef
        try:
            kept = self._run(batches, loss, forward_only=False)
        finally:
            self.config.moe_aux_loss_coeff = 0.0
        return kept, self.optimizer.step(lr_share)

    def _run(self, batches: Sequence[MicroBatch], loss: Loss[Result], *, forward_only: bool) -> list[Result]:
        from megatron.core.pipeline_parallel import get_forward_backward_func

        if not batches:
            return []
        plans = [batch.routing_LTK for batch in batches if batch.routing_LTK is not None]
        with self.replay.replay(plans) if plans else contextlib.nullcontext(), cuda_as_cpu():
            results: list[Result] = get_forward_backward_func()(
                forward_step_func=partial(self._forward, loss, len(batches)),
                data_iterator=iter(batches),
                model=self._model,
                num_microbatches=len(batches),
                seq_length=max(len(batch.ids_T) for batch in batches),
                micro_batch_size=1,
                forward_only=forward_only,
            )
        return results

    def _forward(self, loss: Loss[Result], count: int, batches: Iterator[MicroBatch], model: Any) -> Any:
        batch = next(batches)
        self.selector.rows = batch.rows_M
        try:
            with plain_torch():
                outputs = model(batch.ids_T[None], batch.offsets_T[None], None, packed_seq_params=_packed(batch))
        finally:
            self.selector.rows = None

        def scaled(outputs_1MV: Tensor) -> tuple[Tensor, Result]:
            with plain_torch():
                value, kept = loss(outputs_1MV[0], batch)
                # The schedule divides by the number of micro-batches, in place; our losses are sums already.
                return value * count, kept

        return outputs, scaled


def take_aux_loss() -> float:
    """The load-balancing loss summed over layers and passes since the last call, before its coefficient."""
    from megatron.core.transformer.moe.moe_utils import clear_aux_losses_tracker, get_moe_layer_wise_logging_tracker

    tracker = get_moe_layer_wise_logging_tracker()
    total = float(tracker[AUX_LOSS]["values"].sum()) if AUX_LOSS in tracker else 0.0
    clear_aux_losses_tracker()
    return total


def _packed(batch: MicroBatch) -> Any:
    from megatron.core.packed_seq_params import PackedSeqParams

    borders = torch.tensor((0, *batch.lengths)).cumsum(0).to(torch.int32)
    longest = max(batch.lengths)
    return PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=borders, cu_seqlens_kv=borders, max_seqlen_q=longest, max_seqlen_kv=longest
    )


def _data_parallel(module: Any) -> Any:
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )

    module.config.finalize_model_grads_func = finalize_model_grads
    with cuda_as_cpu():
        return DistributedDataParallel(
            module.config, DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=False), module
        )
