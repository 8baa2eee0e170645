"""A leg that is killed goes on with the trials that were alive, in the boxes that they had."""

from __future__ import annotations

import contextlib
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from components.errors import JobFailed
from components.pool.directory import IMAGE
from components.rollout import LedgerRow, Origin, SpooledBatch, load_batch
from components.rollout.journal import _records
from tests import dockerd
from tests.jobs.conftest import SmallCampaign

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1_500)]

STEPS = 5
OVERRIDES = (f"rl.leg_steps={STEPS}", "rollout.oversample=1.0", "rollout.max_staleness=3")
"""Half of what is launched is carried, so that something waits at every barrier."""


def _folder(campaign: SmallCampaign) -> Path | None:
    return next(iter(Path(tempfile.gettempdir()).glob(f"longshell-*/{campaign.name}/rl")), None)


def _hosts(campaign: SmallCampaign) -> list[psutil.Process]:
    """The processes that hold the campaign's boxes."""
    found = psutil.process_iter(["cmdline"])
    return [process for process in found if any(f"/{campaign.name}/" in part for part in process.info["cmdline"] or [])]


def _drawn(campaign: SmallCampaign) -> dict[str, list[tuple[bytes, bytes]]]:
    """Ids and log-probs of what the trials that have a box have drawn, by trial; of some nothing yet."""
    folder = _folder(campaign)
    found: dict[str, list[tuple[bytes, bytes]]] = {}
    for path in [] if folder is None else folder.glob("finished/*/alive/*"):
        with contextlib.suppress(FileNotFoundError):  # it has ended
            events = [(body, blob) for body, blob, _ in _records(path, blobs=True)][1:]
            if events and events[0][0]["kind"] == "start":
                answers = [(body["facts"]["ids"], blob) for body, blob in events if body["kind"] == "answer"]
                found[path.name] = [(blob[: 4 * ids], blob[4 * ids : 8 * ids]) for ids, blob in answers]
    return found


class Killer(threading.Thread):
    """Kills the driver of a leg, and its host if told to, once batches have come and trials have drawn turns."""

    def __init__(self, campaign: SmallCampaign, *, host: bool) -> None:
        super().__init__(daemon=True)
        self.drawn: dict[str, list[tuple[bytes, bytes]]] = {}
        self._campaign = campaign
        self._host = host

    def run(self) -> None:
        campaign, deadline = self._campaign, time.monotonic() + 600
        second = f"campaigns/{campaign.name}/rl/steps/000001/record.json"
        while not (campaign.store.exists(second) and any(_drawn(campaign).values())):
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)
        for process in psutil.process_iter(["cmdline"]):
            command = process.info["cmdline"] or []
            if "components.jobs.rl" in command and any(campaign.name in part for part in command):
                process.kill()
                process.wait(10)
        if self._host:
            hosts = _hosts(campaign)
            for process in hosts:
                if "components.sandbox.host" in " ".join(process.cmdline()):
                    process.kill()
            psutil.wait_procs(hosts, 30)
        psutil.wait_procs([each for each in psutil.Process().children(recursive=True) if _is_worker(each)], 30)
        self.drawn = _drawn(campaign)


def _is_worker(process: psutil.Process) -> bool:
    try:
        return " ".join(process.cmdline()).startswith("ray::Rollouts")
    except psutil.Error:
        return False


@pytest.fixture(scope="module", params=["namespace", pytest.param("docker", marks=dockerd.needs_docker)])
def engine(request: pytest.FixtureRequest) -> Iterator[dockerd.Engine | None]:
    if request.param == "namespace":
        yield None
        return
    with dockerd.engine() as made:
        dockerd.import_base(made, f"{IMAGE}:latest", ("git",))
        yield made


