"""One model of this process: its forward and backward passes over micro-batches, its replay, its optimizer.

Invariant: `run` leaves no state behind but gradients; `train` leaves none at all but the update. Micro-batches and
ranks add up: a loss is already divided by the global batch's denominator, so how the batch was cut or dealt out does
not change the result. Every rank of the layout makes the same calls in the same order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from components.config import ModelConfig, OptimizerConfig, TrainerConfig
from components.trainer.batching import MicroBatch
from components.trainer.megatron.modules import RowSelector
from components.trainer.megatron.optimizer import ModelOptimizer
from components.trainer.megatron.placement import gathered, placements
from components.trainer.megatron.platform import Place, cuda_as_cpu, device, plain_torch
from components.trainer.megatron.replay import ReplayController
from components.trainer.megatron.weights import Piece

Result = TypeVar("Result")
Loss = Callable[[Tensor, MicroBatch], tuple[Tensor, Result]]
"""From a model's outputs at the rank's trainable positions, [M, V / tp] or [M, 1], to a loss and what is kept of it."""

AUX_LOSS = "load_balancing_loss"
"""Megatron's name of the auxiliary loss in its tracker."""


class Network:
    """A GPT model under Megatron's data-parallel wrapper and schedule."""

    def __init__(
        self, module: Any, model: ModelConfig, config: TrainerConfig, place: Place, optimizer: OptimizerConfig | None
    ) -> None:
        self.module = module
        self.config = module.config
        self.place = place
        self.placements = placements(module, place)
        self.replay = ReplayController(module)
        self.selector = RowSelector(module.output_layer, module.config) if module.post_process else None
        self.optimizer: ModelOptimizer | None = None
        self._aux_loss_coef = 0.0
        self._model = module
        if optimizer is not None:
            self._model = _data_parallel(module, distributed_optimizer=config.distributed_optimizer)
            sharded = self._model if config.distributed_optimizer else None
            self.optimizer = ModelOptimizer(module, model, optimizer, sharded=sharded)

    def parameters(self) -> dict[str, Tensor]:
        """Every parameter by Megatron's name, detached, sharing memory."""
        return {name: parameter.detach() for name, parameter in self.module.named_parameters()}

    @torch.no_grad()
    def set_parameters(self, values: Mapping[str, Tensor]) -> None:
        """Copies `values` into the parameters of these names."""
        parameters = self.parameters()
        for name, value in values.items():
            parameters[name].copy_(value)

    @property
    def layers(self) -> list[int]:
        """Layers of this pipeline stage, from 0 over the whole model."""
        return [layer.layer_number - 1 for layer in self.module.decoder.layers]

    @torch.no_grad()
    def set_whole(self, values: Mapping[str, Tensor]) -> None:
        """Copies this rank's part of whole parameters, by their names in the whole model; others are left alone."""
        for own, parameter in self.parameters().items():
            where = self.placements[own]
            if where.name in values:
                parameter.copy_(where.cut(values[where.name]))

    def whole(self, piece: Piece | None = None) -> dict[str, Tensor]:
        """Whole parameters of this pipeline stage, gathered over tensor and expert ranks: those that a piece takes, of
        stacked experts its own alone; or all. All ranks of the stage must call it."""
        if piece is None:
            return gathered(self.parameters(), self.placements)
        parts = {own: part for own, part in self.parameters().items() if piece.takes(self.placements[own].name)}
        return gathered(parts, self.placements, piece.experts)

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
        """What `read` makes of the outputs of each micro-batch, on the last pipeline stage; no gradients."""

        def loss(outputs: Tensor, batch: MicroBatch) -> tuple[Tensor, Result]:
            return outputs.new_zeros(()), read(outputs, batch)

        with torch.no_grad():
            return self._run(batches, loss, forward_only=True)

    def train(
        self, batches: Sequence[MicroBatch], loss: Loss[Result], *, lr_share: float = 1.0, aux_loss_coef: float = 0.0
    ) -> tuple[list[Result], float]:
        """One optimizer step on the sum of all ranks' micro-batches' losses; what was kept and the gradient norm."""
        if self.optimizer is None:
            raise ValueError("this model was built without an optimizer")
        self._model.zero_grad_buffer()
        self._aux_loss_coef = self.config.moe_aux_loss_coeff = aux_loss_coef
        try:
            kept = self._run(batches, loss, forward_only=False)
        finally:
            self._aux_loss_coef = self.config.moe_aux_loss_coeff = 0.0
        return kept, self.optimizer.step(lr_share)

    def _run(self, batches: Sequence[MicroBatch], loss: Loss[Result], *, forward_only: bool) -> list[Result]:
        from megatron.core.pipeline_parallel import get_forward_backward_func

        if not batches:
            return []
        plans = [batch.routing_LRK for batch in batches if batch.routing_LRK is not None]
        replaying = self.replay.replay(plans, backward=not forward_only) if plans else contextlib.nullcontext()
        with replaying, cuda_as_cpu():
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
        batch = next(batches).to(device())
        # A micro-batch that only keeps ranks in step has no tokens to balance.
        self.config.moe_aux_loss_coeff = self._aux_loss_coef if batch.streams else 0.0
        with plain_torch(), self._selecting(batch):
            outputs = model(
                batch.ids_T[None],
                batch.offsets_T[None],
                None,
                packed_seq_params=_packed(batch),
                padding_mask=self._padding(batch),
            )
        # The schedule divides by the number of micro-batches, in place, and the gradient buffers by that of the data
        # ranks; our losses are sums already.
        factor = count * self.place.layout.dp

        def scaled(outputs_1MV: Tensor) -> tuple[Tensor, Result]:
            with plain_torch():
                value, kept = loss(outputs_1MV[0], batch)
                return value * factor, kept

        return outputs, scaled

    @contextlib.contextmanager
    def _selecting(self, batch: MicroBatch) -> Iterator[None]:
        if self.selector is None:
            yield
            return
        self.selector.rows = batch.rows_M
        try:
            yield
        finally:
            self.selector.rows = None

    def _padding(self, batch: MicroBatch) -> Tensor | None:
        """bool[1, T], where the load-balancing loss must not look."""
        if batch.padding_T is None or not self.config.moe_aux_loss_coeff:
            return None
        rank, ranks = self.place.tp, self.place.layout.tp
        # Megatron cuts the mask for the routers of the first stage only.
        part = batch.padding_T if self.place.first_stage else batch.padding_T.chunk(ranks)[rank]
        return part[None]


