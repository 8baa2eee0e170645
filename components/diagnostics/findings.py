"""What a run's own numbers say about it: detectors with thresholds, one verdict.

Invariant: a finding is drawn only from what was measured; a detector without its series reports that it was blind. The
verdict is the worst finding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from components.diagnostics.series import Evaluation, Series, StepRecord, mean
from components.outcomes import AGAINST_TASK

MAX_INFRA_SHARE = 0.05
RED_INFRA_SHARE = 0.20
MAX_SHARE_GAP = 0.02
"""Two points of a class's share; the paper's tail rule costs hard tasks six."""
MIN_CANCELLED = 20
"""Fewer cancelled trials than this say nothing about classes."""
MAX_FAR_TOKENS = 0.1
"""Share of tokens whose two probabilities differ by more than 2× (R3's danger line)."""
MAX_ENGINE_GAP = 0.02
"""Token mean of |log-prob difference| at equal weights: what the paper measured before R3."""
MAX_TOKEN_WALL_SHARE = 0.2
MAX_FAILED_COMPACTIONS = 0.2
"""Share of histories that could not be rewritten; in the paper's run 98.3 % could not, and agents did work again."""
MAX_TAMPERED_SHARE = 0.05
MIN_FLAT_STEPS = 6
"""Fewer steps than this cannot show that a policy is flat."""


class Severity(IntEnum):
    """How bad a finding is."""

    OK = 0
    BLIND = 1
    WARN = 2
    RED = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One statement about a run. `value` is the number it rests on, None when blind."""

    name: str
    severity: Severity
    text: str
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings of a run, the worst first."""

    findings: tuple[Finding, ...]

    @property
    def severity(self) -> Severity:
        return max((finding.severity for finding in self.findings), default=Severity.BLIND)

    @property
    def verdict(self) -> str:
        """One line."""
        worst = [finding for finding in self.findings if finding.severity is self.severity]
        if self.severity <= Severity.BLIND:
            blind = sum(finding.severity is Severity.BLIND for finding in self.findings)
            told = f"; {blind} detector{'s were' if blind > 1 else ' was'} blind" if blind else ""
            return f"ok: nothing is wrong in what was measured{told}"
        return f"{self.severity.name.lower()}: " + "; ".join(finding.text for finding in worst)


def diagnose(records: Sequence[StepRecord], evaluations: Sequence[Evaluation]) -> Diagnosis:
    """Runs every detector."""
    series = Series(records)
    detectors: tuple[Callable[[Series], Finding], ...] = (
        _drift,
        _reencoded,
        _explained_variance,
        _infra_share,
        _cancellation_bias,
        _flat_policy,
        _engine_gap,
        _far_tokens,
        _token_wall,
        _compactions,
        _tampering,
    )
    findings = [detect(series) for detect in detectors]
    findings.append(_heldout(evaluations))
    return Diagnosis(tuple(sorted(findings, key=lambda finding: -finding.severity)))


def _drift(series: Series) -> Finding:
    values = series.values("tito/drift")
    if not values:
        return _blind("drift", "tito/drift")
    worst = max(values)
    if worst > 0:
        return Finding("drift", Severity.RED, f"trained tokens are not the sampled ones (drift {worst:.2%})", worst)
    rejected = series.total("rollout/rejected") or 0.0
    if rejected:
        text = f"{rejected:.0f} trials were rejected: what was recorded of them is not what was sampled"
        return Finding("drift", Severity.WARN, text, rejected)
    return Finding("drift", Severity.OK, "every trained token is the sampled one", 0.0)


def _reencoded(series: Series) -> Finding:
    values = series.values("tito/reencoded_context")
    if not values:
        return _blind("reencoded_context", "tito/reencoded_context")
    worst = max(values)
    severity = Severity.WARN if worst > 0 else Severity.OK
    return Finding("reencoded_context", severity, f"at most {worst:.2%} of the context was re-encoded", worst)


def _explained_variance(series: Series) -> Finding:
    late = mean(series.late("critic/explained_variance"))
    if late is None:
        return _blind("critic", "critic/explained_variance")
    if late < 0:
        return Finding(
            "critic", Severity.WARN, f"the critic is worse than a constant late in the run (EV {late:.2f})", late
        )
    return Finding("critic", Severity.OK, f"late explained variance {late:.2f}", late)


def _infra_share(series: Series) -> Finding:
    faults, launched = series.total("rollout/infra_faults"), series.total("rollout/launched")
    if faults is None or not launched:
        return _blind("infrastructure", "rollout/infra_faults")
    share = faults / launched
    severity = Severity.RED if share > RED_INFRA_SHARE else Severity.WARN if share > MAX_INFRA_SHARE else Severity.OK
    causes = {name.removeprefix("fault/"): series.total(name) for name in series.names("fault/")}
    named = ", ".join(f"{cause} {count:.0f}" for cause, count in causes.items() if count)
    text = f"{faults:.0f} of {launched:.0f} launched trials ended in infrastructure faults"
    by_task = sum(causes.get(cause.value) or 0 for cause in AGAINST_TASK)
    text += f" ({named})" if named else ""
    text += f"; {by_task:.0f} are of kinds that one task brings about again and again" if by_task else ""
    return Finding("infrastructure", severity, text, share)


def _cancellation_bias(series: Series) -> Finding:
    cancelled = series.total("rollout/cancelled")
    gaps = {name.removeprefix("rollout/share_gap/"): series.mean(name) for name in series.names("rollout/share_gap/")}
    measured = {name: gap for name, gap in gaps.items() if gap is not None}
    if cancelled is None or not measured:
        return _blind("cancellation", "rollout/share_gap")
    name, gap = min(measured.items(), key=lambda item: item[1])
    if cancelled >= MIN_CANCELLED and gap < -MAX_SHARE_GAP:
        text = f"cutting the tail starves {name}: trained share {-gap:.1%} below submitted"
        return Finding("cancellation", Severity.WARN, text, gap)
    text = f"{cancelled:.0f} trials cancelled, no class lost more than {max(0.0, -gap):.1%} of its share"
    return Finding("cancellation", Severity.OK, text, gap)


def _flat_policy(series: Series) -> Finding:
    rewards = series.values("rollout/reward_mean")
    if len(rewards) < MIN_FLAT_STEPS:
        return _blind("reward", f"rollout/reward_mean over at least {MIN_FLAT_STEPS} steps")
    early, late = series.early("rollout/reward_mean"), series.late("rollout/reward_mean")
    gain = sum(late) / len(late) - sum(early) / len(early)
    noise = math.sqrt(_variance_of_mean(early) + _variance_of_mean(late))
    if gain <= -2 * noise and gain < 0:
        return Finding("reward", Severity.RED, f"the mean reward fell by {-gain:.3f}", gain)
    if gain <= 2 * noise:
        text = f"the policy is flat: mean reward moved by {gain:+.3f}, within twice its noise {noise:.3f}"
        return Finding("reward", Severity.WARN, text, gain)
    return Finding("reward", Severity.OK, f"the mean reward rose by {gain:.3f}", gain)


def _engine_gap(series: Series) -> Finding:
    late = mean(series.late("gap/engine_token_mean"))
    if late is None:
        return _blind("engine_gap", "gap/engine_token_mean")
    severity = Severity.WARN if late > MAX_ENGINE_GAP else Severity.OK
    return Finding("engine_gap", severity, f"engine gap {late:.2g} a token at equal weights", late)


def _far_tokens(series: Series) -> Finding:
    late = mean(series.late("gap/frac_gt_ln2"))
    if late is None:
        return _blind("far_tokens", "gap/frac_gt_ln2")
    severity = Severity.RED if late > MAX_FAR_TOKENS else Severity.OK
    return Finding("far_tokens", severity, f"{late:.2%} of tokens differ by more than 2× between engines", late)


def _token_wall(series: Series) -> Finding:
    stopped, graded = series.total("stop/token_limit"), series.total("rollout/graded")
    if stopped is None or not graded:
        return _blind("token_wall", "stop/token_limit")
    share = stopped / graded
    severity = Severity.WARN if share > MAX_TOKEN_WALL_SHARE else Severity.OK
    return Finding("token_wall", severity, f"{share:.1%} of trials ran into the token wall", share)


def _compactions(series: Series) -> Finding:
    tried, done = series.total("rollout/compactions_attempted"), series.total("rollout/compactions_succeeded")
    if tried is None or done is None:
        return _blind("compactions", "rollout/compactions_attempted")
    if not tried:
        return Finding("compactions", Severity.OK, "no history had to be rewritten", 0.0)
    share = 1 - done / tried
    severity = Severity.RED if share > MAX_FAILED_COMPACTIONS else Severity.OK
    return Finding("compactions", severity, f"{share:.1%} of {tried:.0f} histories could not be rewritten", share)


def _tampering(series: Series) -> Finding:
    """What is tried is not rewarded; a policy that tries it more and more has found something that is."""
    tampered, graded = series.total("rollout/tampered"), series.total("rollout/graded")
    if tampered is None or not graded:
        return _blind("tampering", "rollout/tampered")
    share = tampered / graded
    severity = Severity.WARN if share > MAX_TAMPERED_SHARE else Severity.OK
    text = f"{share:.1%} of trials changed what only the system or the verifier may change; it was reverted"
    return Finding("tampering", severity, text, share)


def _heldout(evaluations: Sequence[Evaluation]) -> Finding:
    scored = [evaluation for evaluation in evaluations if evaluation.score.get("resolved") is not None]
    before = [evaluation for evaluation in scored if evaluation.step == 0]
    after = [evaluation for evaluation in scored if evaluation.step > 0]
    if not before or not after:
        return _blind("heldout", "a held-out score before and after RL")
    start, end = before[-1], max(after, key=lambda evaluation: evaluation.step)
    gain = end.score["resolved"] - start.score["resolved"]
    noise = math.hypot(start.score.get("stderr") or 0.0, end.score.get("stderr") or 0.0)
    text = f"held-out pass rate {start.score['resolved']:.1%} ({start.name}) → {end.score['resolved']:.1%} ({end.name})"
    if gain < -2 * noise:
        return Finding("heldout", Severity.RED, text + ": RL made it worse", gain)
    if gain <= 2 * noise:
        return Finding("heldout", Severity.WARN, text + ": within twice the standard error", gain)
    return Finding("heldout", Severity.OK, text, gain)


def _blind(name: str, series: str) -> Finding:
    return Finding(name, Severity.BLIND, f"not measured: {series}")


def _variance_of_mean(values: Sequence[float]) -> float:
    """Squared standard error of the mean; 0 with one value, which is then taken as exact."""
    n = len(values)
    if n < 2:
        return 0.0
    centre = sum(values) / n
    return sum((value - centre) ** 2 for value in values) / (n - 1) / n
