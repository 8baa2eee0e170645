"""Which trials of a leg a person should read: a few, each for a reason that its row shows.

Invariant: pure and deterministic; a reason that no row was measured for names no trial; no trial is named twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from components.diagnostics.quoted import quoted
from components.naming import page_of
from components.rollout import TrialRow

Weight = Callable[[TrialRow], float | None]

REASONS: Mapping[str, Weight] = {
    "signs of work against the verifier": lambda row: float(row.tampering or 0) or None,
    "largest log-prob gap between sampler and trainer": lambda row: row.gap,
    "most unlike what was expected of it (size of its advantage)": lambda row: _size(row.advantage),
    "no reward, with the most assertions passed": lambda row: _in_vain(row),
    "most turns": lambda row: float(row.turns),
    "best reward": lambda row: row.reward or None,
}
"""What a trial is read for, and by which number the one is found. None: it is not one of these."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A trial to read.

    Attributes:
        step: whose batch it is in.
        reasons: why it was chosen, with the number.
    """

    step: int
    row: TrialRow
    reasons: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"step": self.step, "row": asdict(self.row), "reasons": list(self.reasons)}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Chosen:
        """What `to_json` made, whatever else stands beside it."""
        return cls(int(told["step"]), TrialRow.from_json(told["row"]), tuple(told["reasons"]))


def chosen(rows: Sequence[tuple[int, TrialRow]]) -> list[Chosen]:
    """At most one trial a reason, of (step, row); the order is that of the reasons, and of equals the earlier wins."""
    found: dict[tuple[int, str], Chosen] = {}
    for reason, weight in REASONS.items():
        weighed = [(value, step, row) for step, row in rows if (value := weight(row)) is not None]
        if not weighed:
            continue
        value, step, row = max(weighed, key=lambda each: (each[0], -each[1], each[2].trial_id))
        before = found.get((step, row.trial_id), Chosen(step, row, ()))
        found[step, row.trial_id] = Chosen(step, row, (*before.reasons, f"{reason}: {value:.3g}"))
    return list(found.values())


def _size(value: float | None) -> float | None:
    return None if value is None else abs(value)


def _in_vain(row: TrialRow) -> float | None:
    return None if row.reward or not row.assertions else float(row.assertions)


def beside(trials: Iterable[str]) -> dict[str, dict[str, str]]:
    """The links of a report to pages that lie beside it."""
    return {trial: {"page": page_of(trial)} for trial in trials}


def section(read: Sequence[Chosen], links: Mapping[str, Mapping[str, str]]) -> str:
    """The report's part about them, as Markdown. `links` are those of each trial (text → address)."""
    rows = ["| why | trial | step | task | reward | end | turns |", "|" + " --- |" * 7]
    for each in read:
        row = each.row
        named = [f"[{text}]({address})" for text, address in links.get(row.trial_id, {}).items()]
        cells = (
            "; ".join(each.reasons),
            " ".join([quoted(row.trial_id), *named]),
            str(each.step),
            quoted(row.task_id),
            f"{row.reward:g}",
            str(row.stop),
            str(row.turns),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(["## Trajectories to read", "", *rows, ""])


def unread(problems: Sequence[str]) -> str:
    """The report's part about steps whose trials could not be looked at, as Markdown; nothing where all could."""
    lines = [f"- {quoted(problem, 2_000)}" for problem in problems]
    return "\n".join(["", "## Trials that could not be looked at", "", *lines, ""]) if lines else ""
