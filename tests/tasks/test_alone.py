"""Of two processes of one flow run, the later one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from components.cluster import REPOSITORY
from components.config import load
from tasks import alone, find

HOLDER = """
import sys, time
from pathlib import Path
from tasks import alone
print(alone.take("run", Path(sys.argv[1])), flush=True)
time.sleep(60)
"""


def test_a_run_is_of_one_process_until_that_one_ends_however_it_does(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "None\n"
        assert alone.take("run", tmp_path, patience_s=0.2) == holder.pid
        assert alone.take("another run", tmp_path) is None
        threading.Timer(0.3, os.kill, (holder.pid, signal.SIGKILL)).start()
        assert alone.take("run", tmp_path) is None, "it was waited for"
    assert alone.take("run", tmp_path) is None, "it has it"


def test_a_process_whose_run_another_one_has_ends_before_it_does_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(alone, "take", lambda run, home: 123)
    monkeypatch.setattr(os, "_exit", ended)
    with disable_run_logger(), pytest.raises(SystemExit) as caught:
        find.claim.fn(load(REPOSITORY / "configs" / "miniature.yaml"))
    assert caught.value.code == 0


def test_who_only_looks_at_a_campaign_takes_no_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LONGSHELL_HOME", str(tmp_path))
    monkeypatch.delenv("LONGSHELL_STORE", raising=False)
    config = load(REPOSITORY / "configs" / "miniature.yaml", ["name=nobody"])
    with disable_run_logger():
        assert find.claim.fn(config, begin=False) == "nobody-s1"
        assert not list(tmp_path.rglob("campaign.json"))
        assert find.claim.fn(config) == "nobody-s1"
    assert list(tmp_path.rglob("campaign.json"))
