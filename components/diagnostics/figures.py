"""Figures of a run, as PNG bytes. Matplotlib is imported when the first one is drawn, and only its canvas."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from components.diagnostics.series import Evaluation, Series, StepRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = (
    ("reward", "mean reward", (("rollout/reward_mean", "rollouts"),)),
    ("turns", "turns", (("rollout/turns_mean", "mean"), ("rollout/turns_p90", "90th percentile"))),
    ("length", "tokens a trial", (("rollout/tokens_mean", "mean"),)),
    ("explained_variance", "explained variance", (("critic/explained_variance", "critic"),)),
    (
        "gaps",
        "|log-prob gap| a token",
        (
            ("gap/engine_token_mean", "engine"),
            ("gap/policy_token_mean", "policy"),
            ("gap/total_token_mean", "total"),
        ),
    ),
    (
        "passed_over",
        "trials",
        (
            ("rollout/cancelled", "cancelled"),
            ("rollout/carried", "carried"),
            ("rollout/infra_faults", "infrastructure faults"),
        ),
    ),
)
SMOOTHED = {"gaps"}
"""Panels of single steps, pale, and of their exponential average, as the paper draws its gap."""
EMA = 0.25
"""Weight of the newest step in it (the paper's)."""
SIZE_IN = (6.0, 3.2)
DPI = 110


def figures(records: Sequence[StepRecord], evaluations: Sequence[Evaluation]) -> dict[str, bytes]:
    """PNG by name. A panel without a single measured point is left out."""
    series = Series(records)
    drawn = {}
    for name, label, lines in PANELS:
        points = [(series.points(metric), legend) for metric, legend in lines]
        if any(found for found, _ in points):
            drawn[name] = _lines(label, points, smooth=name in SMOOTHED)
    if any(evaluation.score.get("resolved") is not None for evaluation in evaluations):
        drawn["heldout"] = _heldout(evaluations)
    return drawn


def averaged(values: Sequence[float], weight: float = EMA) -> list[float]:
    """The exponential average after each value; the first is its own."""
    smooth: list[float] = []
    for value in values:
        smooth.append(value if not smooth else smooth[-1] + weight * (value - smooth[-1]))
    return smooth


def _lines(label: str, lines: Sequence[tuple[list[tuple[int, float]], str]], *, smooth: bool) -> bytes:
    canvas = _Canvas("step", label)
    for points, legend in lines:
        if not points:
            continue
        steps, values = zip(*points, strict=True)
        if not smooth:
            canvas.axes.plot(steps, values, marker="o", markersize=3, linewidth=1.4, label=legend)
            continue
        (line,) = canvas.axes.plot(steps, averaged(values), linewidth=1.6, label=legend)
        canvas.axes.plot(steps, values, ".", markersize=4, alpha=0.35, color=line.get_color())
    if len(lines) > 1:
        canvas.axes.legend(frameon=False, fontsize=8)
    return canvas.png()


def _heldout(evaluations: Sequence[Evaluation]) -> bytes:
    canvas = _Canvas("", "held-out pass rate")
    scored = [evaluation for evaluation in evaluations if evaluation.score.get("resolved") is not None]
    places = range(len(scored))
    rates = [evaluation.score["resolved"] for evaluation in scored]
    errors = [evaluation.score.get("stderr") or 0.0 for evaluation in scored]
    canvas.axes.bar(places, rates, yerr=errors, width=0.6, capsize=3, color="#4c78a8")
    canvas.axes.set_xticks(places, [evaluation.name for evaluation in scored], rotation=30, ha="right", fontsize=8)
    canvas.axes.set_ylim(0, 1)
    return canvas.png()


class _Canvas:
    """One pair of axes on an off-screen canvas; pyplot's global state is not touched."""

    def __init__(self, x_label: str, y_label: str) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self._figure = Figure(figsize=SIZE_IN, dpi=DPI, layout="constrained")
        FigureCanvasAgg(self._figure)
        self.axes: Axes = self._figure.add_subplot()
        self.axes.set_xlabel(x_label)
        self.axes.set_ylabel(y_label)
        self.axes.grid(alpha=0.25)
        self.axes.spines[["top", "right"]].set_visible(False)

    def png(self) -> bytes:
        out = io.BytesIO()
        self._figure.savefig(out, format="png")
        return out.getvalue()
