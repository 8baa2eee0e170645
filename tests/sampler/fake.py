"""SGLang, as far as launching goes: a program that starts another and answers `/health`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from components.config import SGLangConfig

PROGRAM = """
import http.server, json, os, subprocess, sys, time
folder = os.environ["FAKE_FOLDER"]
host, port = (sys.argv[sys.argv.index(flag) + 1] for flag in ("--host", "--port"))
child = subprocess.Popen(["sleep", "300"])
with open(f"{folder}/{port}.tmp", "w") as file:
    json.dump({"arguments": sys.argv[1:], "pids": [os.getpid(), child.pid]}, file)
os.rename(f"{folder}/{port}.tmp", f"{folder}/started-{port}.json")
if os.environ.get("FAKE_END"):
    sys.exit("no such model, says the server")
time.sleep(float(os.environ.get("FAKE_LOAD_S", "0")))
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer((host, int(port)), Health).serve_forever()
"""


def settings(folder: Path, tp: int = 1, **environment: str) -> SGLangConfig:
    """A configuration that starts it. What it was started with goes to `folder`."""
    (folder / "fake.py").write_text(PROGRAM)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {folder}/fake.py "$@"\n')
    python.chmod(0o755)
    given = {"FAKE_FOLDER": str(folder), **environment}
    return SGLangConfig(python=str(python), tp=tp, arguments=("--log-level", "info"), environment=given)


def started(folder: Path) -> list[dict[str, Any]]:
    """The arguments and the processes of each that was started, in no order."""
    return [json.loads(path.read_text()) for path in folder.glob("started-*.json")]


def started_at(folder: Path, url: str) -> dict[str, Any]:
    """Those of the one at a URL."""
    port = url.rpartition(":")[2]
    return dict(json.loads((folder / f"started-{port}.json").read_text()))


def ended(pid: int, within_s: float) -> bool:
    """Whether a process ends in time; one that nobody has waited for has ended."""
    deadline = time.monotonic() + within_s
    while True:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
