"""Curation of a whole pool from elsewhere, of which half is broken: every defect is named, nothing sound is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from components.artifacts import LocalStore
from components.pool import Pool
from tests.curation import mixed

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]
HELDOUT = ("axolotl", "bison", "caribou", "dormouse", "emu", "flamingo")
DICE = ("dice", "renamed")
"""What these say of a run differs from run to run; that is what is wrong with them."""
PLANETS = (
    "Merge every night of measurements below observatory into planets.csv, sorted by right ascension and by epoch."
)


def write(folder: Path) -> tuple[set[str], dict[str, tuple[str, str]]]:
    """The sources of a curation; the names of the sound tasks, and of the others what is expected."""
    train, benchmark = folder / "train", folder / "benchmark"
    expected = mixed.executed(train) | mixed.unreadable(train)
    sound = mixed.sound(train)
    for name in HELDOUT:
        mixed.animal(folder / "heldout" / name, name)
    mixed.write(benchmark / "planets", PLANETS, "true", {})
    (benchmark / "planets/tests/test.sh").write_text("exit 1\n")
    mixed.write(train / "stars", f"Please: {PLANETS}", "true", {"a": "true"})
    expected["stars"] = "contaminated", "windows"
    twin = mixed.animal(train / "ystwin", "ystwin")
    shutil.copytree(twin, train / "ystwin-again")
    (train / "ystwin-again/tests/test.sh").write_text((twin / "tests/test.sh").read_text() + "true\n")
    expected["ystwin-again"] = "near_duplicate", "of ystwin, Jaccard index 1.000"
    return sound | {"ystwin"}, expected


def start(folder: Path) -> subprocess.Popen[bytes]:
    log = (folder / "log").open("ab")
    command = [sys.executable, "-m", "tests.curation.curator", str(folder)]
    return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def finish(folder: Path) -> dict[str, Any]:
    assert start(folder).wait(1200) == 0, (folder / "log").read_text()[-3000:]
    return json.loads((folder / "result.json").read_text())


def journal(folder: Path) -> list[str]:
    """The tasks that have ended, as they were written down. What a kill has torn is no line."""
    path = folder / "job" / "gates-train.jsonl"
    ended = []
    for line in path.read_text().splitlines() if path.exists() else []:
        with suppress(ValueError):
            ended.append(json.loads(line)["task_id"])
    return ended


def reasons(result: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["task"]: (each["reason"], each["detail"]) for each in result["rejections"]}


def without_dice(found: dict[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    return {task: (reason, "" if task in DICE else detail) for task, (reason, detail) in found.items()}


@pytest.fixture(scope="module")
def curated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("whole")
    write(folder)
    return folder, finish(folder)


def test_every_defect_is_found_and_named_and_no_sound_task_is_rejected(
    curated: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, result = curated
    sound, expected = write(tmp_path)
    assert len(sound) + len(expected) >= 60
    assert len(expected) >= 25
    found = reasons(result)
    assert {task: reason for task, (reason, _) in found.items()} == {task: why[0] for task, why in expected.items()}
    for task, (_, detail) in expected.items():
        assert detail in found[task][1], (task, found[task])
    assert result["faults"] == 0
    pool = Pool(LocalStore(folder / "store").tree(result["pool"]) / "train")
    assert {ref.task_id for ref in pool.refs} == sound
    assert all(ref.fail_to_pass for ref in pool.refs)
    flagged = {flag["task"]: flag["kind"] for flag in result["flags"]}
    assert flagged["badger"] == "weak_verifier", "its solution removes a file that nobody misses"
    assert not [task for task in flagged if task.startswith("train-")]


def test_the_same_pool_gives_the_same_verdicts(curated: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    _, once = curated
    write(tmp_path)
    again = finish(tmp_path)
    assert again["digest"] == once["digest"]
    assert without_dice(reasons(again)) == without_dice(reasons(once))


def test_a_killed_curation_goes_on_and_repeats_no_task_that_had_ended(
    curated: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    _, once = curated
    write(tmp_path)
    for kill_at in (8, 20):
        process = start(tmp_path)
        while len(journal(tmp_path)) < kill_at:
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    ended = journal(tmp_path)
    assert 20 <= len(ended) < len(once["rejections"]) + once["train"]
    result = finish(tmp_path)
    whole = journal(tmp_path)
    assert whole[: len(ended)] == ended
    assert len(whole) == len(set(whole)), "no task was gated twice"
    assert result["digest"] == once["digest"]
    assert without_dice(reasons(result)) == without_dice(reasons(once))
