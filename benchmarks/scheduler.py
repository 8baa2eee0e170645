"""What each tail rule trains and costs: 200 steps of 512 admitted trials through the real core, in virtual time.

`wave` starts all 561 at once, with durations that reproduce the paper's 48 cancelled of 561; `slots` has 128 places.
`hard_share` is the hard class's share of what is trained (20 % is drawn), `step_ratio` the mean step time over that of
`cancel`, `busy_share` the slot-seconds used until the last admission. `trials_per_s` is the speed of core and ledger.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

from benchmarks.machine import describe
from components.planner import Kind, simulate
from components.rollout import Outcome, Plan, Tail

KINDS = (Kind("easy", 0.5, 1.5, 0.6), Kind("medium", 0.3, 2.3, 0.6), Kind("hard", 0.2, 3.2, 0.6))
STEPS = 200
MAX_STREAK = 3


def plan(tail: Tail, slots: int) -> Plan:
    """561 launched for 512 admitted, no limit on starts."""
    return Plan.of(
        512,
        group=1,
        oversample=49 / 512,
        concurrency=slots,
        starts_per_s=1e9,
        max_attempts=1,
        max_fault_share=1.0,
        max_rejected_share=1.0,
        tail=tail,
    )


def measure(slots: int) -> dict[str, Any]:
    """The three rules over the same pool."""
    figures: dict[str, Any] = {}
    base_s = 0.0
    for tail in Tail:
        start = time.perf_counter()
        run = simulate(plan(tail, slots), KINDS, steps=STEPS, max_streak=MAX_STREAK, seed=1)
        took = time.perf_counter() - start
        mean_s = statistics.mean(run.step_s)
        base_s = base_s or mean_s
        shares = run.shares(drawn=False)
        drawn = run.shares(drawn=True)
        figures[tail.value] = {
            "hard_share": round(shares["hard"], 4),
            "hard_drawn": round(drawn["hard"], 4),
            "worst_gap": round(max(abs(shares[kind.name] - drawn[kind.name]) for kind in KINDS), 4),
            "cancelled": round(run.mean(Outcome.CANCELLED), 1),
            "late_share": round(run.late_share(), 4),
            "step_ratio": round(mean_s / base_s, 3),
            "busy_share": round(run.busy_share, 4),
            "trials_per_s": round(sum(len(ledger.rows) for ledger in run.ledgers) / took),
        }
    return figures


def main() -> None:
    """Measures and prints one JSON object."""
    print(json.dumps({"wave": measure(561), "slots": measure(128), "steps": STEPS, "machine": describe()}))


if __name__ == "__main__":
    main()
