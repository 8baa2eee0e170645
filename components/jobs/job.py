"""What every Ray job shares: read the spec, run the stage, commit step records, write the result last.

Invariant: the result exists only when the stage is done and everything it names is in the store. A job that is killed
at any line leaves no result, and the next attempt continues from the last committed step record.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from components import joblog
from components.artifacts import ArtifactStore, key_of, open_store, read_at
from components.config import CampaignConfig, validate
from components.errors import Exit, Failure, LongshellError, failure_of, no_space
from components.naming import campaign_key, lineage_key, step_key

NOISY = ("megatron",)
"""Libraries whose notices (the absence of CUDA extensions, bucket layouts) say nothing to the reader of a job's log."""

STALE_S = 7 * 86_400.0
"""Scratch in which nothing has changed for so long is of a campaign that was given up: its boxes waited for minutes."""

log = logging.getLogger("longshell")


@dataclass(frozen=True)
class Job:
    """One job of one stage: its configuration, its inputs, and where its results go."""

    stage: str
    campaign: str
    index: int
    config: CampaignConfig
    inputs: Mapping[str, Any]
    store: ArtifactStore
    folder: Path
    """Scratch that a repeated attempt finds again; removed when the stage is done."""

    def key(self, *parts: str | int) -> str:
        """A store key within the campaign."""
        return campaign_key(self.campaign, *parts)

    def commit(self, stage: str, step: int, metrics: Mapping[str, float], *, total: int, **facts: Any) -> None:
        """Writes the record of a finished step. Its presence is what makes the step committed.

        `total` says how many steps the job makes: what progress is measured against.
        """
        told = {"step": step, "total": total, "timestamp_ms": time.time_ns() // 1_000_000}
        record = {**told, "metrics": dict(metrics), **facts}
        self.store.put_json(self._record_key(stage, step), record)

    def committed(self, stage: str) -> list[int]:
        """Steps of `stage` that have a record, ascending."""
        prefix = self.key(stage, "steps")
        keys = self.store.list(prefix)
        return sorted(int(key.split("/")[-2]) for key in keys if key.endswith("/record.json"))

    def record(self, stage: str, step: int) -> dict[str, Any]:
        """The record of a committed step."""
        return dict(self.store.get_json(self._record_key(stage, step)))

    def records(self, stage: str) -> Iterator[dict[str, Any]]:
        """The committed records of `stage`, ascending."""
        for step in self.committed(stage):
            yield self.record(stage, step)

    def lineage(self, stage: str) -> str:
        """Names what `stage` has done since it began in this store.

        Trials are known by campaign, step and task. What is left on this machine of a campaign of the same name, whose
        store is gone, was drawn by other weights.
        """
        key = lineage_key(self.campaign, stage)
        if not self.store.exists(key):
            self.store.create_json(key, {"id": uuid.uuid4().hex})  # The first of jobs that begin together stays.
        return str(self.store.get_json(key)["id"])

    def _record_key(self, stage: str, step: int) -> str:
        return step_key(self.campaign, stage, step, "record.json")


def main(stage: Callable[[Job], Mapping[str, Any]]) -> None:
    """Runs `stage` on the spec named on the command line, writes its result, and exits with an `Exit` code.

    This is the boundary of a job: whatever went wrong leaves as one kind of `Failure` and, as the log's last words, one
    message. A traceback precedes it when the message was not written for people.
    """
    joblog.begin(sys.stdout)
    logging.raiseExceptions = False  # A log on a full disk loses lines; it must not take the job with it.
    for library in NOISY:
        logging.getLogger(library).setLevel(logging.WARNING)
        warnings.filterwarnings("ignore", category=UserWarning, module=library)
    signal.signal(signal.SIGTERM, _stop)
    try:
        _run(stage, sys.argv[1])
    except Exception as error:
        _leave(_tell(error))
    _leave(Exit.DONE)


def _run(stage: Callable[[Job], Mapping[str, Any]], spec: str) -> None:
    document = json.loads(read_at(spec))
    if "://" in spec:
        key_of(document["store"], spec)  # Who may write elsewhere in a bucket does not choose a job's store.
    job = _open(document)
    started = time.monotonic()
    result = dict(stage(job))
    result["seconds"] = round(time.monotonic() - started, 3)
    if not job.store.create_json(document["result"], result):
        log.warning("another attempt has ended before this one: its result stays")
    shutil.rmtree(job.folder)


def _tell(error: Exception) -> Exit:
    """Logs why the job ends."""
    failure = failure_of(error)
    if failure is not Failure.REFUSED and not isinstance(error, LongshellError):
        log.error("the stage failed", exc_info=error)
    told = no_space(error, tempfile.gettempdir()) or error
    log.error("%s: %s", type(told).__name__, told)
    return Exit.of(failure)


def _leave(code: Exit) -> NoReturn:
    """Exits with `code`, also when the log's disk is full: Python would exit with 120 then."""
    try:
        sys.stdout.flush()
    except OSError:
        os._exit(code)
    sys.exit(code)


def _open(document: Mapping[str, Any]) -> Job:
    store = open_store(document["store"])
    place = hashlib.sha256(f"{store.url} {os.getuid()}".encode()).hexdigest()[:8]
    folder = Path(tempfile.gettempdir()) / f"longshell-{place}" / document["campaign"]
    folder = folder / f"{document['stage']}-{document['index']}"
    folder.mkdir(parents=True, exist_ok=True)
    _remove_stale(folder.parent)
    return Job(
        stage=document["stage"],
        campaign=document["campaign"],
        index=document["index"],
        config=validate(document["config"], f"spec of {document['stage']}"),
        inputs=document["inputs"],
        store=store,
        folder=folder,
    )


def _remove_stale(own: Path) -> None:
    """Removes the scratch of other campaigns, of this user and store, that nobody has come back for."""
    limit = time.time() - STALE_S
    for folder in own.parent.iterdir():
        if folder == own:
            continue
        with suppress(OSError):  # Another job removes it, too, or writes there.
            if all(path.lstat().st_mtime < limit for path in (folder, *folder.rglob("*"))):
                shutil.rmtree(folder)


def _stop(signum: int, frame: FrameType | None) -> None:
    """SIGTERM: unwind through the context managers, so that boxes, servers and actors end with the job."""
    raise SystemExit(Exit.STOPPED)
