"""How a job ends: one kind of failure, one message, no result unless it is done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from components.artifacts import LocalStore
from components.cluster import REPOSITORY
from components.config import load
from components.errors import Exit
from components.jobs import job
from tests.disks import small_disk


def _age(folder: Path, days: float) -> None:
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (time.time() - days * 86_400,) * 2)


def test_a_job_removes_what_campaigns_left_that_nobody_came_back_for_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Journals and finished trials went with the last leg alone: those of a campaign that was cancelled stayed for ever.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = load(REPOSITORY / "configs" / "miniature.yaml").model_dump(mode="json")
    spec = {"stage": "rl", "campaign": "own", "index": 0, "config": config, "inputs": {}, "store": str(tmp_path / "s")}
    home = job._open(spec).folder.parents[1]
    given_up, held, own = (home / name for name in ("given-up", "held", "own"))
    for campaign in (given_up, held, own):
        (campaign / "rl/finished/x").mkdir(parents=True)
        (campaign / "rl/finished/x/journal").touch()
        _age(campaign, 8)
    _age(held / "rl/finished/x/journal", 6)
    job._open(spec)
    assert {path.name for path in home.iterdir()} == {"held", "own"}
    assert (held / "rl/finished/x/journal").exists()


class Endings:
    """Every ending of `tests.jobs.endings`, on a store and with logs where they are told to be."""

    def __init__(self, store: Path, logs: Path, scratch: Path) -> None:
        self.store = LocalStore(store)
        self.logs = logs
        self._scratch = scratch
        self._spec = scratch / "spec.json"
        config = load(REPOSITORY / "configs" / "miniature.yaml").model_dump(mode="json")
        spec = {"stage": "s", "campaign": "c", "index": 0, "config": config, "inputs": {}, "store": str(store)}
        self._spec.write_text(json.dumps({**spec, "result": "campaigns/c/result.json"}))

    def run(self) -> dict[str, int]:
        command = [sys.executable, "-m", "tests.jobs.endings", str(self._spec), str(self.logs)]
        environment = {**os.environ, "TMPDIR": str(self._scratch)}
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        codes: dict[str, int] = json.loads(done.stdout)
        return codes

    def log(self, name: str) -> str:
        return (self.logs / name).read_text()


EXPECTED = {
    "done": Exit.DONE,
    "config": Exit.REFUSED,
    "checkpoint": Exit.REFUSED,
    "scratch": Exit.REFUSED,
    "bug": Exit.PROGRAM,
    "assertion": Exit.PROGRAM,
    "diverged": Exit.PROGRAM,
    "service": Exit.INFRASTRUCTURE,
    "connection": Exit.INFRASTRUCTURE,
}


def test_a_job_ends_with_the_code_of_its_kind_and_its_reason_as_last_words(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with small_disk(tmp_path / "disk", 2) as disk:
        endings = Endings(disk.folder, tmp_path / "logs", tmp_path)
        assert endings.run() == {**EXPECTED, "store": Exit.REFUSED}
        assert endings.store.get_json("campaigns/c/result.json")["answer"] == 42
        assert endings.store.list() == ["campaigns/c/result.json"], "nothing is half-written"
    last = {name: endings.log(name).splitlines()[-1] for name in EXPECTED if name != "done"}
    assert last["config"] == "  - no sandbox can be had on this machine. Run as root"
    assert last["scratch"].startswith("ERROR NoSpaceError: /tmp/x: [Errno 28] No space left on device")
    assert last["bug"] == "ERROR KeyError: 'metrics'"
    assert last["service"] == "ERROR ServiceError: the sampler has ended"
    assert f"store {disk.folder}: cannot write campaigns/c/much: the disk is full. Free space" in endings.log("store")
    assert {name for name in EXPECTED if "Traceback" in endings.log(name)} == {"bug", "assertion", "connection"}


def test_a_job_whose_log_cannot_be_written_ends_with_the_code_of_its_kind_all_the_same(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        disk.fill()
        codes: dict[str, Any] = Endings(tmp_path / "store", disk.folder, tmp_path).run()
    assert codes == {**EXPECTED, "store": Exit.DONE}
