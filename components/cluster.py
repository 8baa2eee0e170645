"""Ray through its Jobs API: submit a stage's job or attach to the one that runs, follow it, read its result.

Invariants: a job is done when its result is in the store, whatever its exit code said; of one spec at most one job
runs, because its submission id is a function of the spec and of how many attempts are known to have ended without a
result; a submitter that dies leaves the job running, and the next one attaches to it.

In the store, under `campaigns/<campaign>/jobs/<campaign>-<stage>-<index>-<spec digest>/`:
`spec.json` (before the first submission, and anew in a store that was moved or copied), `submitted-<k>.json` (after
attempt k was submitted: an attempt with this mark that Ray does not know is lost, since Ray forgets its jobs with the
head node), `result.json` (by the job, last).
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import math
import queue
import re
import shlex
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from ray.exceptions import RayError
from ray.job_submission import JobStatus, JobSubmissionClient

from components.artifacts import ArtifactStore, address_of
from components.errors import DamagedError, Exit, Failure, JobFailed, ServiceError
from components.joblog import LineReader, LogLine
from components.naming import campaign_key

REPOSITORY = Path(__file__).resolve().parents[1]
STOP_GRACE_S = 15
"""SIGTERM to SIGKILL. Ray's default of 3 s cuts a checkpoint in half."""
TAIL_LINES = 50
RAYS_OWN = "Running entrypoint for job "
"""The one line that Ray writes into a job's log. It may come after the job's own last words."""
_EAGER_S, _EAGER_POLL_S, _POLL_S = 10.0, 0.1, 0.5
"""A young job's result is looked for often, so that a short stage is not made long by waiting for it. Ray, where a
question goes through several processes, is asked at the slower pace until there is a result."""
_NO_AGENT = "No available agent"
"""A head answers before the agent that starts its jobs does."""
_OURS = re.compile(r"[a-z0-9-]+-[0-9]+-[0-9a-f]{10}(-r[0-9]+)?")
"""Submission ids of `JobSpec.base`. What others run on the same Ray may be called anything."""
_REPLAY_CHARS = 1_000_000
"""Below this, the end of a log is fetched with the whole of it; above, from the stream."""


@dataclass(frozen=True)
class JobSpec:
    """What a job is asked to do. Equal specs are the same job."""

    stage: str
    campaign: str
    index: int
    config: Mapping[str, Any]
    inputs: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Short digest of everything above."""
        canonical = json.dumps([self.stage, self.campaign, self.index, self.config, self.inputs], sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:10]

    @property
    def base(self) -> str:
        """The submission id of the first attempt; `-r<k>` is appended for the k-th repetition."""
        return f"{self.campaign}-{self.stage}-{self.index}-{self.digest}"

    def key(self, name: str) -> str:
        """Store key of one of the job's documents."""
        return campaign_key(self.campaign, "jobs", self.base, name)


@dataclass(frozen=True)
class Request:
    """What Ray is asked to run for a spec."""

    entrypoint: str
    environment: Mapping[str, str]


def request(spec: JobSpec, store_url: str, package: str = "components.jobs") -> Request:
    """The job of a spec whose documents are in the store at `store_url`. Pure."""
    place = address_of(store_url, spec.key("spec.json"))
    command = shlex.join([sys.executable, "-m", f"{package}.{spec.stage}", place])
    environment = {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(REPOSITORY),
        "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_GRACE_S),
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_COLOR_PREFIX": "0",
        "RAY_DEDUP_LOGS": "0",
    }
    return Request(f"cd {shlex.quote(str(REPOSITORY))} && exec {command}", environment)


@dataclass(frozen=True)
class Submission:
    """A job in Ray: its id, and whether it was found running rather than submitted now."""

    id: str
    attached: bool


@dataclass(frozen=True)
class RunningJob:
    """An unfinished job and what its submitter noted."""

    id: str
    metadata: Mapping[str, str]

    @property
    def base(self) -> str:
        """The submission id of the job's first attempt."""
        return re.sub(r"-r[0-9]+$", "", self.id)


