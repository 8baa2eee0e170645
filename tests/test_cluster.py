"""Submitting to, attaching to and losing jobs on a real Ray head."""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from ray.job_submission import JobStatus

from components import cluster as cluster_module
from components.artifacts import LocalStore
from components.cluster import Cluster, JobSpec, _LogStream
from components.errors import DamagedError, Failure, JobFailed, ServiceError
from components.joblog import LogLine
from tasks.stack import ports
from tests import services
from tests.waiting import eventually

ROOT = Path(__file__).parents[1]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def cluster(store: LocalStore) -> Cluster:
    return Cluster(services.ray(), store, token=services.token(), package="tests.fake_jobs")


@pytest.fixture
def spec(tmp_path: Path) -> Callable[..., JobSpec]:
    def make(do: str, index: int = 1) -> JobSpec:
        inputs = {"do": do, "trace": str(tmp_path / f"trace-{index}"), "release": str(tmp_path / "release")}
        return JobSpec("script", f"t{os.getpid()}", index, {"seed": 1}, inputs)

    return make


def trace(spec: JobSpec) -> list[str]:
    path = Path(spec.inputs["trace"])
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def follow(cluster: Cluster, spec: JobSpec) -> tuple[str, dict, list[LogLine]]:
    lines: list[LogLine] = []
    submission = cluster.submit(spec, {})
    return submission.id, cluster.follow(spec, submission.id, lines.append, lambda: None), lines


def test_a_spec_names_its_job_and_everything_in_it_counts() -> None:
    spec = JobSpec("rl", "m-s1", 2, {"a": 1, "b": 2}, {"pool": "p"})
    assert spec.base == JobSpec("rl", "m-s1", 2, {"b": 2, "a": 1}, {"pool": "p"}).base
    assert spec.base.startswith("m-s1-rl-2-")
    others = [
        JobSpec("sft", "m-s1", 2, {"a": 1, "b": 2}, {"pool": "p"}),
        JobSpec("rl", "m-s1", 2, {"a": 1, "b": 3}, {"pool": "p"}),
        JobSpec("rl", "m-s1", 2, {"a": 1, "b": 2}, {"pool": "q"}),
    ]
    assert len({spec.digest, *(other.digest for other in others)}) == 4


def test_racing_submitters_share_one_job_and_its_result_is_reused(cluster, store, spec) -> None:
    job = spec("succeed")
    rivals = [cluster, Cluster(services.ray(), store, token=services.token(), package="tests.fake_jobs")]
    with ThreadPoolExecutor() as pool:
        results = list(pool.map(lambda rival: follow(rival, job), rivals))
    assert {submission for submission, _, _ in results} == {job.base}
    assert trace(job) == ["began"]
    for _, result, lines in results:
        assert result == cluster.result(job)
        kept = [(line.level, line.text) for line in lines]
        assert kept.count((logging.WARNING, "  of this")) == 1
        assert [text for _, text in kept][-4:] == ["INFO hello", "WARNING beware", "  of this", "INFO done"]
    (Path(store.url) / job.key("result.json")).resolve().write_text("{")
    with pytest.raises(DamagedError, match=rf"without {job.key('result.json')} the job runs again.*delete it"):
        cluster.submit(job, {})


def test_a_killed_submitter_leaves_its_job_and_the_next_one_attaches(cluster, store, spec, tmp_path: Path) -> None:
    job = spec("wait")
    script = f"""
import sys
from components import cluster as cluster_module
from components.artifacts import LocalStore
from components.cluster import Cluster, JobSpec
store = LocalStore(__import__("pathlib").Path({store.url!r}))
cluster = Cluster({services.ray()!r}, store, token={services.token()!r}, package="tests.fake_jobs")
spec = JobSpec({job.stage!r}, {job.campaign!r}, {job.index}, {job.config!r}, {job.inputs!r})
cluster.follow(spec, cluster.submit(spec, {{}}).id, print, lambda: None)
"""
    submitter = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.DEVNULL)
    eventually(lambda: trace(job) == ["began"])
    submitter.send_signal(signal.SIGKILL)
    submitter.wait()
    again = cluster.submit(job, {})
    assert (again.id, again.attached) == (job.base, True)
    Path(job.inputs["release"]).touch()
    assert cluster.follow(job, again.id, lambda line: None, lambda: None)["index"] == 1
    assert trace(job) == ["began"]


