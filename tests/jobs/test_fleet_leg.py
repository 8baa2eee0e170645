"""A leg of RL and an evaluation on a fleet of two, one of which is killed while trials draw from it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from components.errors import Failure, JobFailed
from components.rollout import Outcome, load_batch
from tests.jobs.conftest import SmallCampaign
from tests.jobs.on_ray import actors

FLEET = ("sampler.replicas=2", "rl.leg_steps=6")


def replicas(campaign: SmallCampaign) -> list[int]:
    """Processes of the campaign's samplers: their logs lie in its folders."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error, OSError):
            if "components.sampler.server" in (process.info["cmdline"] or []):
                log = Path(f"/proc/{process.pid}/fd/2").readlink()
                found += [process.pid] if f"/{campaign.name}/" in str(log) else []
    return sorted(found)


def kill_one_after_two_commits(campaign: SmallCampaign, within_s: float = 600.0) -> None:
    """Kills a replica of the running leg with SIGKILL; with its actor, where it has one, as a machine is lost."""
    store, deadline = campaign.store, time.monotonic() + within_s
    while not store.exists(f"campaigns/{campaign.name}/rl/steps/000001/record.json"):
        assert time.monotonic() < deadline, "no second commit"
        time.sleep(0.01)
    one, _ = replicas(campaign)
    actor = {above.pid for above in psutil.Process(one).parents()} & actors()
    assert bool(actor) == (campaign.config.sampler.placement == "ray")
    for pid in actor or {one}:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("placement", "method"), [("job", "disk"), ("job", "collective"), ("ray", "collective")])
def test_a_leg_goes_on_when_one_sampler_of_two_is_killed_and_every_trial_is_accounted_for(
    campaign: SmallCampaign, pool: dict[str, Any], sft: dict[str, Any], placement: str, method: str
) -> None:
    given = (*FLEET, f"sampler.placement={placement}", f"publish.method={method}")
    campaign = campaign.variant(f"fleet-{placement}-{method}", *given)
    inputs = {"pool": pool["pool"], "checkpoint": sft["checkpoint"], "state": None, "critic": None, "first_step": 0}
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(campaign.run, "rl", inputs, 1)
        kill_one_after_two_commits(campaign)
        result = running.result()
    assert result["step"] == 6
    metrics = [campaign.record(step)["metrics"] for step in range(6)]
    assert sum(step["fleet/restarts"] for step in metrics) + sum(step["publish/lost"] for step in metrics) >= 1
    told = ("ended with its actor" if placement == "ray" else "ended with SIGKILL", "lost while version")
    assert any(said in line for line in campaign.lines for said in told)
    for step, figures in enumerate(metrics):
        ended = ("admitted", "cancelled", "carried", "continued", "infra_faults")
        alive = figures["rollout/launched"] + figures["rollout/resumed"]
        assert alive == sum(figures[f"rollout/{outcome}"] for outcome in ended)
        assert figures["tito/drift"] == 0
        assert figures["gap/engine_max"] < 1e-3
        batch = load_batch(campaign.store.tree(f"campaigns/{campaign.name}/rl/batches/{step:06d}"))
        admitted = [row.trial_id for row in batch.ledger.rows if row.outcome is Outcome.ADMITTED]
        assert sorted(admitted) == sorted({trial.trial_id for trial in batch.trials}), "none twice, none lost"
    assert not replicas(campaign)
    assert not actors()
    asked = {"pool": pool["pool"], "checkpoint": result["checkpoint"], "trials": 4, "label": "leg-1"}
    assert campaign.run("evaluate", asked, index=3)["n"] == 4


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_leg_that_loses_all_its_samplers_says_which_died_and_how(
    campaign: SmallCampaign, pool: dict[str, Any], sft: dict[str, Any]
) -> None:
    campaign = campaign.variant("fleet-lost", *FLEET, "sampler.max_restarts=0")
    inputs = {"pool": pool["pool"], "checkpoint": sft["checkpoint"], "state": None, "critic": None, "first_step": 0}
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(campaign.run, "rl", inputs, 1)
        kill_one_after_two_commits(campaign)
        for pid in replicas(campaign):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(JobFailed) as failed:
            running.result()
    assert failed.value.failure is Failure.INFRASTRUCTURE
    assert "0 of 2 replicas are left, 1 needed (sampler.min_healthy)" in failed.value.reason
    assert failed.value.reason.count("SIGKILL") == 2
