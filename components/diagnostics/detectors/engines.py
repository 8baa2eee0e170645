"""Whether sampler and trainer compute the same model."""

from __future__ import annotations

from components.diagnostics.detector import Detector, blind
from components.diagnostics.finding import Finding, Severity
from components.diagnostics.series import Run

MAX_ENGINE_GAP = 0.02
"""Token mean of |log-prob difference| at equal weights: what the paper measured before R3 (0.021)."""
GROWTH = 3.0
"""A gap that grows by more than this factor from the run's first third to its last."""
GROWTH_FLOOR = 1e-4
"""Below this a gap is rounding, whatever its growth."""
MAX_FAR_TOKENS = 0.1
"""Share of tokens whose two probabilities differ by more than 2× (R3's danger line)."""
POLICY_DOMINATES = 10.0
"""A total gap of which the engines' part is less than one in this many is the policy's own step."""


def _engine_gap(run: Run) -> Finding:
    name = "gap/engine_token_mean"
    late = run.late(name)
    if late is None:
        return blind("engine_gap", name)
    trend = run.trend(name)
    evidence = _parts(run, late)
    if late > MAX_ENGINE_GAP:
        text = f"engine gap {late:.2g} a token at equal weights: the trainer does not compute what was sampled"
        return Finding("engine_gap", Severity.WARN, text, late, evidence)
    if trend is not None and trend.late > GROWTH_FLOOR and trend.rose and trend.late > GROWTH * trend.early:
        text = f"the engine gap grows: {trend.early:.2g} → {trend.late:.2g} a token at equal weights"
        return Finding("engine_gap", Severity.WARN, text, late, evidence)
    return Finding("engine_gap", Severity.OK, f"engine gap {late:.2g} a token at equal weights", late, evidence)


def _parts(run: Run, engine: float) -> tuple[str, ...]:
    """Which part of the total gap is the policy's own step."""
    policy = run.late("gap/policy_token_mean")
    if policy is None:
        return ()
    told = f"the policy's own step adds {policy:.2g} a token"
    return (told + (": most of the total gap" if policy > POLICY_DOMINATES * engine else ""),)


def _far_tokens(run: Run) -> Finding:
    late = run.late("gap/frac_gt_ln2")
    if late is None:
        return blind("far_tokens", "gap/frac_gt_ln2")
    severity = Severity.RED if late > MAX_FAR_TOKENS else Severity.OK
    return Finding("far_tokens", severity, f"{late:.2%} of tokens differ by more than 2× between engines", late)


DETECTORS = (
    Detector(
        "engine_gap",
        ("gap/engine_token_mean", "gap/policy_token_mean"),
        f"late mean above {MAX_ENGINE_GAP} (paper: 0.021 without R3, 0.013 with it), or {GROWTH:.0f} × the early one",
        "check that routing is captured and replayed, the router's precision, and that publications were verified",
        "the policy's own step (`gap/policy_*`), which a larger learning rate widens and replay does not narrow",
        _engine_gap,
    ),
    Detector(
        "far_tokens",
        ("gap/frac_gt_ln2",),
        f"red above {MAX_FAR_TOKENS:.0%} of tokens (R3's danger line)",
        "stop the leg: ratios of such tokens are noise. Look for stale weights on a sampler",
        "clipping: it is measured before the update",
        _far_tokens,
    ),
)