class Cluster:
    """The Ray cluster behind one Jobs address, seen by one submitting process.

    Args:
        address: URL of the Jobs API.
        token: what the cluster asks for; without one, Ray's own environment is searched.
        package: where the stages' entry modules live; `<package>.<stage>` is run with the spec's path.
        patience_s: how long Ray may not answer before that is a `ServiceError`.
    """

    def __init__(
        self,
        address: str,
        store: ArtifactStore,
        *,
        token: str | None = None,
        package: str = "components.jobs",
        patience_s: float = 60.0,
    ) -> None:
        self._store = store
        self._package = package
        self._patience_s = patience_s
        headers = {"Authorization": f"Bearer {token}"} if token else None
        deadline = time.monotonic() + patience_s
        while True:
            try:
                self._client = JobSubmissionClient(address, headers=headers)
                return
            except (ConnectionError, RuntimeError, RayError) as error:
                if time.monotonic() >= deadline:  # A head that is started again takes a minute.
                    raise ServiceError(f"Ray does not answer at {address}: {error}") from error
            time.sleep(1.0)

    def result(self, spec: JobSpec) -> dict[str, Any] | None:
        """The committed result of a spec, or None.

        Raises:
            DamagedError: it is there, and not what was put.
        """
        key = spec.key("result.json")
        if not self._store.exists(key):
            return None
        try:
            return dict(self._store.get_json(key))
        except DamagedError as error:
            raise DamagedError(f"{error}; without {key} the job runs again, from its last commit: delete it") from error

    def submit(self, spec: JobSpec, metadata: Mapping[str, str]) -> Submission:
        """Attaches to the attempt that runs, or submits the next one. Losing the race to submit is attaching."""
        if not self._is_told(spec):
            self._store.put_json(spec.key("spec.json"), self._document(spec))
        for attempt in itertools.count():
            submission_id = spec.base + (f"-r{attempt}" if attempt else "")
            mark = spec.key(f"submitted-{attempt}.json")
            # The mark is read before Ray is asked: read after, a racing submitter's mark would look like a lost job.
            marked = self._store.exists(mark)
            status = self._status(submission_id)
            if status is None and not marked:
                attached = self._submit(spec, submission_id, metadata)
                self._store.put_json(mark, {"submission_id": submission_id, **metadata})
                return Submission(submission_id, attached)
            if status is not None and not status.is_terminal():
                return Submission(submission_id, attached=True)
            if status == JobStatus.SUCCEEDED and self.result(spec) is not None:
                return Submission(submission_id, attached=True)
        raise AssertionError("unreachable")

    def follow(
        self, spec: JobSpec, submission_id: str, emit: Callable[[LogLine], None], tick: Callable[[], None]
    ) -> dict[str, Any]:
        """Passes every log line to `emit` once, calls `tick` about once a second, and returns the result.

        Raises:
            JobFailed: the job ended, or is lost, without a result.
            ServiceError: Ray stopped answering.
        """
        stream = _LogStream(self._client, submission_id)
        tail: deque[str] = deque(maxlen=TAIL_LINES)

        def pass_on(lines: list[LogLine]) -> None:
            for line in lines:
                if not line.text.startswith(RAYS_OWN):
                    tail.append(line.text)
                emit(line)

        try:
            status = self._until_ended(spec, submission_id, lambda: pass_on(stream.take()), tick)
            pass_on(stream.rest())
        finally:
            stream.close()
        tick()
        if (result := self.result(spec)) is not None:
            return result
        info = self._client.get_job_info(submission_id) if status is not None else None
        code = info.driver_exit_code if info else None
        words = f"{status or 'LOST'}" + (f" with exit code {code}" if code is not None else "")
        if info and not tail:
            tail.append(info.message or "(no output)")
        raise JobFailed(submission_id, words, "\n".join(tail), _failure(status, code))

    def stop(self, submission_ids: Sequence[str], *, wait_s: float = STOP_GRACE_S + 5) -> None:
        """Asks jobs to stop (SIGTERM, after the grace SIGKILL), all before it waits for any, and waits until they have.

        Raises:
            ServiceError: names each that may still run.
        """
        problems: list[str] = []
        waited: list[str] = []
        for submission_id in submission_ids:
            try:
                self._client.stop_job(submission_id)
                waited.append(submission_id)
            except (RuntimeError, OSError) as error:
                problems.append(f"Ray job {submission_id} cannot be stopped: {error}")
        deadline = time.monotonic() + wait_s
        while waited := [each for each in waited if not self._has_ended(each)]:
            if time.monotonic() > deadline:
                problems += [f"Ray job {each} did not stop within {wait_s:.0f} s" for each in waited]
                break
            time.sleep(0.2)
        if problems:
            raise ServiceError("\n".join(problems))

    def running(self) -> list[RunningJob]:
        """The unfinished jobs that were submitted through this class.

        Raises:
            ServiceError: Ray does not tell.
        """
        try:
            listed = self._client.list_jobs()
        except (RuntimeError, OSError) as error:
            raise ServiceError(f"Ray does not tell its jobs: {error}") from error
        jobs = [job for job in listed if _OURS.fullmatch(job.submission_id or "") and not job.status.is_terminal()]
        return [RunningJob(job.submission_id, job.metadata) for job in jobs if job.metadata]

    def _is_told(self, spec: JobSpec) -> bool:
        """Whether the job's documents say what it is to do, and in this store.

        One that was moved or copied has those of where it was, and a job would read and write there.
        """
        key = spec.key("spec.json")
        return self._store.exists(key) and self._store.get_json(key)["store"] == self._store.url

    def _document(self, spec: JobSpec) -> dict[str, Any]:
        return {
            "stage": spec.stage,
            "campaign": spec.campaign,
            "index": spec.index,
            "config": spec.config,
            "inputs": spec.inputs,
            "store": self._store.url,
            "result": spec.key("result.json"),
        }

    def _submit(self, spec: JobSpec, submission_id: str, metadata: Mapping[str, str]) -> bool:
        asked = request(spec, self._store.url, self._package)
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                self._client.submit_job(
                    entrypoint=asked.entrypoint,
                    submission_id=submission_id,
                    metadata=dict(metadata),
                    runtime_env={"env_vars": dict(asked.environment)},
                )
            except RuntimeError as error:
                if "already exists" in str(error):
                    return True
                if _NO_AGENT not in str(error) or time.monotonic() > deadline:
                    raise ServiceError(f"Ray refused job {submission_id}: {error}") from error
                time.sleep(0.5)
            else:
                return False

    def _status(self, submission_id: str) -> JobStatus | None:
        try:
            return self._client.get_job_status(submission_id)
        except RuntimeError as error:
            # Ray's words: what stands before a head that is away may answer 404 too, and any message hold the digits.
            if f"Job {submission_id} does not exist" in str(error):
                return None
            raise

    def _has_ended(self, submission_id: str) -> bool:
        """Whether Ray says so."""
        try:
            status = self._status(submission_id)
        except (RuntimeError, OSError):
            return False  # It does not answer.
        return status is None or status.is_terminal()

    def _until_ended(
        self, spec: JobSpec, submission_id: str, drain: Callable[[], None], tick: Callable[[], None]
    ) -> JobStatus | None:
        """Polls until the job is terminal or unknown to Ray."""
        started = ticked = time.monotonic()
        asked, done = -math.inf, False
        silent_since: float | None = None  # A `tick` may take long, in which Ray is not asked.
        while True:
            now = time.monotonic()
            if done or now - asked >= _POLL_S:
                asked = now
                try:
                    status = self._status(submission_id)
                    silent_since = None
                except (RuntimeError, OSError) as error:
                    silent_since = now if silent_since is None else silent_since
                    if now - silent_since > self._patience_s:
                        raise ServiceError(f"Ray has not answered for {self._patience_s:.0f} s: {error}") from error
                else:
                    if status is None or status.is_terminal():
                        return status
            drain()
            if now - ticked >= 1.0:
                ticked = now
                tick()
            done = done or self._store.exists(spec.key("result.json"))
            time.sleep(_EAGER_POLL_S if done or now - started < _EAGER_S else _POLL_S)