@pytest.fixture(scope="module", params=["the driver", "the driver and the host"])
def killed(
    request: pytest.FixtureRequest,
    campaign: SmallCampaign,
    pool: dict[str, Any],
    sft: dict[str, Any],
    engine: dockerd.Engine | None,
) -> dict[str, Any]:
    """A leg that was killed once and run again."""
    boxes = [] if engine is None else ["sandbox.backend=docker", f"sandbox.docker.host={engine.host}"]
    host = request.param != "the driver"
    name = f"reattach-{'docker' if boxes else 'namespace'}{'-host' if host else ''}"
    made = campaign.variant(name, *OVERRIDES, *boxes)
    inputs = {"pool": pool["pool"], "checkpoint": sft["checkpoint"], "state": None, "critic": None, "first_step": 0}
    killer = Killer(made, host=host)
    killer.start()
    with pytest.raises(JobFailed):
        made.run("rl", inputs, index=1)
    killer.join()
    assert any(killer.drawn.values()), "nobody had drawn anything"
    assert (_hosts(made) == []) == host
    made.run("rl", inputs, index=1)
    batches = [load_batch(made.store.tree(f"campaigns/{made.name}/rl/batches/{step:06d}")) for step in range(STEPS)]
    return {"campaign": made, "drawn": killer.drawn, "batches": batches, "host": host}


def _reattached(killed: dict[str, Any]) -> float:
    steps = range(STEPS)
    return sum(float(killed["campaign"].record(step)["metrics"].get("rollout/reattached", 0)) for step in steps)


def _turns(row: LedgerRow) -> int:
    """After how many turns a trial went on."""
    found = re.search(r"it goes on after turn (\d+)", row.detail)
    assert found is not None
    return int(found[1])


def test_trials_go_on_where_their_boxes_live_and_start_anew_where_they_do_not(killed: dict[str, Any]) -> None:
    batches: list[SpooledBatch] = killed["batches"]
    rows = [row for batch in batches for row in batch.ledger.rows]
    gone_on = [row for row in rows if "it goes on after turn" in row.detail]
    anew = [row for row in rows if "starts anew: its job ended" in row.detail]
    if killed["host"]:
        assert (_reattached(killed), gone_on) == (0, [])
        gone = {row.trial_id for row in anew if "its box is gone" in row.detail}
        assert gone
        assert {row.trial_id for row in anew if "before it had a box" not in row.detail} == gone
        assert all(row.streak > 0 for row in anew if row.origin is Origin.RETURNED)
    else:
        assert len(gone_on) == _reattached(killed) > 0, [row.detail for row in rows if row.detail]
        drawn = {name: len(answers) for name, answers in killed["drawn"].items()}
        assert {row.trial_id: _turns(row) for row in gone_on}.items() <= drawn.items()
        assert any(_turns(row) for row in gone_on)
        assert {row.origin for row in gone_on} <= {Origin.RESUMED, Origin.DRAWN}


def test_what_was_drawn_before_the_kill_stands_in_the_trajectory_as_it_was(killed: dict[str, Any]) -> None:
    batches: list[SpooledBatch] = killed["batches"]
    rows = {row.trial_id for batch in batches for row in batch.ledger.rows if "it goes on after turn" in row.detail}
    trials = {trial.trial_id: trial for batch in batches for trial in batch.trials}
    trained = rows & set(trials)
    assert bool(trained) != killed["host"], "only where the host lived is there anything to look at"
    for name in trained:
        before, turns = killed["drawn"][name], trials[name].turns
        found = [
            (np.asarray(t.completion_ids, np.int32).tobytes(), np.asarray(t.logprobs, np.float32).tobytes())
            for t in turns
        ]
        assert found[: len(before)] == before
        versions = [turn.weight_version for turn in turns]
        assert versions == sorted(versions)


def test_nothing_counts_twice_and_nothing_drifts(killed: dict[str, Any]) -> None:
    campaign, batches = killed["campaign"], killed["batches"]
    trained = [trial.trial_id for batch in batches for trial in batch.trials]
    assert len(trained) == len(set(trained)) == STEPS * campaign.config.rollout.batch
    for step, batch in enumerate(batches):
        metrics = campaign.record(step)["metrics"]
        outcomes = ("admitted", "cancelled", "carried", "continued", "infra_faults")
        ended = sum(metrics[f"rollout/{outcome}"] for outcome in outcomes)
        assert metrics["rollout/launched"] + metrics["rollout/resumed"] == ended == len(batch.ledger.rows)
        assert metrics["tito/drift"] == 0
        assert metrics["gap/engine_max"] < 1e-3
        assert all(sample.weight_version <= max(step - 1, 0) for sample in batch.samples)


def test_no_box_and_no_host_is_left(killed: dict[str, Any]) -> None:
    assert _hosts(killed["campaign"]) == []
    assert list(Path(tempfile.gettempdir()).glob(f"longshell-*/{killed['campaign'].name}/rl*")) == []