def failures(cluster: Cluster, spec: Callable[..., JobSpec], scripts: list[str]) -> dict[str, JobFailed]:
    """How the jobs of these scripts, run beside each other, failed."""
    jobs = {do: spec(do, index) for index, do in enumerate(scripts)}
    with ThreadPoolExecutor() as pool:
        futures = {do: pool.submit(follow, cluster, job) for do, job in jobs.items()}
    errors = {do: future.exception() for do, future in futures.items()}
    assert all(isinstance(error, JobFailed) for error in errors.values())
    return errors


def test_a_failed_job_has_its_last_lines_and_a_refusal_its_reason(cluster, spec) -> None:
    errors = failures(cluster, spec, ["fail", "refuse"])
    assert [error.failure for error in errors.values()] == [Failure.PROGRAM, Failure.REFUSED]
    tail = errors["fail"].tail.splitlines()
    assert len(tail) == 50
    assert tail[-1] == "RuntimeError: the last words"
    assert "exit code 1" in errors["fail"].status
    assert "no such pool" in str(errors["refuse"])
    assert errors["refuse"].reason == "ConfigError: no such pool"
    again = spec("fail", 0)
    assert cluster.submit(again, {}).id == f"{again.base}-r1"


@pytest.mark.nightly
def test_a_job_that_ends_without_a_result_has_failed_whatever_its_exit_code(cluster, spec) -> None:
    errors = failures(cluster, spec, ["stumble", "lie"])
    assert [error.failure for error in errors.values()] == [Failure.INFRASTRUCTURE] * 2


def test_a_job_that_ray_has_forgotten_is_lost_and_runs_again_under_the_next_name(cluster, store, spec) -> None:
    job = spec("wait")
    store.put_json(job.key("submitted-0.json"), {"submission_id": job.base})
    submission = cluster.submit(job, {"stage": "lost"})
    assert (submission.id, submission.attached) == (f"{job.base}-r1", False)
    assert cluster.submit(job, {}).attached
    eventually(lambda: trace(job) == ["began"])
    (running,) = [each for each in cluster.running() if each.base == job.base]
    assert (running.id, running.base, running.metadata) == (submission.id, job.base, {"stage": "lost"})
    with pytest.raises(ServiceError, match="Ray job nobody cannot be stopped"):
        cluster.stop(["nobody", submission.id])
    assert trace(job) == ["began", "stopped"]
    with pytest.raises(JobFailed, match="STOPPED") as stopped:
        cluster.follow(job, submission.id, lambda line: None, lambda: None)
    assert stopped.value.failure is Failure.STOPPED


class Dropping:
    """A client whose stream of a log drops twice, within a line, and begins anew each time, as that of Ray does."""

    text = "INFO hello\nWARNING beware\n  of this\nINFO done\n"

    def __init__(self) -> None:
        self.drops = 0

    async def tail_job_logs(self, submission_id: str) -> AsyncIterator[str]:
        for start in range(0, len(self.text), 8):
            yield self.text[start : start + 8]
            if start == 16 * self.drops + 8 and self.drops < 2:
                self.drops += 1
                raise RuntimeError("the connection is gone")

    def get_job_logs(self, submission_id: str) -> str:
        return self.text


def test_a_log_stream_that_drops_is_taken_up_again_without_doubles() -> None:
    client = Dropping()
    stream = _LogStream(client, "job")  # type: ignore[arg-type]
    stream._thread.join(60)
    assert client.drops == 2
    streamed = [line.text for line in stream.take()]
    assert [*streamed, *(line.text for line in stream.rest())] == client.text.splitlines()
    assert len(streamed) >= 3


@pytest.mark.nightly
def test_ray_gives_a_log_from_its_start_to_who_takes_it_up_again(cluster, spec, monkeypatch) -> None:
    job = spec("wait")
    submission = cluster.submit(job, {})
    tail, drops = cluster._client.tail_job_logs, 0

    async def dropping(submission_id: str) -> AsyncIterator[str]:
        nonlocal drops
        async for chunk in tail(submission_id):
            yield chunk
            if drops < 2:
                drops += 1
                raise RuntimeError("the connection is gone")
            Path(job.inputs["release"]).touch()

    monkeypatch.setattr(cluster._client, "tail_job_logs", dropping)
    lines: list[str] = []
    cluster.follow(job, submission.id, lambda line: lines.append(line.text), lambda: None)
    assert [lines.count(text) for text in ("INFO hello", "WARNING beware", "  of this", "INFO done")] == [1, 1, 1, 1]
    assert drops == 2


def test_a_cluster_that_does_not_answer_is_named(store: LocalStore) -> None:
    address = f"http://127.0.0.1:{ports.any_free()}"
    with pytest.raises(ServiceError, match=f"Ray does not answer at {address}"):
        Cluster(address, store, patience_s=0)


