"""Plans for people to read, and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from components.planner.balance import Split
from components.planner.capacity import GIB, CapacityReport
from components.planner.device import DeviceReport
from components.planner.host import HostReport
from components.planner.shape import INT32, ModelShape

COLUMNS = (
    "τ",
    "ρ",
    "κ",
    "δ",
    "η",
    "weights",
    "optimizer",
    "activ.",
    "logits",
    "other",
    "total",
    "",
    "decides",
    "longest",
)
ROWS = 12
"""Layouts that are shown; JSON has all."""


def describe(shape: ModelShape) -> str:
    """The model in a few lines."""
    linear = shape.layers - shape.full_attention_layers
    kinds = f"{shape.layers} layers" + (f", {linear} of them gated delta nets" if linear else "")
    state = f", {shape.state_bytes_per_sequence / 1e6:,.1f} MB of state a sequence" if linear else ""
    compact, wide = shape.routing_bytes_per_token(), shape.routing_bytes_per_token(INT32)
    return "\n".join(
        (
            f"{kinds}; {shape.experts} experts, {shape.topk} a token; {shape.parameters / 1e9:,.2f} B parameters, "
            f"{shape.active_parameters / 1e9:,.2f} B active",
            f"experts P_e {shape.expert_parameters / 1e9:,.2f} B, the rest P_d {shape.dense_parameters / 1e9:,.2f} B",
            f"routing record {compact:,} B a token ({wide:,} as int32); key-value cache {shape.kv_bytes_per_token:,} B "
            f"a token{state}",
        )
    )


def table(reports: Sequence[CapacityReport], rows: int = ROWS) -> str:
    """Layouts and what a device of the worst stage holds, in GiB."""
    lines = [COLUMNS, *(_row(report) for report in reports[:rows])]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    text = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    fitting = sum(report.fits for report in reports)
    text.append(f"{fitting} of {len(reports)} layouts fit{'' if len(reports) <= rows else f'; {rows} are shown'}")
    return "\n".join(text)


def sentence(split: Split) -> str:
    """A split of devices."""
    return (
        f"{split.sampling} devices generate in {split.generate:,.1f}, {split.training} train in {split.update:,.1f}: "
        f"a step takes {split.step:,.1f}, {split.ideal:,.1f} if devices could be cut at will"
    )


def document(shape: ModelShape, reports: Sequence[CapacityReport], split: Split | None) -> dict[str, Any]:
    """Everything, in bytes."""
    return {
        "model": {
            **vars(shape),
            "parameters": shape.parameters,
            "active_parameters": shape.active_parameters,
            "routing_bytes_per_token": shape.routing_bytes_per_token(),
        },
        "split": None if split is None else {**vars(split), "step": split.step},
        "plans": [
            {
                "layout": report.plan.layout.model_dump(),
                "tokens": report.tokens,
                "stages": {stage.name: {**stage.terms, "total": stage.total} for stage in report.stages},
                "total": report.total,
                "budget": report.budget,
                "fits": report.fits,
                "decides": report.decides,
                "max_tokens": report.max_tokens,
            }
            for report in reports
        ],
    }


def judgement(report: DeviceReport | HostReport) -> dict[str, Any]:
    """A campaign's own arithmetic, in bytes."""
    found = {"terms": report.terms, "tokens": report.tokens, "total": report.total, "fits": report.fits}
    if isinstance(report, HostReport):
        return {**found, "memory": report.memory}
    memory = int(report.memory_gib * GIB)
    return {**found, "memory": memory, "layout": report.layout.model_dump(), "stage": report.stage}


def _row(report: CapacityReport) -> tuple[str, ...]:
    layout, worst = report.plan.layout, report.worst
    sizes = (layout.tp, layout.pp, layout.cp, layout.dp, layout.ep)
    terms = (
        worst.expert_weights + worst.dense_weights,
        worst.expert_optimizer + worst.dense_optimizer,
        worst.activations,
        worst.logits,
        worst.overhead,
        worst.total,
    )
    return (
        *(str(size) for size in sizes),
        *(f"{value / GIB:.1f}" for value in terms),
        "fits" if report.fits else "over",
        report.decides.replace("_", " "),
        f"{report.max_tokens:,}",
    )
