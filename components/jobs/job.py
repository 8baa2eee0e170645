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
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from components.artifacts import ArtifactStore, open_store
from components.config import CampaignConfig, validate
from components.errors import DriftError, LongshellError

EXIT_REFUSED = 2
"""The stage refused its input; trying again cannot help."""
EXIT_STOPPED = 143
NOISY = ("megatron",)
"""Libraries whose notices (the absence of CUDA extensions, bucket layouts) say nothing to the reader of a job's log."""

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
        return "/".join(["campaigns", self.campaign, *(str(part) for part in parts)])

    def commit(self, stage: str, step: int, metrics: Mapping[str, float], **facts: Any) -> None:
        """Writes the record of a finished step. Its presence is what makes the step committed."""
        record = {"step": step, "timestamp_ms": time.time_ns() // 1_000_000, "metrics": dict(metrics), **facts}
        self.store.put_json(self.key(stage, "steps", f"{step:06d}", "record.json"), record)

    def committed(self, stage: str) -> list[int]:
        """Steps of `stage` that have a record, ascending."""
        prefix = self.key(stage, "steps")
        keys = self.store.list(prefix)
        return sorted(int(key.split("/")[-2]) for key in keys if key.endswith("/record.json"))

    def records(self, stage: str) -> Iterator[dict[str, Any]]:
        """The committed records of `stage`, ascending."""
        for step in self.committed(stage):
            yield self.store.get_json(self.key(stage, "steps", f"{step:06d}", "record.json"))


def main(stage: Callable[[Job], Mapping[str, Any]]) -> None:
    """Runs `stage` on the spec named on the command line and writes its result.

    Exits 0 with the result written; `EXIT_REFUSED` when the stage refused its configuration or data; 1 otherwise.
    """
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(message)s", force=True)
    for library in NOISY:
        logging.getLogger(library).setLevel(logging.WARNING)
        warnings.filterwarnings("ignore", category=UserWarning, module=library)
    signal.signal(signal.SIGTERM, _stop)
    try:
        document = json.loads(Path(sys.argv[1]).read_text())
        job = _open(document)
        started = time.monotonic()
        result = dict(stage(job))
        result["seconds"] = round(time.monotonic() - started, 3)
        job.store.put_json(document["result"], result)
        shutil.rmtree(job.folder)
    except LongshellError as error:
        log.error("%s: %s", type(error).__name__, error)
        sys.exit(EXIT_REFUSED if isinstance(error, (ValueError, DriftError)) else 1)


def _open(document: Mapping[str, Any]) -> Job:
    store = open_store(document["store"])
    place = hashlib.sha256(f"{store.url} {os.getuid()}".encode()).hexdigest()[:8]
    folder = Path(tempfile.gettempdir()) / f"longshell-{place}" / document["campaign"]
    folder = folder / f"{document['stage']}-{document['index']}"
    folder.mkdir(parents=True, exist_ok=True)
    return Job(
        stage=document["stage"],
        campaign=document["campaign"],
        index=document["index"],
        config=validate(document["config"], f"spec of {document['stage']}"),
        inputs=document["inputs"],
        store=store,
        folder=folder,
    )


def _stop(signum: int, frame: FrameType | None) -> None:
    """SIGTERM: unwind through the context managers, so that boxes, servers and actors end with the job."""
    raise SystemExit(EXIT_STOPPED)
