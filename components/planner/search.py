"""Every layout of a model on a number of devices, those first that a person would try first.

Invariant: all layouts that Megatron can cut are listed, with experts spread as far as they go.
"""

from __future__ import annotations

import math

from components.config import LayoutConfig
from components.planner.capacity import OVERHEAD_GIB, CapacityReport, Plan, capacity
from components.planner.shape import ModelShape


def layouts(
    model: ModelShape,
    devices: int,
    tokens: int,
    *,
    memory_gib: float,
    overhead_gib: float = OVERHEAD_GIB,
    activation_bytes_per_token: float | None = None,
) -> list[CapacityReport]:
    """Reports of every layout of `devices` devices: those that fit first, then by what they cost in communication.

    Tensor parallelism goes no further than there are key-value heads to share out, pipelines need equal stages, and
    context parallelism comes in powers of two. Of layouts that fit, less context, pipeline and tensor parallelism is
    less to send.
    """
    reports = []
    for tensor in _divisors(model.key_value_heads):
        for pipeline in _divisors(model.layers):
            for context in _powers(devices):
                data, rest = divmod(devices, tensor * pipeline * context)
                if rest:
                    continue
                spread = math.gcd(model.experts, devices // pipeline)
                layout = LayoutConfig(tp=tensor, pp=pipeline, cp=context, dp=data, ep=spread)
                plan = Plan(layout, memory_gib, overhead_gib, activation_bytes_per_token)
                reports.append(capacity(plan, model, tokens))
    return sorted(reports, key=_order)


def _order(report: CapacityReport) -> tuple[float, ...]:
    layout = report.plan.layout
    over = 0.0 if report.fits else report.total - report.budget
    return (over, layout.cp, layout.pp, layout.tp)


def _divisors(number: int) -> list[int]:
    return [factor for factor in range(1, number + 1) if number % factor == 0]


def _powers(limit: int) -> list[int]:
    return [1 << power for power in range(limit.bit_length()) if 1 << power <= limit]
