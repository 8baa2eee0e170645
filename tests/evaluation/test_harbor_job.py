"""A job of Harbor's, with a small program in Harbor's place: what it is asked, how it is ended and continued."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from components.config import CampaignConfig, HarborConfig, load
from components.errors import ConfigError, ServiceError
from components.evaluation import under_profile
from components.evaluation.harbor import find_python, harbor_environment, install, job_config, run_job
from components.evaluation.harbor.job import forget_broken_off
from tests.evaluation.harbor_files import error, result
from tests.waiting import eventually

CONFIGS = Path(__file__).parents[2] / "configs"
STAND_IN = f"""#!{sys.executable}
import json, os, pathlib, sys, time
config = json.loads(pathlib.Path(sys.argv[3]).read_text())
job = pathlib.Path(config["jobs_dir"]) / config["job_name"]
job.mkdir(parents=True, exist_ok=True)
print("url", os.environ.get("HOSTED_VLLM_API_BASE"), flush=True)
for task in config["tasks"]:
    name = pathlib.Path(task["path"]).name
    if name == "broken":
        sys.exit("the configuration is not to Harbor's liking")
    if name == "slow" and not os.path.exists(job / "go-on"):
        (job / "waiting").write_text(str(os.getpid()))
        time.sleep(60)
    place = job / name
    if not (place / "result.json").exists():
        place.mkdir(exist_ok=True)
        text = pathlib.Path(__file__).with_name("result.json").read_text().replace("NAME", name)
        (place / "result.json").write_text(text)
        with open(job / "ran", "a") as ran:
            ran.write(name + " ")
"""


def config(*overrides: str, base: str = "miniature.yaml") -> CampaignConfig:
    return under_profile(load(CONFIGS / base, ["evaluation.harness=harbor", *overrides]))


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "harbor").write_text(STAND_IN)
    (programs / "harbor").chmod(0o755)
    (programs / "result.json").write_text(json.dumps(result("0.25.0", "NAME")))
    return tmp_path / "venv"


def asked(folder: Path, *tasks: str) -> dict[str, Any]:
    places = [folder / "suite" / task for task in tasks]
    return job_config(config(), places, name="tb", jobs=folder / "jobs", state=folder / "state")


async def test_a_job_gives_its_trials_and_is_told_the_endpoint_by_its_environment_alone(
    tmp_path: Path, stand_in: Path
) -> None:
    job = asked(tmp_path, "a", "b")
    assert "api_base" not in json.dumps(job), "it would keep a job from being continued"
    log = tmp_path / "log" / "harbor.log"
    found = await run_job(stand_in, job, url="http://127.0.0.1:1", log=log, tell=print)
    assert [trial.task for trial in found] == ["a", "b"]
    assert log.read_text() == "url http://127.0.0.1:1/v1\n"


@pytest.mark.nightly
async def test_a_job_that_fails_is_an_error_with_its_last_words(tmp_path: Path, stand_in: Path) -> None:
    with pytest.raises(ServiceError, match="not to Harbor's liking"):
        await run_job(stand_in, asked(tmp_path, "broken"), url=None, log=tmp_path / "log", tell=print)


def waiting_harbor(folder: Path) -> int:
    """The stand-in's process, when it is at its slow task."""
    place = folder / "waiting"
    eventually(lambda: place.is_file() and place.read_text() != "")
    return int(place.read_text())


async def test_a_cancelled_job_ends_its_processes_and_is_continued_by_its_name(tmp_path: Path, stand_in: Path) -> None:
    job, folder = asked(tmp_path, "a", "slow", "b"), tmp_path / "jobs" / "tb"
    running = asyncio.create_task(run_job(stand_in, job, url="http://x:1", log=tmp_path / "log", tell=print))
    process = await asyncio.to_thread(waiting_harbor, folder)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not psutil.pid_exists(process)
    (folder / "go-on").touch()
    found = await run_job(stand_in, job, url="http://y:2", log=tmp_path / "log", tell=print)
    assert {trial.task for trial in found} == {"a", "slow", "b"}
    assert (folder / "ran").read_text() == "a slow b ", "what had finished is not run again"


PARENT = """
import asyncio, json, sys, pathlib
from components.evaluation.harbor import run_job
venv, job, log = sys.argv[1:]
asyncio.run(run_job(pathlib.Path(venv), json.loads(job), url=None, log=pathlib.Path(log), tell=print))
"""


