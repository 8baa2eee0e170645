"""A pytest plugin: the outcome of every test, on the verifier's own channel, as soon as it is known.

Invariants: what was collected is told before anything runs and `finished` only by a session that ended, so a crash or
a time-out shows as what did not run; the secret that every line carries is read from its pipe before any test is
loaded, and this process then lets no other look into it. Where there is no secret (a second pytest, a worker of xdist)
the plugin is silent. Once tests run, no module of this Python's own is loaded whose file was changed after they began.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from importlib.machinery import PathFinder
from typing import Any

REPORT_FD, SECRET_FD = 3, 4
SECRET_BYTES = 4096
PR_SET_DUMPABLE = 4
INTERNAL_ERROR = 3
COARSE = 5
"""CLOCK_REALTIME_COARSE: the clock that files' times are taken from."""


def take_channel() -> tuple[int, str] | None:
    """The report's descriptor and the secret, which nobody after us can have."""
    try:
        secret = os.read(SECRET_FD, SECRET_BYTES).decode().strip()
        os.set_inheritable(REPORT_FD, False)
    except OSError:
        return None
    if not secret:
        return None
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    return REPORT_FD, secret


CHANNEL = take_channel()
HELD: dict[str, str] = {}
"""Outcomes of tests whose teardown is still to come."""


def say(**fields: Any) -> None:
    """Write one line."""
    if CHANNEL is None:
        return
    fd, nonce = CHANNEL
    data = (json.dumps({"nonce": nonce, **fields}) + "\n").encode()
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:  # whoever listened is gone: the tests go on
        return


def outcome_of(report: Any) -> str:
    """Of one phase. What was expected to fail earns nothing, whatever it did."""
    if hasattr(report, "wasxfail"):
        return "skipped"
    if report.failed:
        return "failed" if report.when == "call" else "error"
    return str(report.outcome)


class OwnModules:
    """Refuses modules of this Python, and what is installed for it, that were changed while the tests ran.

    What tests write themselves they write elsewhere.
    """

    def __init__(self, began: int) -> None:
        self._began = began
        self._own = tuple(f"{folder}/" for folder in sys.path if folder.startswith((sys.prefix, sys.base_prefix)))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Finds nothing: whatever is not refused is found by who comes next."""
        spec = PathFinder.find_spec(name, path, target)
        for file in () if spec is None else (spec.origin, spec.cached):
            if file is not None and file.startswith(self._own) and self._is_late(file):
                raise ImportError(f"{file} was changed while the tests ran", name=name, path=file)

    def _is_late(self, file: str) -> bool:
        try:
            return os.stat(file).st_ctime_ns >= self._began
        except OSError:  # it is not there: nothing was cached
            return False


def pytest_collection_finish(session: Any) -> None:
    """Before the first test."""
    began = time.clock_gettime_ns(COARSE)
    say(runner="pytest", collected=[item.nodeid for item in session.items], began=began)
    if CHANNEL is not None:
        sys.meta_path.insert(0, OwnModules(began))


def pytest_collectreport(report: Any) -> None:
    """A file that cannot be loaded is an assertion that broke."""
    if report.failed:
        say(runner="pytest", id=report.nodeid or "collection", outcome="error")


def pytest_runtest_logreport(report: Any) -> None:
    """A pass is told once its teardown has passed too; everything else at once. A run that is repeated says nothing."""
    if report.outcome not in ("passed", "failed", "skipped"):
        return
    said = outcome_of(report)
    if said != "passed":
        HELD.pop(report.nodeid, None)
        say(id=report.nodeid, outcome=said)
    elif report.when == "call":
        HELD[report.nodeid] = said
    elif report.when == "teardown" and HELD.pop(report.nodeid, None):
        say(id=report.nodeid, outcome=said)


def pytest_sessionfinish(session: Any, exitstatus: int) -> None:
    """A session that broke inside pytest itself has not finished."""
    if int(exitstatus) != INTERNAL_ERROR:
        say(finished=True)
