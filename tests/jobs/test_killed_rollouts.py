"""Rollouts that are killed at any moment and go on in another process, in real boxes; a script is the agent."""

from __future__ import annotations

import contextlib
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from components.config import PoolConfig
from components.pool import Split, generate
from components.pool.directory import IMAGE, write_task
from components.pool.index import index_folder
from components.rollout import Journals, Origin, Outcome, SpooledBatch, load_batch
from components.tito import audit
from tests import dockerd
from tests.harness.parts import ByteTokenizer
from tests.jobs.rolling import TURNS

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1_200)]

MARKER = re.compile(r"turn-\d-of-[0-9a-f]{16}")
STEPS = 3
KILLS = 6


def _start(folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log").open("ab") as errors:
        return subprocess.Popen([sys.executable, "-m", "tests.jobs.rolling", folder, str(STEPS)], stderr=errors)


def _journals(folder: Path) -> dict[str, int]:
    """Bytes of the journals of the trials that are alive."""
    found = {}
    for path in folder.glob("finished/alive/*"):
        with contextlib.suppress(FileNotFoundError):  # it has ended
            found[path.name] = path.stat().st_size
    return found


def _plays(folder: Path, before: dict[str, int]) -> bool:
    """Whether a trial has drawn something, and the process that began with those journals is past their ends."""
    now = _journals(folder)
    return now != before and any(size > 3_000 for size in now.values())


def _first_answers(folder: Path) -> dict[str, bytes]:
    """Log-probs of the first answer of every trial that is alive. An answer that is drawn again has others."""
    found = {}
    for path in folder.glob("finished/alive/*"):
        journal = Journals(path.parent).open(path.name, {})
        answers = [event for event in journal._past if event.kind == "answer"]
        journal.close()
        if answers:
            count = answers[0].facts["ids"]
            found[path.name] = answers[0].blob[4 * count : 8 * count]
    return found


def _hosts(folder: Path) -> list[psutil.Process]:
    every = psutil.process_iter(["cmdline"])
    found = [process for process in every if str(folder / "state" / "host") in (process.info["cmdline"] or [])]
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="module", params=["namespace", pytest.param("docker", marks=dockerd.needs_docker)])
def overrides(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    if request.param == "namespace":
        yield []
        return
    with dockerd.engine() as engine:
        dockerd.import_base(engine, f"{IMAGE}:latest", ("git",))
        yield ["sandbox.backend=docker", f"sandbox.docker.host={engine.host}"]


@pytest.fixture(scope="module")
def killed(overrides: list[str]) -> Iterator[dict[str, Any]]:
    """Steps of rollouts through many kills, one of them of the host too."""
    folder = Path(tempfile.mkdtemp(prefix="longshell-test-"))
    folder.chmod(0o755)
    for task in islice(generate(PoolConfig(), Split.TRAIN, seed=1), 40):
        write_task(task, folder / "pool" / task.task_id)
    index_folder(folder / "pool")
    (folder / "overrides.json").write_text(json.dumps(overrides))
    chance = random.Random(3)
    ended: set[str] = set()
    drawn: list[dict[str, bytes]] = []
    for number in range(KILLS):
        before = _journals(folder)
        process = _start(folder)
        deadline = time.monotonic() + 120
        while process.poll() is None and not _plays(folder, before) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.8))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        drawn.append(_first_answers(folder))
        ended |= {place.name for place in folder.glob("finished/[0-9]*/[!.]*")}
        if number == KILLS // 2:
            for host in _hosts(folder):
                host.kill()
    assert _start(folder).wait(300) == 0, (folder / "log").read_text()[-3_000:]
    batches = [load_batch(folder / f"batch-{step}") for step in range(STEPS)]
    records = [json.loads((folder / f"record-{step}.json").read_text()) for step in range(STEPS)]
    yield {"folder": folder, "batches": batches, "records": records, "ended": ended, "drawn": drawn}
    shutil.rmtree(folder)


def test_trials_went_on_and_the_ledger_says_so(killed: dict[str, Any]) -> None:
    rows = [row for batch in killed["batches"] for row in batch.ledger.rows]
    gone_on = [row for row in rows if "it goes on after turn" in row.detail]
    assert len(gone_on) == sum(record["metrics"]["rollout/reattached"] for record in killed["records"])
    # The ledger is that of the process that came to a step's end; who had gone on in one before it is known by its ids.
    trials = {trial.trial_id: trial for batch in killed["batches"] for trial in batch.trials}
    first = {name: np.asarray(trial.turns[0].logprobs, np.float32).tobytes() for name, trial in trials.items()}
    assert any(first.get(name) == logprobs for alive in killed["drawn"] for name, logprobs in alive.items())
    assert not [row for row in rows if row.fault is not None], [row.detail for row in rows if row.fault is not None]
    for row in rows:
        if row.detail.startswith("starts anew"):
            known = ("its box is gone", "before it had a box", "0 are")  # the last was killed while a terminal opened
            assert any(cause in row.detail for cause in known), row.detail
            assert row.origin is not Origin.RETURNED or row.streak > 0


def test_every_key_was_typed_once_and_every_trajectory_is_of_one_piece(killed: dict[str, Any]) -> None:
    batches: list[SpooledBatch] = killed["batches"]
    for batch in batches:
        for trial in batch.trials:
            assert len(trial.turns) == TURNS + 2  # completion is asked twice
            seen = (
                ByteTokenizer().decode(np.asarray(trial.turns[-1].prompt_ids).tolist()).rpartition("cat /tmp/seen")[2]
            )
            # The last line of one observation may be the first of the next one: each is looked at by itself.
            told = [Counter(MARKER.findall(part)) for part in seen.split("<|im_end|>")]
            assert set().union(*told) == {f"turn-{turn}-of-{trial.trial_id}" for turn in range(TURNS - 1)}
            assert max(count for part in told for count in part.values()) == 1
            versions = [turn.weight_version for turn in trial.turns]
            assert versions == sorted(versions)
            samples = [sample for sample in batch.samples if sample.trial_id == trial.trial_id]
            assert audit(trial.turns, samples, ByteTokenizer()).drift == 0


def test_nothing_counts_twice_and_nothing_that_had_ended_is_lost(killed: dict[str, Any]) -> None:
    batches: list[SpooledBatch] = killed["batches"]
    trained = [trial.trial_id for batch in batches for trial in batch.trials]
    assert len(trained) == len(set(trained)) == 4 * STEPS
    last = {row.trial_id for row in batches[-1].ledger.rows if row.outcome is not Outcome.ADMITTED}
    assert killed["ended"] - set(trained) <= last
    for step, batch in enumerate(batches):
        metrics = killed["records"][step]["metrics"]
        outcomes = ("admitted", "cancelled", "carried", "continued", "infra_faults")
        assert metrics["rollout/launched"] + metrics["rollout/resumed"] == len(batch.ledger.rows)
        assert sum(metrics[f"rollout/{outcome}"] for outcome in outcomes) == len(batch.ledger.rows)
        assert all(sample.weight_version <= step for sample in batch.samples)


def test_no_host_is_left(killed: dict[str, Any]) -> None:
    _, alive = psutil.wait_procs(_hosts(killed["folder"]), 10)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
    assert list((killed["folder"] / "state" / "leases").glob("*")) == []