@pytest.mark.nightly
async def test_harbor_does_not_outlive_a_job_that_is_killed(tmp_path: Path, stand_in: Path) -> None:
    argv = [sys.executable, "-c", PARENT, str(stand_in), json.dumps(asked(tmp_path, "slow")), str(tmp_path / "log")]
    parent = subprocess.Popen(argv, cwd=CONFIGS.parent)
    process = psutil.Process(await asyncio.to_thread(waiting_harbor, tmp_path / "jobs" / "tb"))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    eventually(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def test_what_a_job_broke_off_is_forgotten_before_it_is_continued_and_nothing_that_ended(tmp_path: Path) -> None:
    ended = {"done": None, "broken": error("CancelledError"), "failed": error("RuntimeError")}
    for name, told in ended.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps(result("0.25.0", exception_info=told)))
    for name, text in {"damaged": "{", "odd": "[]"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(text)
    forget_broken_off(tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["damaged", "done", "failed", "odd"]


def test_harbor_is_asked_for_what_the_profile_and_the_sandbox_say() -> None:
    paper = config("evaluation.profile=t1_table", base="t1-122b.yaml")
    job = job_config(paper, [Path("/tb/a")], name="tb", jobs=Path("/j"), state=Path("/s"))
    (agent,) = job["agents"]
    assert (job["n_attempts"], agent["name"], agent["model_name"]) == (3, "terminus-2", "hosted_vllm/policy")
    assert (agent["override_timeout_sec"], job["verifier"]) == (3_600, {"override_timeout_sec": 900})
    assert (agent["kwargs"]["max_turns"], agent["kwargs"]["enable_summarize"]) == (60, True)
    assert agent["kwargs"]["model_info"]["max_input_tokens"] == 96_000
    assert job["environment"]["import_path"] == "components.sandbox.harbor:LongshellEnvironment"
    assert job["environment"]["kwargs"]["network"] == "none"
    assert job["environment"]["kwargs"]["disk_mb"] == 10_240

    apart = config("evaluation.profile=t1_table", "evaluation.harbor.verifier=longshell", base="t1-122b.yaml")
    job = job_config(apart, [Path("/tb/a")], name="tb", jobs=Path("/j"), state=Path("/s"))
    path = "components.sandbox.harbor:LongshellVerifier"
    assert job["verifier"] == {"override_timeout_sec": 900, "import_path": path}
    with pytest.raises(ConfigError, match="verifier longshell needs environment longshell"):
        config("evaluation.harbor.verifier=longshell", "evaluation.harbor.environment=docker")

    untried = job["retry"]["exclude_exceptions"]
    assert {"AgentTimeoutError", "RewardFileNotFoundError", "RuntimeError"} <= set(untried), "what the policy did"
    assert "InfraFault" not in untried, "a fault of our boxes is tried once more"

    board = config("evaluation.profile=leaderboard", "evaluation.harbor.environment=docker", base="t1-122b.yaml")
    job = job_config(board, [Path("/tb/a")], name="tb", jobs=Path("/j"), state=Path("/s"))
    assert job["environment"] == {"type": "docker"}
    assert (job["n_attempts"], "override_timeout_sec" in job["agents"][0]) == (5, False), "timeouts are the tasks' own"


def test_without_a_new_enough_python_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "_candidates", lambda: iter(["", "/nowhere/python3"]))
    with pytest.raises(ConfigError, match=r"needs Python 3\.12 or newer.*evaluation\.harbor\.python"):
        find_python()
    with pytest.raises(ConfigError, match="/bin/false is none"):
        find_python("/bin/false")


def test_an_environment_that_is_named_must_hold_the_harbor_whose_name_is_told(tmp_path: Path, stand_in: Path) -> None:
    packages = stand_in / "lib" / "python3.12" / "site-packages"
    (packages / f"harbor-{install.VERSION}.dist-info").mkdir(parents=True)
    named = HarborConfig(venv=str(stand_in))
    assert harbor_environment(named, tmp_path, print) == stand_in
    (packages / "harbor-0.26.0.dist-info").mkdir()
    with pytest.raises(ConfigError, match=r"holds .*harbor-0\.26\.0.*not Harbor 0\.25\.0"):
        harbor_environment(named, tmp_path, print)
    with pytest.raises(ConfigError, match="holds no Harbor"):
        harbor_environment(HarborConfig(venv=str(tmp_path)), tmp_path, print)


def test_an_environment_is_made_once_and_anew_where_its_making_was_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, ...]] = []
    half = tmp_path / f"harbor-{install.VERSION}"
    (half / "bin").mkdir(parents=True)

    def run(*command: str) -> None:
        ran.append(command)
        half.mkdir(exist_ok=True)

    monkeypatch.setattr(install, "find_python", lambda given: "python3.12")
    monkeypatch.setattr(install, "_run", run)
    for _ in range(2):
        assert harbor_environment(HarborConfig(), tmp_path, print) == half
    venv, pip = ran
    assert venv[:3] == ("python3.12", "-m", "venv")
    assert f"harbor=={install.VERSION}" in pip
    assert any(word.startswith("pyte==") for word in pip)
    assert not (half / "bin").exists()
