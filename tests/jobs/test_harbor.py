"""A suite run by Harbor: what of an evaluation that was broken off is continued."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from components.artifacts import LocalStore
from components.config import CampaignConfig, load
from components.evaluation import Suite, under_profile
from components.evaluation.harbor import read_job
from components.jobs import harbor
from components.jobs.job import Job
from components.jobs.world import Drawing
from components.pool import load_task
from tests.evaluation.harbor_files import result, write
from tests.evaluation.parts import write_task

CONFIG = Path(__file__).parents[2] / "configs" / "miniature.yaml"


def suite(folder: Path, name: str = "tb", **task: str) -> Suite:
    return Suite(name, (load_task(write_task(folder / "a", **task)),))


def job(folder: Path, checkpoint: str = "one", *overrides: str) -> Job:
    inputs = {"suite": "tb", "label": f"2026-11-30-{checkpoint}", "checkpoint": checkpoint}
    return Job("evaluate", "c-s1", 1_000, load(CONFIG, overrides), inputs, LocalStore(folder / "store"), folder)


class Continuing:
    """In Harbor's place: what has a result under the job's name is not run again."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    async def run(self, environment: Path, asked: dict[str, Any], *, url: str, log: Path, tell: object) -> list[Any]:
        for task in asked["tasks"]:
            place = Path(asked["jobs_dir"]) / asked["job_name"] / Path(task["path"]).name
            if not place.exists():
                self.ran.append(place.name)
                write(place, result("0.25.0", place.name))
        return read_job(Path(asked["jobs_dir"]) / asked["job_name"])


@pytest.fixture
def continuing(monkeypatch: pytest.MonkeyPatch) -> Continuing:
    """Whose trials nobody asks a sampler in."""

    @asynccontextmanager
    async def opened(*_: object) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(fleet=None, template=None)

    made = Continuing()
    monkeypatch.setattr(harbor, "open_world", opened)
    monkeypatch.setattr(harbor, "harbor_environment", lambda *_: Path("/nowhere"))
    monkeypatch.setattr(harbor, "run_job", made.run)
    return made


async def test_no_trial_of_one_checkpoint_is_kept_for_another(tmp_path: Path, continuing: Continuing) -> None:
    # An evaluation was killed and run with other weights on the same day: it kept the trials of the old ones.
    tasks, config = suite(tmp_path / "suite"), under_profile(job(tmp_path).config)
    ran = []
    for checkpoint in ("one", "two", "two"):
        asked, drawing = job(tmp_path, checkpoint), Drawing(seed=0, routing=False, tell=print)
        trials = await harbor.run_suite(asked, config, tmp_path, tasks, named=checkpoint, drawing=drawing)
        assert [trial.fault for trial in trials] == [None]
        ran.append(len(continuing.ran))
        assert len(list(harbor.jobs(asked, config, tasks).iterdir())) == 1, "other weights' trials lie elsewhere"
    assert ran == [1, 2, 2], "other weights begin anew, the same go on"


async def test_whatever_agents_leave_in_harbors_folder_it_can_be_put_into_a_store(
    tmp_path: Path, continuing: Continuing, caplog: pytest.LogCaptureFixture
) -> None:
    # A dangling link of one agent ended the evaluation of the suite, on every attempt; another brought a file of ours.
    tasks, asked = suite(tmp_path / "suite"), job(tmp_path)
    config, drawing = under_profile(asked.config), Drawing(seed=0, routing=False, tell=print)
    await harbor.run_suite(asked, config, tmp_path, tasks, named="one", drawing=drawing)
    (agent,) = harbor.jobs(asked, config, tasks).glob("*/*/agent")
    for name, target in (("dangling", "nowhere"), ("self", "self"), ("host", "/etc/passwd"), ("up", "../" * 9)):
        (agent / name).symlink_to(target)
    os.mkfifo(agent / "pipe")
    asked.store.put_tree("harbor", harbor.kept(asked, config, tasks))
    (kept,) = asked.store.tree("harbor").glob("*/*/agent")
    assert {path.name: os.readlink(path) for path in kept.iterdir()} == {"dangling": "nowhere", "self": "self"}
    assert "agents left 3 links out of Harbor's folder, pipes or devices, removed: " in caplog.text
    assert "/agent/host'" in caplog.text


def test_a_job_is_named_by_all_that_its_trials_are_made_under(tmp_path: Path) -> None:
    tasks = suite(tmp_path / "suite")

    def name(asked: Job, of: Suite = tasks, config: CampaignConfig | None = None) -> str:
        return harbor.job_name(asked, under_profile(config or asked.config), of)

    same = name(job(tmp_path / "one"))
    assert same == name(job(tmp_path / "again"))
    assert same.startswith("tb-")
    others = {
        "checkpoint": name(job(tmp_path, "two")),
        "limits": name(job(tmp_path, "one", "harness.max_turns=4")),
        "profile": name(job(tmp_path), config=load(CONFIG.with_name("t1-122b.yaml"), ["evaluation.profile=t1_case"])),
        "another profile": name(job(tmp_path), config=load(CONFIG.with_name("t1-122b.yaml"))),
        "verifier": name(job(tmp_path, "one", "evaluation.harbor.verifier=longshell")),
        "tasks": name(job(tmp_path), suite(tmp_path / "changed", instruction="Write more.\n")),
        "suite": name(job(tmp_path), suite(tmp_path / "other", "lhtb")),
    }
    assert len({same, *others.values()}) == 1 + len(others)
