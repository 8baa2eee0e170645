"""A whole leg whose boxes are on two nodes, of which one is lost on the way. A node is a raylet of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from components.errors import FaultCause
from components.rollout import Origin, Outcome, SpooledBatch, load_batch
from tasks.stack import ports, settings
from tasks.stack.services import fetch
from tests import services
from tests.jobs.conftest import SmallCampaign

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

STEPS = 6


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _nodes() -> dict[str, bool]:
    """The nodes of the session's Ray that live, and whether each is the head."""
    said = fetch(f"{services.ray()}/api/v0/nodes", {"Authorization": f"Bearer {services.token()}"})
    listed = json.loads(said or b"{}").get("data", {}).get("result", {}).get("result", [])
    return {node["node_id"]: node["is_head_node"] for node in listed if node["state"] == "ALIVE"}


@pytest.fixture(scope="module")
def second() -> Iterator[tuple[str, psutil.Process]]:
    """A second node: its id, and the process that all of it descends from."""
    options = {
        "address": services.gcs(),
        "node-ip-address": "127.0.0.1",
        "dashboard-agent-listen-port": ports.any_free(),
        "dashboard-agent-grpc-port": ports.any_free(),
        "metrics-export-port": ports.any_free(),
        "num-cpus": 1,
        "object-store-memory": 100_000_000,
    }
    process = _start(options)
    try:
        deadline = time.monotonic() + 300
        while not (found := [node for node, is_head in _nodes().items() if not is_head]):
            assert time.monotonic() < deadline, "the second node is not listed"
            if process.poll() is not None:  # Ray gives it thirty seconds, which a busy machine may take longer than
                process = _start(options)
            time.sleep(0.5)
        yield found[0], psutil.Process(process.pid)
    finally:
        _kill(psutil.Process(process.pid) if process.poll() is None else None)
        process.wait()


def _start(options: Mapping[str, object]) -> subprocess.Popen[bytes]:
    argv = [Path(sys.executable).parent / "ray", "start", "--block", "--disable-usage-stats"]
    return subprocess.Popen(
        [*argv, *(f"--{name}={value}" for name, value in options.items())],
        env={**os.environ, **settings.environment(services.site())},
        stdout=subprocess.DEVNULL,
    )


def _kill(root: psutil.Process | None) -> None:
    """Ends a process and all that descends from it."""
    below = [] if root is None else root.children(recursive=True)
    for process in [*([] if root is None else [root]), *below]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _hosts(campaign: SmallCampaign, node: str = "") -> list[psutil.Process]:
    every = psutil.process_iter(["cmdline"])
    place = f"/{campaign.name}/rl/node-{node[:12]}"
    hosts = [each for each in every if any(place in part for part in each.info["cmdline"] or [])]
    return [process for process in hosts if process.status() != psutil.STATUS_ZOMBIE]


class Loss(threading.Thread):
    """Ends a node with all that runs on it, once the leg has come to its third step and both nodes have boxes."""

    def __init__(self, campaign: SmallCampaign, node: str, root: psutil.Process) -> None:
        super().__init__(daemon=True)
        self.boxes: list[int] = []
        """Of the head and of the second node, when that one was lost."""
        self._campaign, self._node, self._root = campaign, node, root

    def run(self) -> None:
        campaign, deadline = self._campaign, time.monotonic() + 400
        second = f"campaigns/{campaign.name}/rl/steps/000001/record.json"
        while not (campaign.store.exists(second) and all(boxes := self._boxes())):
            if time.monotonic() > deadline:
                return
            time.sleep(0.02)
        hosts = _hosts(campaign, self._node)
        below = [child for host in hosts for child in host.children(recursive=True)]
        _kill(self._root)
        for process in [*hosts, *below]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.boxes = boxes

    def _boxes(self) -> list[int]:
        """Boxes of the head and of the second node: each has a folder of its lease while it lives."""
        found: dict[bool, int] = {True: 0, False: 0}
        for host in _hosts(self._campaign):
            lost = any(f"node-{self._node[:12]}" in part for part in _command(host))
            with contextlib.suppress(psutil.NoSuchProcess):
                zygotes = [child for child in host.children() if "zygote.main" in " ".join(_command(child))]
                found[lost] += sum(len(zygote.children()) for zygote in zygotes)
        return [found[False], found[True]]


