"""The command, killed with SIGKILL wherever it stands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from components.pool import Pool
from tests.synthesis.conftest import root_pool


def command(pool: Path, folder: Path) -> list[str]:
    options = ["--rounds", "2", "--tasks", "6", "--concurrency", "2"]
    return [sys.executable, "-m", "components.synthesis", str(pool), "--into", str(folder), *options]


def lines(folder: Path) -> list[str]:
    journal = folder / ".synthesis" / "gates.jsonl"
    return journal.read_text().splitlines() if journal.exists() else []


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_run_that_is_killed_again_and_again_ends_in_the_same_tasks_and_gates_none_twice(tmp_path: Path) -> None:
    pool = root_pool(tmp_path / "pool", 20).folder
    subprocess.run(command(pool, tmp_path / "whole"), check=True, timeout=400)
    killed = tmp_path / "killed"
    for wanted in (1, 4, 7, 10):
        run = subprocess.Popen(command(pool, killed), start_new_session=True, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while len(lines(killed)) < wanted and run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(run.pid, signal.SIGKILL)
        run.wait(10)
    subprocess.run(command(pool, killed), check=True, timeout=400)
    found, expected = ({ref.task_id: ref for ref in Pool(folder).refs} for folder in (killed, tmp_path / "whole"))
    assert {task: ref.digest for task, ref in found.items()} == {task: ref.digest for task, ref in expected.items()}
    results = [json.loads(line) for line in lines(killed) if line.endswith("}")]
    assert set(Counter((each["task_id"], each["digest"]) for each in results).values()) == {1}
    assert {path.name for path in killed.glob("[!.]*")} == {*found, "pool.parquet"}
