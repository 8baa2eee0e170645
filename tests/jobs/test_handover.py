"""What a leg carries when it ends goes on in the next leg, in the boxes that it has."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

import components.jobs.leg as leg_module
from components.artifacts import LocalStore
from components.config import PoolConfig, load
from components.jobs.job import Job
from components.jobs.leg import Course
from components.pool import Split, generate
from components.pool.directory import write_task
from components.pool.index import index_folder
from components.rollout import LedgerRow, Origin, Outcome, SpooledBatch, load_batch
from components.tito import audit
from tests.harness.parts import ByteTokenizer
from tests.jobs.conftest import SmallCampaign
from tests.jobs.rolling import MINIATURE, TURNS
from tests.jobs.test_killed_rollouts import MARKER, _first_answers, _hosts, _journals

LEG = 3
"""Steps of a real leg."""


def _ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, leaves: bool, fails: type[BaseException] | None) -> str:
    """How the rollout side of a leg is ended."""
    ended: list[str] = []

    def side(*_: object) -> SimpleNamespace:
        calls = {name: lambda name=name: ended.append(name) for name in ("open", "close", "leave")}
        return SimpleNamespace(**calls)

    monkeypatch.setattr(leg_module, "RolloutSide", side)
    monkeypatch.setattr(leg_module.ray, "init", lambda **_: None)
    store = LocalStore(tmp_path / "store")
    store.put_json("pool", {})
    config = load(MINIATURE, [])
    job = Job("rl", "c", 1, config, {"pool": "pool"}, store, tmp_path / "rl-1")
    monkeypatch.setattr(store, "tree", lambda key: tmp_path / key)
    try:
        with leg_module._rollouts(job, Course("rl", "train", 8), tmp_path, leaves=leaves):
            if fails is not None:
                raise fails
    except (SystemExit, ValueError):
        assert fails is not None
    opened, end = ended
    assert opened == "open"
    return end


@pytest.mark.parametrize("fails", [None, ValueError, SystemExit])
@pytest.mark.parametrize("leaves", [True, False])
def test_a_leg_leaves_its_boxes_to_the_next_unless_it_is_the_last_or_fails_or_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves: bool, fails: type[BaseException] | None
) -> None:
    expected = "leave" if leaves and fails is None else "close"
    assert _ending(tmp_path, monkeypatch, leaves=leaves, fails=fails) == expected


def _grown(folder: Path, before: dict[str, int]) -> set[str]:
    """Trials that were handed over and have done something since."""
    return {name for name, size in _journals(folder).items() if size > before.get(name, size)}


def _gone_on(rows: Sequence[LedgerRow]) -> list[LedgerRow]:
    return [row for row in rows if "it goes on after turn" in row.detail]


@pytest.fixture(scope="module")
def legs() -> Iterator[dict[str, Any]]:
    """A leg of one step and one of two, of scripted agents; the second is killed once carried trials went on."""
    folder = Path(tempfile.mkdtemp(prefix="longshell-test-"))
    folder.chmod(0o755)
    for task in islice(generate(PoolConfig(), Split.TRAIN, seed=1), 30):
        write_task(task, folder / "pool" / task.task_id)
    index_folder(folder / "pool")
    (folder / "overrides.json").write_text("[]")
    command = [sys.executable, "-m", "tests.jobs.rolling", str(folder)]
    with (folder / "log").open("ab") as errors:
        first = subprocess.run([*command, "1", "leave"], stderr=errors, timeout=300, check=False)
        assert first.returncode == 0, (folder / "log").read_text()[-3_000:]
        handed, hosts, before = _first_answers(folder), _hosts(folder), _journals(folder)
        killed = subprocess.Popen([*command, "3"], stderr=errors)
        deadline = time.monotonic() + 120
        while killed.poll() is None and not (went_on := _grown(folder, before)) and time.monotonic() < deadline:
            time.sleep(0.01)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        last = subprocess.run([*command, "3"], stderr=errors, timeout=300, check=False)
        assert last.returncode == 0, (folder / "log").read_text()[-3_000:]
    yield {
        "folder": folder,
        "handed": handed,
        "hosts": hosts,
        "went_on": went_on,
        "batches": [load_batch(folder / f"batch-{step}") for step in range(3)],
        "records": [json.loads((folder / f"record-{step}.json").read_text()) for step in range(3)],
    }
    shutil.rmtree(folder)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_carried_trial_goes_on_in_the_next_leg_and_through_a_kill_of_it(legs: dict[str, Any]) -> None:
    assert len(legs["hosts"]) == 1, "the host waits between the legs"
    carried = {owed["trial_id"] for owed in legs["records"][0]["unfinished"]} - {None}
    assert legs["handed"].keys() & carried, "some had drawn turns"
    assert legs["went_on"] & carried, "the first attempt at the second leg went on with one before it was killed"
    rows = {row.trial_id: row for row in legs["batches"][1].ledger.rows}
    assert carried <= rows.keys()
    assert {rows[name].origin for name in carried} <= {Origin.RESUMED, Origin.RETURNED}  # graded before the kill
    assert _gone_on(list(rows.values()))
    assert not [row for row in rows.values() if row.fault is not None or row.detail.startswith("starts anew")]
    drawn = {
        trial.trial_id: np.asarray(trial.turns[0].logprobs, np.float32).tobytes()
        for batch in legs["batches"][1:]
        for trial in batch.trials
    }
    both = drawn.keys() & legs["handed"].keys()
    assert both
    assert {name: drawn[name] for name in both} == {name: legs["handed"][name] for name in both}


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_over_two_legs_every_key_is_typed_once_and_nothing_counts_twice_or_drifts(legs: dict[str, Any]) -> None:
    batches: list[SpooledBatch] = legs["batches"]
    trained = [trial.trial_id for batch in batches for trial in batch.trials]
    assert len(trained) == len(set(trained)) == 4 * len(batches)
    for step, batch in enumerate(batches):
        metrics = legs["records"][step]["metrics"]
        assert metrics["rollout/launched"] + metrics["rollout/resumed"] == len(batch.ledger.rows)
        for trial in batch.trials:
            assert len(trial.turns) == TURNS + 2  # completion is asked twice
            ids = np.asarray(trial.turns[-1].prompt_ids).tolist()
            seen = ByteTokenizer().decode(ids).rpartition("cat /tmp/seen")[2].split("<|im_end|>")
            told = [MARKER.findall(part) for part in seen]
            assert set().union(*told) == {f"turn-{turn}-of-{trial.trial_id}" for turn in range(TURNS - 1)}
            assert all(len(part) == len(set(part)) for part in told)
            versions = [turn.weight_version for turn in trial.turns]
            assert versions == sorted(versions)
            samples = [sample for sample in batch.samples if sample.trial_id == trial.trial_id]
            assert audit(trial.turns, samples, ByteTokenizer()).drift == 0
    handed = [trial for batch in batches for trial in batch.trials if trial.trial_id in legs["handed"]]
    assert any(len({turn.weight_version for turn in trial.turns}) > 1 for trial in handed), "over the legs"


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_no_host_is_left_after_the_last_leg(legs: dict[str, Any]) -> None:
    _, alive = psutil.wait_procs(_hosts(legs["folder"]), 10)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def _of(campaign: SmallCampaign) -> list[psutil.Process]:
    """The hosts of a campaign's boxes."""
    found = psutil.process_iter(["cmdline"])
    hosts = [each for each in found if any(f"/{campaign.name}/rl/host" in part for part in each.info["cmdline"] or [])]
    return [process for process in hosts if process.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="module", params=["they live", "they are killed"])