@pytest.fixture(scope="module")
def leg(
    campaign: SmallCampaign, pool: dict[str, Any], sft: dict[str, Any], second: tuple[str, psutil.Process]
) -> dict[str, Any]:
    overrides = (f"rl.leg_steps={STEPS}", "rollout.per_node=4", "rollout.oversample=1.0", "rollout.max_attempts=3")
    made = campaign.variant("nodes", *overrides)
    inputs = {"pool": pool["pool"], "checkpoint": sft["checkpoint"], "state": None, "critic": None, "first_step": 0}
    loss = Loss(made, *second)
    loss.start()
    result = made.run("rl", inputs, index=1)
    loss.join()
    key = f"campaigns/{made.name}/rl"
    return {
        "campaign": made,
        "result": result,
        "boxes": loss.boxes,
        "batches": [load_batch(made.store.tree(f"{key}/batches/{step:06d}")) for step in range(STEPS)],
        "unfinished": [made.store.get_json(f"{key}/rollouts/{step:06d}")["unfinished"] for step in range(STEPS)],
    }


def test_a_leg_goes_on_when_one_of_its_nodes_is_lost_with_its_boxes(leg: dict[str, Any]) -> None:
    assert leg["result"]["step"] == STEPS
    assert all(leg["boxes"]), "both nodes had boxes"
    faulted = [row for batch in leg["batches"] for row in batch.ledger.rows if row.fault is not None]
    assert faulted
    assert {row.fault for row in faulted} == {FaultCause.SANDBOX}


def test_every_trial_of_a_lost_node_has_an_outcome_and_its_task_another_trial(leg: dict[str, Any]) -> None:
    batches: list[SpooledBatch] = leg["batches"]
    trained = [trial.trial_id for batch in batches for trial in batch.trials]
    assert len(trained) == len(set(trained)) == STEPS * leg["campaign"].config.rollout.batch
    for step, batch in enumerate(batches):
        metrics = leg["campaign"].record(step)["metrics"]
        outcomes = ("admitted", "cancelled", "carried", "continued", "infra_faults")
        ended = sum(metrics[f"rollout/{outcome}"] for outcome in outcomes)
        assert metrics["rollout/launched"] + metrics["rollout/resumed"] == ended == len(batch.ledger.rows)
        assert metrics["tito/drift"] == 0
        lost = [row for row in batch.ledger.rows if row.outcome is Outcome.INFRA_FAULT]
        again = {row.task_id for row in batch.ledger.rows if row.origin is Origin.RELAUNCHED}
        owed = {trial["task_id"] for trial in leg["unfinished"][step]}
        assert {row.task_id for row in lost} <= again | owed


def test_what_a_step_passes_over_is_in_the_next(leg: dict[str, Any]) -> None:
    owed: set[str] = set()
    for batch, unfinished in zip(leg["batches"], leg["unfinished"], strict=True):
        came_back = {row.task_id for row in batch.ledger.rows if row.origin is not Origin.DRAWN}
        still = {trial["task_id"] for trial in unfinished}
        assert owed <= came_back | still
        owed = still


def test_nothing_is_left_of_either_node(leg: dict[str, Any]) -> None:
    name = leg["campaign"].name
    _, alive = psutil.wait_procs(_hosts(leg["campaign"]), 10)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
    assert list(Path(tempfile.gettempdir()).glob(f"longshell-*/{name}/rl*")) == []
    assert not any(name in line for line in Path("/proc/self/mounts").read_text().splitlines())