def test_a_ray_that_is_started_again_is_waited_for(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    # A head that took two minutes to come back ended the flow: who attached anew did not wait as who followed did.
    asked: list[str] = []

    class Starting:
        def __init__(self, address: str, headers: object) -> None:
            asked.append(address)
            if len(asked) < 4:
                raise ConnectionError("Failed to connect to Ray")

    monkeypatch.setattr(cluster_module, "JobSubmissionClient", Starting)
    monkeypatch.setattr(cluster_module.time, "sleep", lambda seconds: None)
    Cluster("http://ray", store)
    assert asked == ["http://ray"] * 4


class Jobs:
    """Stands for Ray's Jobs API where a head of our own cannot be brought to say it."""

    def __init__(self, address: str = "", headers: object = None) -> None:
        self.submitted: list[dict] = []

    def get_job_status(self, submission_id: str) -> str:
        raise RuntimeError(f"Request failed with status code 404: Job {submission_id} does not exist.")

    def submit_job(self, **asked: object) -> None:
        self.submitted.append(asked)


def test_a_job_works_in_the_store_that_it_is_asked_for_in_also_when_that_was_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The job of a copied store read its inputs and wrote its steps in the store that it was copied from.
    monkeypatch.setattr(cluster_module, "JobSubmissionClient", Jobs)
    job = JobSpec("rl", "m-s1", 1, {}, {})
    Cluster("http://ray", LocalStore(tmp_path / "first")).submit(job, {})
    shutil.copytree(tmp_path / "first", tmp_path / "second", symlinks=True)
    for name in ("second", "first"):
        moved = LocalStore(tmp_path / name)
        Cluster("http://ray", moved).submit(job, {})
        assert moved.get_json(job.key("spec.json"))["store"] == moved.url


@pytest.mark.parametrize(
    "answer",
    [
        "Request failed with status code 404: 404 page not found.",
        "Request failed with status code 500: no agent of m-s1-rl-1-a404bc1234 at 10.4.0.4.",
        "Request failed with status code 503: upstream ray-head:8265 does not exist.",
    ],
)
def test_a_job_is_not_lost_because_something_before_ray_knows_nothing(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    # It was submitted once more, beside the one that ran.
    monkeypatch.setattr(cluster_module, "JobSubmissionClient", Jobs)
    job = JobSpec("rl", "m-s1", 1, {}, {})
    cluster = Cluster("http://ray", store)
    cluster.submit(job, {})

    def away(submission_id: str) -> None:
        raise RuntimeError(answer)

    monkeypatch.setattr(cluster._client, "get_job_status", away)
    with pytest.raises(RuntimeError):
        cluster.submit(job, {})
    assert [asked["submission_id"] for asked in cluster._client.submitted] == [job.base]


def test_what_others_run_on_the_same_ray_keeps_nobody_from_finding_his_own_jobs(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A job called `team:train 7b` is none of a store's keys: no flow run could be cancelled while it ran.
    monkeypatch.setattr(cluster_module, "JobSubmissionClient", Jobs)
    cluster, ours = Cluster("http://ray", store), JobSpec("rl", "m-s1", 1, {}, {}).base
    asked = {"team:train 7b": {"owner": "them"}, ".hidden": {"campaign": "../x"}, f"{ours}-r1": {"campaign": "m-s1"}}
    listed = [
        SimpleNamespace(submission_id=name, status=JobStatus.RUNNING, metadata=told) for name, told in asked.items()
    ]
    monkeypatch.setattr(cluster._client, "list_jobs", lambda: listed, raising=False)
    assert [job.base for job in cluster.running()] == [ours]


def test_no_socket_of_ray_is_reached_from_another_machine() -> None:
    # A newcomer saw its servers on every address of the machine, although it was told 127.0.0.1.
    services.ray()
    record = json.loads(services.site().stack_file.read_text())
    head = psutil.Process(record["services"]["ray"]["pid"])
    found: dict[str, set[str]] = {}
    for process in (head, *head.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended since
            listening = {each.laddr.ip for each in process.net_connections("inet") if each.status == "LISTEN"}
            found.setdefault(process.name(), set()).update(listening)
    assert {"gcs_server", "raylet"} <= {name for name, addresses in found.items() if addresses}
    assert {name: addresses for name, addresses in found.items() if not all(map(_is_loopback, addresses))} == {}


def _is_loopback(text: str) -> bool:
    address = ipaddress.ip_address(text)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