def _failure(status: JobStatus | None, code: int | None) -> Failure:
    """Why a job that left no result ended: what its exit code says, if that is one that a job chose."""
    if status == JobStatus.STOPPED:
        return Failure.STOPPED
    chosen = {int(Exit.of(failure)): failure for failure in (Failure.REFUSED, Failure.PROGRAM)}
    return chosen.get(code, Failure.INFRASTRUCTURE) if code is not None else Failure.INFRASTRUCTURE


class _LogStream:
    """Follows a job's log in a thread, reconnecting when the stream drops; Ray then replays it from its start."""

    def __init__(self, client: JobSubmissionClient, submission_id: str) -> None:
        self._client = client
        self._id = submission_id
        self._reader = LineReader()
        self._lines: queue.SimpleQueue[LogLine] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"log of {submission_id}", daemon=True)
        self._thread.start()

    def take(self) -> list[LogLine]:
        """The lines that arrived since the last call."""
        lines = []
        while True:
            try:
                lines.append(self._lines.get_nowait())
            except queue.Empty:
                return lines

    def rest(self) -> list[LogLine]:
        """What is left of the log of a job that has ended. The stream itself notices the end a second or two late."""
        if self._reader.position > _REPLAY_CHARS:
            self._thread.join(timeout=5.0)
        self.close()
        lines = self.take()
        try:
            text = self._client.get_job_logs(self._id) if self._reader.position <= _REPLAY_CHARS else ""
        except (RuntimeError, OSError):
            text = ""  # Lost with its node; what was streamed is what there is.
        return [*lines, *self._reader.feed(text, 0), *self._reader.flush()]

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        asyncio.run(self._follow())

    async def _follow(self) -> None:
        while not self._closed.is_set():
            reading = asyncio.create_task(self._read())
            while not reading.done() and not self._closed.is_set():
                await asyncio.wait([reading], timeout=0.1)
            reading.cancel()
            try:
                await reading
                return
            except asyncio.CancelledError:
                return
            except (aiohttp.ClientError, RuntimeError, OSError):
                await asyncio.sleep(0.5)

    async def _read(self) -> None:
        start = 0
        async for chunk in self._client.tail_job_logs(self._id):
            for line in self._reader.feed(chunk, start):
                self._lines.put(line)
            start += len(chunk)
