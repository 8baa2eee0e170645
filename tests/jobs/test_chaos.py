"""Fifty random SIGKILLs over all that a leg consists of: nothing is lost, nothing counts twice, nothing is left.

They come to five legs of a backend, each of some minutes, that can be run one by one (`-k 7-namespace`).
"""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import psutil
import pytest

from components.errors import Failure, JobFailed
from components.pool.directory import IMAGE
from components.rollout import Origin, Outcome, SpooledBatch, load_batch
from components.sandbox import leases
from components.sandbox.docker import reaper
from components.sandbox.docker.engine import Engine
from components.sandbox.docker.tools import TOOLS
from components.sandbox.zygote import cgroups
from tests import dockerd
from tests.jobs.conftest import SmallCampaign

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3_000)]

SEEDS = (7, 8, 9, 10, 11)
KILLS = 10
"""Of each leg."""
OF_A_KIND = 2
"""At most: of a job that starts nothing but its driver is there, and on a busy machine nothing else was ever killed."""
PATIENCE_S = 5.0
"""For one of a kind that was not killed yet: a verifier lives a moment, and little does while a job starts."""
STEPS = 20
ATTEMPTS = 30


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _is_driver(command: str) -> bool:
    return "components.jobs.rl" in command


def _is_sampler(command: str) -> bool:
    return "components.sampler.server" in command


def _is_supervisor(command: str) -> bool:
    """What makes namespaces of a host, or the first process of a container."""
    return "zygote.main" in command or command.startswith(f"{TOOLS}/lib/loader")


def _is_worker(command: str) -> bool:
    return command.startswith("ray::Rollouts")


def _is_verifier(command: str) -> bool:
    return "/tests/test.sh" in command


def _is_host(command: str) -> bool:
    return "components.sandbox.host" in command


def _of(campaign: SmallCampaign, matches: Callable[[str], bool]) -> list[psutil.Process]:
    """Those of the processes that descend from this test or from one of the campaign's hosts, or are such a host."""

    def ours(process: psutil.Process) -> bool:
        line = [process, *process.parents()]
        return any(each.pid == os.getpid() or (_is_host(c := _command(each)) and campaign.name in c) for each in line)

    return [process for process in psutil.process_iter() if matches(_command(process)) and ours(process)]


VICTIMS: dict[str, Callable[[str], bool]] = {
    "driver": _is_driver,
    "sampler": _is_sampler,
    "supervisor": _is_supervisor,
    "worker": _is_worker,
    "host": _is_host,
    "verifier": _is_verifier,
}


class Killer(threading.Thread):
    """Kills one process of a random kind after another, of each kind one before a second.

    They are descendants of this test's services, and the hosts.

    An engine, where there is one, is killed with all that it runs, and started again.
    """

    def __init__(self, campaign: SmallCampaign, seed: int, engine: dockerd.Engine | None) -> None:
        super().__init__(daemon=True)
        self._campaign = campaign
        self._engine = engine
        self.killed: Counter[str] = Counter()
        self.over = threading.Event()
        self._random = random.Random(seed)

    def run(self) -> None:
        kinds = [*VICTIMS, *(["engine"] if self._engine else [])]
        while self.killed.total() < KILLS and not self.over.wait(self._random.uniform(0.05, 1.0)):
            left = [kind for kind in kinds if self.killed[kind] < OF_A_KIND]
            fresh = [kind for kind in left if not self.killed[kind]]
            patience = time.monotonic() + PATIENCE_S
            while not self._kill_one(self._random.choice(fresh if time.monotonic() < patience and fresh else left)):
                if self.over.wait(0.01):
                    return

    def _kill_one(self, kind: str) -> bool:
        """Whether there was one."""
        if kind == "engine":
            assert self._engine is not None
            self._engine.kill()
            self._engine.start()
            self.killed[kind] += 1
            return True
        try:
            if alive := _of(self._campaign, VICTIMS[kind]):
                self._random.choice(alive).kill()
                self.killed[kind] += 1
        except psutil.NoSuchProcess:
            return False
        return bool(alive)


def _folder(campaign: SmallCampaign) -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"longshell-*/{campaign.name}/rl*"))


def _ended(campaign: SmallCampaign) -> set[str]:
    """Trials that have ended, as the leg has them on disk."""
    return {place.name for folder in _folder(campaign) for place in folder.glob("finished/*/[0-9]*/[!.]*")}


def _ownerless_groups() -> list[str]:
    """Control groups of sandbox backends whose process has ended. They are named by their owner."""
    hierarchies = cgroups.find()
    assert hierarchies is not None
    groups = [path for pattern in hierarchies.groups("*") for path in Path("/").glob(pattern.lstrip("/"))]
    named = [(path, match) for path in groups if path.is_dir() and (match := leases.LEASE.fullmatch(path.name))]
    return [str(path) for path, match in named if leases.start_time(int(match[1])) != int(match[2])]


@pytest.fixture(scope="module", params=["namespace", pytest.param("docker", marks=dockerd.needs_docker)])
def engine(request: pytest.FixtureRequest) -> Iterator[dockerd.Engine | None]:
    """The Docker engine that runs the boxes; None where they are namespaces."""
    if request.param == "namespace":
        yield None
        return
    with dockerd.engine() as made:
        dockerd.import_base(made, f"{IMAGE}:latest", ("git",))
        yield made


