"""The six stages of an audited pool, one after another in this process: real boxes, a scripted judge, no Ray."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from components.artifacts import LocalStore
from components.config import CampaignConfig, PoolConfig, load
from components.curation import Benchmark, contaminations
from components.jobs import aggregate, audit, gates, reaudit, repair, select
from components.jobs.job import Job
from components.pool import Pool, Split, generate
from components.pool.directory import write_task
from tests.curation.scripted_judge import KEY, ScriptedJudge, opinion
from tests.jobs.conftest import MINIATURE, SMALL

STAGES = {
    "aggregate": aggregate,
    "gates": gates,
    "audit": audit,
    "repair": repair,
    "reaudit": reaudit,
    "select": select,
}
TRAIN, HELDOUT = 9, 3
"""What two held-out tasks share, a third shows to be boilerplate."""
SCORES = {"t2": 0.7, "t3": 0.1, "t4": 0.95, "t5": 0.7}


def script(user: str, _: int) -> str:
    name = next((name for name in SCORES if f"This is {name}." in user), "")
    if user.endswith("Rewrite the instruction."):
        return json.dumps({"instruction": f"This is {name}. It was rewritten, and now says what it should."})
    if "It was rewritten" in user:
        return opinion(0.9 if name == "t2" else 0.5)
    return opinion(SCORES.get(name, 0.85))


def clean(folder: Path, count: int) -> list[Path]:
    """Generated tasks that repeat no sentence of those that are held out."""
    made = folder / "made"
    for task in islice(generate(PoolConfig(max_subtasks=2), Split.TRAIN, seed=9), 2 * count):
        write_task(task, made / task.task_id)
    (folder / "train").mkdir()
    tasks = sorted(made.iterdir())
    found = contaminations(tasks, [Benchmark(folder / "heldout")], 1.0)
    return [task for task in tasks if task.name not in found][:count]


class Pooled:
    """An audited pool in a folder."""

    def __init__(self, folder: Path, judge: ScriptedJudge) -> None:
        self.folder, self.store = folder, LocalStore(folder / "store")
        for task in islice(generate(PoolConfig(max_subtasks=2), Split.HELDOUT, seed=9), HELDOUT):
            write_task(task, folder / "heldout" / task.task_id)
        for number, task in enumerate(clean(folder, TRAIN)):
            place = folder / "train" / f"t{number}"
            task.rename(place)
            if place.name in SCORES:
                with (place / "instruction.md").open("a") as file:
                    file.write(f"\n\nThis is {place.name}.\n")
        (folder / "train" / "t1" / "solution" / "solve.sh").write_text("#!/bin/bash\nexit 3\n")
        (folder / "train" / "broken").mkdir()
        sources = (
            f"train: [{folder}/train], heldout: [{folder}/heldout], jaccard: 1, near_duplicate: null, probes: null"
        )
        wanted = [f"pool.imported={{{sources}}}", "pool.train_tasks=5", "ppo.critic.warmup=null"]
        wanted += ["pool.heldout_tasks=3", "evaluation.trials=3", "evaluation.leg_trials=3"]
        wanted.append(f"pool.audit={json.dumps({'judge': judge.settings()})}")
        self.config: CampaignConfig = load(MINIATURE, [*SMALL, *wanted])

    def run(self, stage: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
        scratch = self.folder / "jobs" / stage
        scratch.mkdir(parents=True, exist_ok=True)
        done: dict[str, Any] = STAGES[stage].stage(Job(stage, "c", 0, self.config, inputs, self.store, scratch))
        shutil.rmtree(scratch)
        return done


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Callable[[], ScriptedJudge]:
    monkeypatch.setenv("JUDGE_API_KEY", KEY)
    return lambda: ScriptedJudge(script)


def test_every_stage_hands_on_what_the_next_needs_and_every_task_left_out_has_its_reason(
    tmp_path: Path, judge: Callable[[], ScriptedJudge]
) -> None:
    with judge() as asked:
        made = Pooled(tmp_path, asked)
        gathered = made.run("aggregate", {})
        keys = {"candidates": gathered["candidates"], "left_out": gathered["left_out"]}
        keys["gates"] = made.run("gates", keys)["gates"]
        audited = made.run("audit", keys)
        assert {name: audited[name] for name in ("accepted", "borderline", "rejected", "unjudged")} == {
            "accepted": TRAIN - 4,
            "borderline": 2,
            "rejected": 1,
            "unjudged": 0,
        }
        keys["assessments"] = audited["assessments"]
        mended = made.run("repair", {**keys, "spent_usd": audited["spent_usd"]})
        assert (mended["mended"], mended["failed"], mended["hopeless"]) == (2, 0, 1)
        keys |= {"repairs": mended["repairs"], "repaired": mended["repaired"]}
        again = made.run("reaudit", {**keys, "spent_usd": mended["spent_usd"]})
        keys["reassessments"] = again["assessments"]
        result = made.run("select", {**keys, "spent_usd": again["spent_usd"]})
        assert made.run("select", {**keys, "spent_usd": again["spent_usd"]}) == result
    assert len(asked.requests) == 3 * (TRAIN - 1) + 2 + 3 * 2
    assert result["spent_usd"] == pytest.approx(0.002 * len(asked.requests))

    reasons = {each["task"]: (each["reason"], each["detail"]) for each in result["rejections"]}
    assert {task: reason for task, (reason, _) in reasons.items()} == {
        "broken": "unusable",
        "t1": "oracle_fails",
        "t3": "critical_minimum",
        "t5": "critical_minimum",
        "t8": "rank",
    }
    assert reasons["t5"][1].startswith("after its instruction was repaired: instruction_verifier_alignment 0.50 is")
    assert result["accepted"] + result["rejected"] == TRAIN + 1 + HELDOUT
    assert (result["train"], result["heldout"], result["faults"]) == (5, HELDOUT, 0)

    folder = made.store.tree(result["pool"])
    train = Pool(folder / "train")
    assert [ref.task_id for ref in train.refs] == ["t4", "t2", "t0", "t6", "t7"], "the best first"
    assert all(ref.fail_to_pass for ref in train.refs), "as the gates measured"
    repaired = train.load("t2")
    assert repaired.ref.lineage[-1].startswith("repaired:")
    assert repaired.instruction == "This is t2. It was rewritten, and now says what it should.\n"
    assert len(Pool(folder / "heldout")) == HELDOUT
    assert made.store.get_json("campaigns/c/audit/steps/000000/record.json")["metrics"]["audit/borderline"] == 2
    assert result["assertions"]["tasks"] == 5
