"""The report of a run as Markdown: verdict, findings, held-out scores, the run in a few rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from components.diagnostics.detectors import DETECTORS
from components.diagnostics.finding import Diagnosis, Finding, Severity
from components.diagnostics.quoted import quoted
from components.diagnostics.series import Evaluation, Series, StepRecord, mean

MARKS: Mapping[Severity, str] = {
    Severity.OK: "ok",
    Severity.BLIND: "not measured",
    Severity.WARN: "**warning**",
    Severity.RED: "**RED**",
}
COLUMNS = (
    ("reward", "rollout/reward_mean"),
    ("pass rate", "rollout/pass_rate"),
    ("turns", "rollout/turns_mean"),
    ("cancelled", "rollout/cancelled"),
    ("faults", "rollout/infra_faults"),
    ("explained variance", "critic/explained_variance"),
    ("engine gap", "gap/engine_token_mean"),
    ("policy gap", "gap/policy_token_mean"),
)
MAX_ROWS = 12
_BY_NAME = {detector.name: detector for detector in DETECTORS}


def render(
    title: str,
    diagnosis: Diagnosis,
    records: Sequence[StepRecord],
    evaluations: Sequence[Evaluation],
    *,
    before: Diagnosis | None = None,
    links: Mapping[str, str] | None = None,
) -> str:
    """The whole report. `before` is the diagnosis of the leg before; `links` are listed at the end (text → address)."""
    parts = [f"# {title}", f"**Verdict: {diagnosis.verdict}.**"]
    if before is not None:
        parts += ["## Since the leg before", _since(before, diagnosis)]
    parts.append(_findings(diagnosis))
    if evaluations:
        parts += ["## Held-out tasks", _evaluations(evaluations)]
        parts += _classes(evaluations[-1])
    series = Series(records)
    if ends := _ends(series):
        parts += ["## Where trials ended", ends]
    if cancelled := _cancelled(series):
        parts += ["## Cancelled by class", cancelled]
    if series.steps:
        parts += [f"## Steps ({len(series.steps)})", _steps(series)]
    if links:
        parts += ["## Links", "\n".join(f"- [{text}]({address})" for text, address in links.items())]
    return "\n\n".join(parts) + "\n"


def _findings(diagnosis: Diagnosis) -> str:
    rows = [
        [MARKS[finding.severity], finding.name, "; ".join([finding.text, *finding.evidence])]
        for finding in diagnosis.findings
    ]
    parts = [_table(["", "detector", "finding"], rows)]
    if worried := [finding for finding in diagnosis.findings if finding.severity >= Severity.WARN]:
        parts += ["## What to do", "\n".join(map(_advice, worried))]
    return "\n\n".join(parts)


def _advice(finding: Finding) -> str:
    """What its detector recommends, from which number on it spoke, and what the finding is not."""
    detector = _BY_NAME[finding.name]
    return f"- **{finding.name}** ({detector.threshold}): {detector.action}. Not to be taken for {detector.is_not}."


def _since(before: Diagnosis, now: Diagnosis) -> str:
    """Findings that are graver, or less grave, than they were."""
    was = {finding.name: finding.severity for finding in before.findings}
    lines = [
        f"- {finding.name}: {MARKS[was[finding.name]]} → {MARKS[finding.severity]}; {finding.text}"
        for finding in now.findings
        if was[finding.name] != finding.severity
    ]
    return "\n".join(lines) or "No detector changed its mind."


def _classes(evaluation: Evaluation) -> list[str]:
    """The resolved rate of each category and difficulty in one evaluation."""
    rows = [
        [kind, quoted(name), str(found["tasks"]), f"{found['resolved']:.1%}", _number(found["stderr"], ".1%")]
        for kind in ("category", "difficulty")
        for name, found in evaluation.score.get(f"by_{kind}", {}).items()
    ]
    if not rows:
        return []
    return [f"### {evaluation.name} by class", _table(["", "class", "tasks", "resolved", "±"], rows)]


def _ends(series: Series) -> str:
    """How many trials of all steps stopped for each reason, and how many ended in a fault of each cause."""
    rows = [
        [kind, name.removeprefix(prefix), f"{total:.0f}"]
        for prefix, kind in (("stop/", "graded"), ("fault/", "infrastructure"))
        for name in series.names(prefix)
        if (total := series.total(name))
    ]
    return _table(["", "reason", "trials"], rows) if rows else ""


def _cancelled(series: Series) -> str:
    """How many trials of each class were cancelled in all steps, and what that did to its share of what is trained."""
    prefix, gap = "rollout/cancelled_by/", "rollout/share_gap/"
    rows = [
        [
            name.removeprefix(prefix),
            f"{total:.0f}",
            _number(mean(series.values(gap + name.removeprefix(prefix))), "+.1%"),
        ]
        for name in series.names(prefix)
        if (total := series.total(name))
    ]
    return _table(["class", "trials", "its share, trained - submitted"], rows) if rows else ""


def _evaluations(evaluations: Sequence[Evaluation]) -> str:
    rows = []
    for evaluation in evaluations:
        score = evaluation.score
        rate = _number(score.get("resolved"), ".1%")
        error = score.get("stderr")
        rows.append(
            [
                evaluation.name,
                rate + ("" if error is None else f" ± {error:.1%}"),
                _number(score.get("assertions_passed"), ".1%"),
                _number(score.get("mean_reward"), ".3f"),
                _number(score.get("turns_mean"), ".2f"),
                _number(score.get("trials"), ".0f"),
                _number(score.get("faults"), ".0f"),
            ]
        )
    return _table(["checkpoint", "pass rate", "assertions", "reward", "turns", "trials", "faults"], rows)


def _steps(series: Series) -> str:
    """At most MAX_ROWS steps, evenly spread, first and last among them."""
    count = len(series.steps)
    shown = (
        sorted({round(i * (count - 1) / (MAX_ROWS - 1)) for i in range(MAX_ROWS)}) if count > MAX_ROWS else range(count)
    )
    points = {name: dict(series.points(name)) for _, name in COLUMNS}
    rows = [
        [str(step), *(_number(points[name].get(step), ".4g") for _, name in COLUMNS)]
        for step in (series.steps[index] for index in shown)
    ]
    return _table(["step", *(title for title, _ in COLUMNS)], rows)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