def take_aux_loss(layers: int) -> float:
    """The load-balancing loss since the last call, before its coefficient: summed over layers and passes, averaged over
    data ranks. Every rank must call it."""
    from megatron.core import parallel_state
    from megatron.core.transformer.moe.moe_utils import get_moe_layer_wise_logging_tracker

    # Taken out, not only emptied: the next model of this process may have other layers.
    kept = get_moe_layer_wise_logging_tracker().pop(AUX_LOSS, None)
    values = torch.zeros(layers, device=device()) if kept is None else kept["values"]
    data = parallel_state.get_data_parallel_group()
    for group in (
        parallel_state.get_pipeline_model_parallel_group(),
        parallel_state.get_tensor_and_context_parallel_group(),
        data,
    ):
        dist.all_reduce(values, group=group)
    return float(values.sum()) / int(data.size())


def _packed(batch: MicroBatch) -> Any:
    from megatron.core.packed_seq_params import PackedSeqParams

    borders = torch.tensor(batch.borders, dtype=torch.int32, device=batch.ids_T.device)
    longest = max(end - start for start, end in pairwise(batch.borders))
    return PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=borders, cu_seqlens_kv=borders, max_seqlen_q=longest, max_seqlen_kv=longest
    )


def _data_parallel(module: Any, *, distributed_optimizer: bool) -> Any:
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )

    module.config.finalize_model_grads_func = finalize_model_grads
    config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, overlap_grad_reduce=False, use_distributed_optimizer=distributed_optimizer
    )
    with cuda_as_cpu():
        return DistributedDataParallel(module.config, config, module)