def real_legs(
    request: pytest.FixtureRequest, campaign: SmallCampaign, pool: dict[str, Any], sft: dict[str, Any]
) -> dict[str, Any]:
    """Two whole legs, with trainer and sampler. Between them their boxes live, or are killed with their host."""
    lives = request.param == "they live"
    name = "handover" if lives else "handover-killed"
    overrides = (f"rl.leg_steps={LEG}", "rl.legs=2", "rollout.oversample=1.0", "rollout.max_staleness=3")
    made = campaign.variant(name, *overrides)
    inputs = {"pool": pool["pool"], "checkpoint": sft["checkpoint"], "state": None, "critic": None, "first_step": 0}
    first = made.run("rl", inputs, index=1)
    hosts = _of(made)
    if not lives:
        for host in hosts:
            host.kill()
        psutil.wait_procs(hosts, 30)
    inputs |= {"checkpoint": first["checkpoint"], "state": first["state"], "first_step": LEG}
    made.run("rl", inputs, index=2)
    key = f"campaigns/{made.name}/rl"
    return {
        "campaign": made,
        "lives": lives,
        "hosts": hosts,
        "batches": [load_batch(made.store.tree(f"{key}/batches/{step:06d}")) for step in range(2 * LEG)],
        "unfinished": [made.store.get_json(f"{key}/rollouts/{step:06d}")["unfinished"] for step in range(2 * LEG)],
    }


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_next_leg_goes_on_with_what_the_last_one_carried_where_its_box_lives(real_legs: dict[str, Any]) -> None:
    assert len(real_legs["hosts"]) == 1, "the host waits between the legs"
    owed = real_legs["unfinished"][LEG]  # the first leg made the second one's first batch
    carried = {trial["trial_id"] for trial in owed if trial["trial_id"] is not None}
    assert len(carried) >= 2
    rows: list[LedgerRow] = list(real_legs["batches"][LEG + 1].ledger.rows)
    first = real_legs["campaign"].record(LEG + 1)["metrics"]
    if real_legs["lives"]:
        resumed = {row.trial_id for row in rows if row.origin is Origin.RESUMED}
        assert {row.trial_id for row in _gone_on(rows)} <= resumed <= carried
        assert first["rollout/reattached"] == len(_gone_on(rows)) > 0
        # One that had ended in its box waited on disk.
        assert first["rollout/reattached"] + first["rollout/reused"] == len(carried)
    else:
        assert (first["rollout/reattached"], _gone_on(rows)) == (0, [])
        returned = [row for row in rows if row.origin is Origin.RETURNED]
        assert len(returned) == len(owed)
        assert {row.streak for row in returned} == {trial["streak"] for trial in owed}
        assert min(row.streak for row in returned) >= 1


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_over_whole_legs_nothing_counts_twice_drifts_or_is_too_old(real_legs: dict[str, Any]) -> None:
    campaign, batches = real_legs["campaign"], real_legs["batches"]
    trained = [trial.trial_id for batch in batches for trial in batch.trials]
    assert len(trained) == len(set(trained)) == len(batches) * campaign.config.rollout.batch
    for step, batch in enumerate(batches):
        metrics = campaign.record(step)["metrics"]
        outcomes = [row.outcome for row in batch.ledger.rows]
        assert metrics["rollout/launched"] + metrics["rollout/resumed"] == len(outcomes)
        assert outcomes.count(Outcome.ADMITTED) == campaign.config.rollout.batch
        assert (metrics["tito/drift"], metrics["staleness/dropped_tokens"]) == (0, 0)
        assert metrics["gap/engine_max"] < 1e-3
        assert all(sample.weight_version <= max(step - 1, 0) for sample in batch.samples)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_last_leg_leaves_neither_boxes_nor_folders(real_legs: dict[str, Any]) -> None:
    assert _of(real_legs["campaign"]) == []
    assert list(Path(tempfile.gettempdir()).glob(f"longshell-*/{real_legs['campaign'].name}/rl*")) == []
