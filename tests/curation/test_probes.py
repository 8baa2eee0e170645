"""What can be earned without the work, or cannot be known with the instruction alone, in real boxes."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.config import PoolConfig
from components.curation import Audit, Rejection, audit
from components.pool import index_folder
from components.records import VerifierReport
from components.reward import dense_reward
from components.sandbox import SandboxBackend
from tests.curation import mixed
from tests.curation.conftest import LIMITS

SLICE = ("joined", "greedy", "pathless", "shallow", "secretive")
"""The others have their turn every night."""


async def run(folder: Path, backend: SandboxBackend, **imported: object) -> Audit:
    config = PoolConfig(imported={"train": ["/t"], "heldout": ["/h"], **imported})
    journal = folder.parent / "gates.jsonl"
    return await audit(index_folder(folder), backend, config=config, sandbox=LIMITS, journal=journal, concurrency=4)


async def test_every_way_to_be_paid_for_nothing_is_found_and_named_and_honest_tasks_stay(
    tmp_path: Path, backend: SandboxBackend
) -> None:
    expected = mixed.executed(tmp_path / "written")
    for name in SLICE:
        (tmp_path / "written" / name).rename(mixed.made(tmp_path / "pool") / name)
    mixed.animal(tmp_path / "pool" / "honest", "honest")
    verdict = await run(tmp_path / "pool", backend)
    found = {result.task_id: (str(result.rejection), result.detail) for result in verdict.rejected}
    assert {task: reason for task, (reason, _) in found.items()} == {task: expected[task][0] for task in SLICE}
    for task in SLICE:
        assert expected[task][1] in found[task][1], task
    [honest] = verdict.accepted
    assert honest.pass_to_pass == ("honest-list-kept",)
    assert [str(flag) for flag in honest.flags] == [
        "weak_verifier: 1 of 3 commands of the solution may be left out, such as 'rm honest-sorted.tmp'"
    ]


async def test_a_verdict_alone_is_taken_where_that_is_asked_for_and_earns_0_or_1(
    tmp_path: Path, backend: SandboxBackend
) -> None:
    mixed.executed(tmp_path / "written")
    (tmp_path / "written" / "verdict").rename(mixed.made(tmp_path / "pool") / "verdict")
    [result] = (await run(tmp_path / "pool", backend, binary_only=True, probes=None)).accepted
    assert result.assertion_ids == result.fail_to_pass == ("verdict",)
    for outcome in (True, False):
        report = VerifierReport({}, outcome, "reward.txt")
        paid = dense_reward(report, outcome, credit="fail_to_pass", fail_to_pass=result.fail_to_pass)
        assert (paid.value, paid.outcome) == (float(outcome), outcome)
    again = await run(tmp_path / "pool", backend, probes=None)
    assert [each.rejection for each in again.rejected] == [Rejection.BINARY_ONLY], "what was asked for is part of it"


async def test_what_there_was_no_time_for_is_told(tmp_path: Path, backend: SandboxBackend) -> None:
    mixed.animal(tmp_path / "pool" / "newt", "newt")
    [result] = (await run(tmp_path / "pool", backend, probes={"seconds": 1e-9})).accepted
    told = [flag.detail for flag in result.flags if flag.kind == "unprobed"]
    assert len(told) == len(result.flags) == 4
    assert told[0] == "a forged verdict: the 1e-09 s of the task's probes were over"
    [small] = (await run(tmp_path / "pool", backend, probes={"search_mb": 1, "commands": 0, "paths": 0})).accepted
    assert [flag.kind for flag in small.flags] == ["unprobed"], "one path that was not taken away"


@pytest.mark.parametrize("broken", [["binary_only"], ["probes", "seconds"]])
def test_a_probe_that_is_not_known_is_refused(broken: list[str]) -> None:
    value: object = "perhaps"
    for name in reversed(broken):
        value = {name: value}
    with pytest.raises(ValueError, match=broken[-1]):
        PoolConfig(imported={"train": ["/t"], "heldout": ["/h"], **value})