@pytest.fixture(scope="module", params=SEEDS)
def chaos(
    request: pytest.FixtureRequest,
    campaign: SmallCampaign,
    pool: dict[str, Any],
    sft: dict[str, Any],
    engine: dockerd.Engine | None,
) -> dict[str, Any]:
    """A leg that was run again until it ended."""
    boxes = [] if engine is None else ["sandbox.backend=docker", f"sandbox.docker.host={engine.host}"]
    made = campaign.variant(
        f"chaos-{'namespace' if engine is None else 'docker'}-{request.param}",
        f"rl.leg_steps={STEPS}",
        "sampler.max_restarts=100",
        "rollout.max_attempts=3",
        *boxes,
    )
    inputs = {"pool": pool["pool"], "checkpoint": sft["checkpoint"], "state": None, "critic": None, "first_step": 0}
    killer, ended, failures = Killer(made, request.param, engine), set[str](), list[JobFailed]()
    killer.start()
    try:
        for _ in range(ATTEMPTS):
            try:
                result = made.run("rl", inputs, index=1)
                break
            except JobFailed as failed:
                failures.append(failed)
                ended |= _ended(made)
        else:
            pytest.fail(f"the leg did not end in {ATTEMPTS} attempts; killed: {killer.killed}")
    finally:
        killer.over.set()
        killer.join()
    batches = [load_batch(made.store.tree(f"campaigns/{made.name}/rl/batches/{step:06d}")) for step in range(STEPS)]
    return {
        "campaign": made,
        "result": result,
        "killed": killer.killed,
        "ended": ended,
        "failures": failures,
        "batches": batches,
        "engine": engine,
    }


def test_the_leg_ends_and_only_infrastructure_was_to_blame(
    chaos: dict[str, Any], record_property: Callable[[str, object], None]
) -> None:
    assert chaos["result"]["step"] == STEPS
    assert [str(failed) for failed in chaos["failures"] if failed.failure is not Failure.INFRASTRUCTURE] == []
    record_property("killed", dict(chaos["killed"]))
    assert chaos["killed"].total() == KILLS, chaos["killed"]


def test_every_trial_has_one_outcome_a_step(chaos: dict[str, Any]) -> None:
    for step, batch in enumerate(chaos["batches"]):
        batch.ledger.check()
        metrics = chaos["campaign"].record(step)["metrics"]
        outcomes = ("admitted", "cancelled", "carried", "continued", "infra_faults")
        ended = sum(metrics[f"rollout/{outcome}"] for outcome in outcomes)
        assert metrics["rollout/launched"] + metrics["rollout/resumed"] == ended == len(batch.ledger.rows)
        assert metrics["tito/drift"] == 0
        assert metrics["gap/engine_max"] < 1e-3


def test_no_trial_is_trained_on_twice_and_no_step_is_recorded_twice(chaos: dict[str, Any]) -> None:
    trained = [trial.trial_id for batch in chaos["batches"] for trial in batch.trials]
    assert len(trained) == len(set(trained)) == STEPS * chaos["campaign"].config.rollout.batch
    assert [chaos["campaign"].record(step)["step"] for step in range(STEPS)] == list(range(STEPS))


def test_no_trial_that_had_ended_is_lost(chaos: dict[str, Any]) -> None:
    batches: list[SpooledBatch] = chaos["batches"]
    trained = {trial.trial_id for batch in batches for trial in batch.trials}
    last = {row.trial_id for row in batches[-1].ledger.rows if row.outcome is not Outcome.ADMITTED}
    assert chaos["ended"] - trained <= last


def test_what_a_step_passes_over_is_in_the_next(chaos: dict[str, Any]) -> None:
    store, name = chaos["campaign"].store, chaos["campaign"].name
    owed: set[str] = set()
    for step, batch in enumerate(chaos["batches"]):
        produced = store.get_json(f"campaigns/{name}/rl/rollouts/{step:06d}")
        came_back = {row.task_id for row in batch.ledger.rows if row.origin is not Origin.DRAWN}
        still_owed = {trial["task_id"] for trial in produced["unfinished"]}
        assert owed <= came_back | still_owed
        owed = still_owed


def test_nothing_is_left_of_it_on_the_machine_after_the_reapers_pass(chaos: dict[str, Any], tmp_path: Path) -> None:
    name = chaos["campaign"].name
    leases.sweep(tmp_path / "leases", tmp_path / "boxes")
    _, alive = psutil.wait_procs(_of(chaos["campaign"], lambda command: name in command), 10)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
    assert _folder(chaos["campaign"]) == []
    assert _ownerless_groups() == []
    if chaos["engine"] is not None:
        client = docker.APIClient(base_url=chaos["engine"].host)
        reaper.reap(Engine(chaos["engine"].host), "nobody", lambda name: False)
        assert client.containers(all=True) == []
        assert client.volumes()["Volumes"] in (None, [])
        assert chaos["engine"].containers_groups() == []
        client.close()
    assert not any(name in line for line in Path("/proc/self/mounts").read_text().splitlines())
