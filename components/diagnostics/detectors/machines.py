"""Whether the run is whole: infrastructure, and the measurements themselves."""

from __future__ import annotations

import statistics
from itertools import pairwise

from components.diagnostics.detector import Detector, blind, graded, worst_share
from components.diagnostics.finding import Finding, Severity
from components.diagnostics.series import Run
from components.outcomes import AGAINST_TASK

MAX_INFRA_SHARE = 0.05
RED_INFRA_SHARE = 0.20
EXPECTED = ("rollout/launched", "rollout/graded", "rollout/reward_mean", "tito/drift", "time/step")
"""What every step of every algorithm measures."""
STALE_STEPS = 5.0
"""A run whose last step is older than this many of its median steps has stopped."""


def _infrastructure(run: Run) -> Finding:
    series = run.series
    faults, launched = series.total("rollout/infra_faults"), series.total("rollout/launched")
    if faults is None or not launched:
        return blind("infrastructure", "rollout/infra_faults")
    found = worst_share(run, "rollout/infra_faults", "rollout/launched")
    assert found is not None
    _, worst, evidence = found
    causes = {name.removeprefix("fault/"): series.total(name) for name in series.names("fault/")}
    named = ", ".join(f"{cause} {count:.0f}" for cause, count in causes.items() if count)
    text = f"{faults:.0f} of {launched:.0f} launched trials ended in infrastructure faults"
    by_task = sum(causes.get(cause.value) or 0 for cause in AGAINST_TASK)
    text += f" ({named})" if named else ""
    text += f"; {by_task:.0f} are of kinds that one task brings about again and again" if by_task else ""
    return Finding("infrastructure", graded(worst, MAX_INFRA_SHARE, RED_INFRA_SHARE), text, worst, evidence)


def _measurements(run: Run) -> Finding:
    steps = run.series.steps
    if not steps:
        return blind("measurements", "no step was committed")
    missing = sorted(set(range(steps[-1] + 1)) - set(steps))
    if missing:
        text = f"{len(missing)} steps have no record, the first is {missing[0]}"
        return Finding("measurements", Severity.RED, text, float(len(missing)))
    absent = {name: len(steps) - len(run.series.values(name)) for name in EXPECTED}
    gone = {name: count for name, count in absent.items() if count}
    if gone:
        named = ", ".join(f"{name} in {count} of {len(steps)} steps" for name, count in gone.items())
        return Finding("measurements", Severity.WARN, f"not measured: {named}", float(max(gone.values())))
    return _age(run)


def _age(run: Run) -> Finding:
    """How long ago the last step was, in median steps, where the run still goes; the first one tells what it took."""
    at = run.series.timestamps_ms
    between = [(after - before) / 1000 for before, after in pairwise(at)]
    typical = statistics.median(between) if between else run.late("time/step")
    if run.now_ms is None or typical is None or not typical > 0:
        return Finding("measurements", Severity.OK, f"every step measured what it must, {len(at)} in all", 0.0)
    age = (run.now_ms - at[-1]) / 1000
    text = f"the last step is {age:.0f} s old, a step takes {typical:.0f} s"
    severity = Severity.RED if age > STALE_STEPS * typical else Severity.OK
    return Finding("measurements", severity, ("the run stands still: " if severity else "") + text, age / typical)


DETECTORS = (
    Detector(
        "infrastructure",
        ("rollout/infra_faults", "rollout/launched", "fault/*"),
        f"more than {MAX_INFRA_SHARE:.0%} of the launched trials, of all or of the late ones, red above "
        f"{RED_INFRA_SHARE:.0%} (ours)",
        "look at the cause with the largest count; one task that brings a fault about again and again is left out",
        "failed work: a fault has no reward and is in no denominator",
        _infrastructure,
    ),
    Detector(
        "measurements",
        EXPECTED,
        f"a step without a record or series; a last step older than {STALE_STEPS:.0f} median steps while the leg runs",
        "look at the leg's job: `ray job logs`; a step that was committed is never repeated",
        "an evaluation that takes long: only steps are looked at",
        _measurements,
    ),
)
