"""Faults that the compactions of other harnesses had (the public report is named)."""

from __future__ import annotations

import pytest

from components.errors import StopReason
from tests.harness.parts import FakePolicy
from tests.harness.test_compaction import LONG, compacting


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["s" * 50], "summary: cut at 40 tokens"),
        (["did x", "q" * 50], "questions: cut at 40 tokens"),
        (["did x", "why?", "a" * 50], "answers: cut at 40 tokens"),
        ([" \n"], "summary: empty"),
        (["did x", ""], "questions: empty"),
    ],
)
async def test_a_summary_that_fails_ends_the_trial_with_its_reason_and_nothing_is_asked_after_it(texts, reason):
    # marin #7833, verifiers #2458: 59 % of the trials that summarised fell back and went on in an over-full history.
    policy = FakePolicy(*[LONG] * 3, *texts)
    running = compacting(policy)
    assert await running.run("do it") is StopReason.COMPACTION_FAILED
    assert running.compaction_failure == reason
    assert (running.tally.compactions_attempted, running.tally.compactions_succeeded) == (1, 0)
    assert len(running.trajectory.turns) == 3 + len(texts)  # what was drawn is kept, and nothing is asked after it
