"""Roots to grow: tasks of our own dialect as the gates would have measured them, and a task in another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest_asyncio

from components.config import PoolConfig, SandboxConfig
from components.pool import GeneratedTask, Pool, Split, generate, load_task, write_index
from components.pool.directory import write_task
from components.records import TaskRef
from components.sandbox import SandboxBackend, open_backend
from components.synthesis.source import Source, read_source

LIMITS = SandboxConfig(memory_mb=128, disk_mb=32, pids=64)


@pytest_asyncio.fixture
async def backend(tmp_path: Path) -> AsyncIterator[SandboxBackend]:
    opened = await open_backend(LIMITS, tmp_path / "boxes")
    yield opened
    await opened.close()


def generated(count: int, seed: int = 3) -> list[GeneratedTask]:
    return list(islice(generate(PoolConfig(), Split.TRAIN, seed=seed), count))


def write_root(task: GeneratedTask, folder: Path) -> TaskRef:
    """Writes a task into `folder`; gives its reference as the gates would measure it: only guards hold untouched."""
    write_task(task, folder / task.task_id)
    guards = tuple(task.outline.guards)
    ref = load_task(folder / task.task_id).ref
    rest = tuple(name for name in ref.assertion_ids if name not in guards)
    return replace(ref, fail_to_pass=rest, pass_to_pass=guards)


def roots(folder: Path, count: int, seed: int = 3) -> list[Source]:
    refs = [write_root(task, folder) for task in generated(count, seed)]
    return [read_source(folder / ref.task_id, ref) for ref in refs]


def root_pool(folder: Path, count: int, seed: int = 3) -> Pool:
    return write_index(folder, [write_root(task, folder) for task in generated(count, seed)])


FOREIGN = {
    "task.toml": """
version = "1.0"
[metadata]
category = "data"
difficulty = "medium"
author = "Ä \\"x\\""
[agent]
timeout_sec = 30.0
[verifier]
timeout_sec = 30.0
[environment]
memory_mb = 64
""",
    "instruction.md": "Write what `log.txt` says of errors into `report.txt`, and its number of lines into `total`.\n",
    "environment/Dockerfile": "FROM debian:trixie-slim\nWORKDIR /srv/data\nCOPY log.txt /srv/data/log.txt\n",
    "environment/log.txt": "error disk\nfine\nerror net\nfine\nerror cpu\nerror disk\n",
    "solution/solve.sh": """#!/bin/bash
set -e
cd /srv/data
grep error log.txt > report.txt
cat > total <<EOF
$(wc -l < log.txt)
EOF
date +%N > moment
""",
    "tests/test.sh": """#!/bin/bash
cd /srv/data && mkdir -p /logs/verifier
report=failed total=failed reward=0
[ "$(grep -c error report.txt)" = 4 ] && report=passed
[ "$(cat total)${GIT_ALLOW_PROTOCOL-}${LC_ALL-}" = 6 ] && total=passed
[ $report$total = passedpassed ] && reward=1
cat > /logs/verifier/ctrf.json <<EOF
{"results": {"tool": {"name": "x"}, "summary": {"tests": 2, "passed": 2, "failed": 0, "pending": 0, "skipped": 0,
 "other": 0, "start": 0, "stop": 1}, "tests": [{"name": "report", "status": "$report", "duration": 1},
 {"name": "total", "status": "$total", "duration": 1}]}}
EOF
echo $reward > /logs/verifier/reward.txt
""",
}
"""A task of two assertions that speaks CTRF and English; its solution leaves a file of four lines, and the time."""


def write_foreign(folder: Path) -> Path:
    for name, text in FOREIGN.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
