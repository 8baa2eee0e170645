"""Routing replay (R3, paper Eq 12, Algorithms 1 and 4): recorded experts are used, live logits weigh them.

Invariant: inside `replay` every router consumes the plan of every micro-batch exactly once going forward, and either
never or exactly once again when activations are recomputed; anything else is an error that names router and counts.
Outside, routers choose freely.

One controller a model, put on each `TopKRouter.router_replay` by us. The library's own registry is global to the
process and breaks as soon as an actor and a critic live in one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from components.errors import RecordError

FREE = -1
"""Stands in every slot of a row that is to be routed freely (padding)."""

TopK = Callable[..., tuple[Tensor, Tensor]]


@dataclass
class _Slot:
    """What one router is to do. `get_replay_topk` is the call that Megatron makes in place of its top-k."""

    layer: int
    plan: Sequence[Tensor] | None = None
    record: list[Tensor] | None = None
    forward_uses: int = 0
    recompute_uses: int = 0
    again: Callable[[], bool] = field(default=lambda: False)

    def get_replay_topk(
        self, scores: Tensor, topk: int, num_groups: int | None, group_topk: int | None, free: TopK
    ) -> tuple[Tensor, Tensor]:
        if self.plan is None:
            values, experts = free(scores, topk, num_groups=num_groups, group_topk=group_topk)
            if self.record is not None:
                self.record.append(experts.detach().clone())
            return values, experts
        experts = self._next()
        if experts.shape != (scores.shape[0], topk):
            expected = (scores.shape[0], topk)
            raise RecordError(f"router of layer {self.layer}: routing {tuple(experts.shape)}, wanted {expected}")
        experts = experts.to(scores.device)
        open_rows = experts[:, :1] == FREE
        if open_rows.any():
            live = free(scores.detach(), topk, num_groups=num_groups, group_topk=group_topk)[1]
            experts = torch.where(open_rows, live, experts)
        return scores.gather(1, experts), experts

    def _next(self) -> Tensor:
        assert self.plan is not None
        recomputing = self.again()
        place = self.recompute_uses if recomputing else self.forward_uses
        if place >= len(self.plan):
            what = "recompute" if recomputing else "forward"
            raise RecordError(f"router of layer {self.layer}: {what} pass {place + 1} of {len(self.plan)} planned")
        if recomputing:
            self.recompute_uses += 1
        else:
            self.forward_uses += 1
        return self.plan[place]


class ReplayController:
    """Holds every router of one model to a recorded routing."""

    def __init__(self, model: Any) -> None:
        from megatron.core.tensor_parallel.random import is_checkpointing
        from megatron.core.transformer.moe.router import TopKRouter

        def again() -> bool:
            return bool(is_checkpointing() and torch.is_grad_enabled())

        routers = sorted((m for m in model.modules() if isinstance(m, TopKRouter)), key=lambda m: m.layer_number)
        self.config = model.config
        self.num_experts = int(model.config.num_moe_experts)
        self.slots = [_Slot(layer=router.layer_number, again=again) for router in routers]
        for router, slot in zip(routers, self.slots, strict=True):
            router.router_replay = slot

    @contextlib.contextmanager
    def replay(self, plans: Sequence[Tensor]) -> Iterator[None]:
        """Routes as recorded.

        Args:
            plans: int64[L, T, K] a micro-batch, in the order of the forward passes; rows in the order in which the
                router sees its tokens. A row of -1 is routed freely.

        Raises:
            RecordError: a plan is of another shape, names an expert that does not exist or one expert twice, or was
                not consumed exactly once.
        """
        if self.config.moe_aux_loss_coeff != 0 or self.config.moe_router_fusion:
            raise ValueError(
                f"replay needs the load-balancing loss at 0 (is {self.config.moe_aux_loss_coeff}) and "
                f"moe_router_fusion off (is {self.config.moe_router_fusion}): one pulls at the recorded choices, the "
                "other ignores them"
            )
        for plan in plans:
            check_plan(plan, layers=len(self.slots), num_experts=self.num_experts)
        for place, slot in enumerate(self.slots):
            slot.plan, slot.forward_uses, slot.recompute_uses = [plan[place] for plan in plans], 0, 0
        try:
            yield
            self._check_consumed(len(plans))
        finally:
            for slot in self.slots:
                slot.plan = None

    @contextlib.contextmanager
    def record(self) -> Iterator[list[list[Tensor]]]:
        """Routes freely; the list fills with the experts of each layer, one int64[T, K] a forward pass."""
        for slot in self.slots:
            slot.record = []
        try:
            yield [slot.record for slot in self.slots if slot.record is not None]
        finally:
            for slot in self.slots:
                slot.record = None

    def _check_consumed(self, planned: int) -> None:
        wrong = [
            f"layer {slot.layer}: {slot.forward_uses} forward, {slot.recompute_uses} recompute"
            for slot in self.slots
            if slot.forward_uses != planned or slot.recompute_uses not in (0, planned)
        ]
        if wrong:
            raise RecordError(f"routing of {planned} micro-batches not consumed exactly once: {'; '.join(wrong)}")


def check_plan(plan_LTK: Tensor, *, layers: int, num_experts: int) -> None:
    """Raises RecordError unless every row is free, or names distinct experts that exist."""
    if plan_LTK.ndim != 3 or len(plan_LTK) != layers:
        raise RecordError(f"routing is {list(plan_LTK.shape)}, the model has {layers} layers of experts")
    ordered = plan_LTK.sort(dim=-1).values
    free = (plan_LTK == FREE).all(dim=-1)
    ranged = (ordered[..., 0] >= 0) & (ordered[..., -1] < num_experts)
    distinct = (ordered[..., 1:] != ordered[..., :-1]).all(dim=-1)
    bad = ~(free | (ranged & distinct))
    if bad.any():
        layer, row = bad.nonzero()[0].tolist()
        experts = plan_LTK[layer, row].tolist()
        raise RecordError(
            f"{int(bad.sum())} routing rows are not {plan_LTK.shape[-1]} distinct experts below {num_experts}; "
            f"the first: layer {layer}, row {row}: {experts}"
        )
