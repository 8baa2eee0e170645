"""`python -m tests.jobs.endings SPEC LOGS`: jobs that end in every way, each in a process of its own.

Prints one JSON object: the exit code of each. What a job prints goes to `LOGS/<name>`.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from components.errors import CheckpointError, ConfigError, DivergedError, ServiceError
from components.jobs.job import Job, main


def fails(error: Exception) -> Callable[[Job], Mapping[str, Any]]:
    def stage(job: Job) -> Mapping[str, Any]:
        raise error

    return stage


def fills_the_store(job: Job) -> Mapping[str, Any]:
    job.store.put_bytes(job.key("much"), bytes(4 << 20))
    return {}


ENDINGS: Mapping[str, Callable[[Job], Mapping[str, Any]]] = {
    "done": lambda job: {"answer": 42},
    "config": fails(ConfigError(["no sandbox can be had on this machine. Run as root"], "sandbox")),
    "checkpoint": fails(CheckpointError("/m: no config.json")),
    "scratch": fails(OSError(errno.ENOSPC, "No space left on device", "/tmp/x")),
    "bug": fails(KeyError("metrics")),
    "assertion": fails(AssertionError("ours")),
    "diverged": fails(DivergedError("a gradient is not finite")),
    "service": fails(ServiceError("the sampler has ended")),
    "connection": fails(ConnectionResetError("peer")),
    "store": fills_the_store,
}


def run(stage: Callable[[Job], Mapping[str, Any]], log: Path) -> int:
    """The exit code."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 1)
    main(stage)
    raise AssertionError("main exits")


if __name__ == "__main__":
    logs = Path(sys.argv[2])
    print(json.dumps({name: run(stage, logs / name) for name, stage in ENDINGS.items()}))
