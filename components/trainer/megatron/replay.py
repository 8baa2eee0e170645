"""Routing replay (R3, paper Eq 12, Algorithms 1 and 4): recorded experts are used, live logits weigh them.

Invariant: inside `replay` every router consumes the plan of every micro-batch exactly once going forward, and exactly
once more where its activations are computed again; anything else is an error that names router and counts. Outside,
routers choose freely.

Going forward, micro-batches come in the order of their plans. A recomputation may come in any order (sequential, GPipe,
1F1B): it sees the scores that the forward pass saw, and is given the plan of that micro-batch.

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


TOLERANCE = 1e-3
"""Relative distance at which the summed scores of two passes are still those of one micro-batch."""


@dataclass
class _Slot:
    """What one router is to do. `get_replay_topk` is the call that Megatron makes in place of its top-k.

    Attributes:
        layer: Megatron's number of the layer, from 1 over the whole model.
        plan: the experts of every micro-batch, or None to choose freely.
        record: filled with the experts of every pass, or None.
        forward_uses: plans consumed going forward.
        recompute_uses: plans consumed again.
        awaited: summed scores of the micro-batches that are still to be computed again.
    """

    layer: int
    again: Callable[[], bool]
    dropped: Callable[[], bool]
    plan: Sequence[Tensor] | None = None
    record: list[Tensor] | None = None
    forward_uses: int = 0
    recompute_uses: int = 0
    awaited: dict[int, Tensor] = field(default_factory=dict)

    def start(self, plan: Sequence[Tensor] | None) -> None:
        """Forgets everything and follows `plan`."""
        self.plan, self.forward_uses, self.recompute_uses, self.awaited = plan, 0, 0, {}

    def get_replay_topk(
        self, scores: Tensor, topk: int, num_groups: int | None, group_topk: int | None, free: TopK
    ) -> tuple[Tensor, Tensor]:
        if self.plan is None:
            values, experts = free(scores, topk, num_groups=num_groups, group_topk=group_topk)
            if self.record is not None:
                self.record.append(experts.detach().clone())
            return values, experts
        place = self._recomputed(scores) if self.again() else self._forwarded(scores)
        experts = self.plan[place].to(device=scores.device, dtype=torch.int64)
        if experts.shape != (scores.shape[0], topk):
            expected = (scores.shape[0], topk)
            raise RecordError(f"router of layer {self.layer}: routing {tuple(experts.shape)}, wanted {expected}")
        open_rows = experts[:, :1] == FREE
        if open_rows.any():
            live = free(scores.detach(), topk, num_groups=num_groups, group_topk=group_topk)[1]
            experts = torch.where(open_rows, live, experts)
        return scores.gather(1, experts), experts

    def _forwarded(self, scores: Tensor) -> int:
        assert self.plan is not None
        place = self.forward_uses
        if place >= len(self.plan):
            raise RecordError(f"router of layer {self.layer}: forward pass {place + 1} of {len(self.plan)} planned")
        self.forward_uses += 1
        if self.dropped():
            self.awaited[place] = scores.detach().sum(0)
        return place

    def _recomputed(self, scores: Tensor) -> int:
        assert self.plan is not None
        sums = scores.detach().sum(0)
        distances = {place: float((sums - seen).abs().max()) for place, seen in self.awaited.items()}
        nearest = min(distances, key=lambda place: distances[place], default=None)
        if nearest is None:
            count = self.recompute_uses + 1
            raise RecordError(f"router of layer {self.layer}: recompute pass {count} of {len(self.plan)} planned")
        if not distances[nearest] <= TOLERANCE * (1 + float(self.awaited[nearest].abs().max())):
            raise RecordError(
                f"router of layer {self.layer}: a recompute pass saw the scores of no micro-batch; the nearest, "
                f"{nearest}, is {distances[nearest]:.3g} away"
            )
        self.recompute_uses += 1
        del self.awaited[nearest]
        return nearest


class ReplayController:
    """Holds every router of one model to a recorded routing."""

    def __init__(self, model: Any) -> None:
        from megatron.core.tensor_parallel.random import is_checkpointing
        from megatron.core.transformer.moe.router import TopKRouter

        def again() -> bool:
            return bool(is_checkpointing() and torch.is_grad_enabled())

        def dropped() -> bool:
            return bool(is_checkpointing() and not torch.is_grad_enabled())

        routers = sorted((m for m in model.modules() if isinstance(m, TopKRouter)), key=lambda m: m.layer_number)
        self.config = model.config
        self.layers = int(model.config.num_layers)
        self.num_experts = int(model.config.num_moe_experts)
        self.slots = [_Slot(layer=router.layer_number, again=again, dropped=dropped) for router in routers]
        for router, slot in zip(routers, self.slots, strict=True):
            router.router_replay = slot

    @contextlib.contextmanager
    def replay(self, plans: Sequence[Tensor], *, backward: bool = False) -> Iterator[None]:
        """Routes as recorded.

        Args:
            plans: integers [L, R, K] a micro-batch, in the order of the forward passes; all layers of the model, also
                those of other pipeline stages; rows in the order in which the router sees its tokens. A row of -1 is
                routed freely.
            backward: a backward pass follows every forward pass, so that what is recomputed must be by the end.

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
            check_plan(plan, layers=self.layers, num_experts=self.num_experts)
        for slot in self.slots:
            slot.start([plan[slot.layer - 1] for plan in plans])
        try:
            yield
            self._check_consumed(len(plans), backward)
        finally:
            for slot in self.slots:
                slot.start(None)

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

    def _check_consumed(self, planned: int, backward: bool) -> None:
        wrong = [
            f"layer {slot.layer}: {slot.forward_uses} forward, {slot.recompute_uses} recompute"
            for slot in self.slots
            if slot.forward_uses != planned or (slot.awaited and backward)
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
