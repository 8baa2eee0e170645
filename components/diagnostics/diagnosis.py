"""Every detector over one run."""

from __future__ import annotations

from collections.abc import Sequence

from components.diagnostics.detectors import DETECTORS
from components.diagnostics.finding import Diagnosis
from components.diagnostics.series import Evaluation, Run, Series, StepRecord


def diagnose(
    records: Sequence[StepRecord], evaluations: Sequence[Evaluation], *, now_ms: int | None = None
) -> Diagnosis:
    """What a run's own numbers say about it, the worst first.

    Args:
        records: its committed steps of RL, in any order; the last record of a step wins.
        evaluations: its checkpoints on held-out tasks.
        now_ms: the clock, where the run is still going: a last step that is too old is then a finding.
    """
    run = Run(Series(records), tuple(evaluations), now_ms)
    findings = [detector.find(run) for detector in DETECTORS]
    return Diagnosis(tuple(sorted(findings, key=lambda finding: -finding.severity)))
