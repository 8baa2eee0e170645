"""What holds for every test: what takes long is begun with the session; no example is judged by how long it took.

The examples of a property are the same ones whenever it has not changed, so that a change is not judged by another's
luck; `make properties` draws new ones.
"""

from __future__ import annotations

import os
import signal

import hypothesis
import pytest

os.environ["RAY_AUTH_MODE"] = "token"  # Ray reads it once, when it is imported: a driver has it before, as a job does.
hypothesis.settings.register_profile("drawn", deadline=None)  # Three sessions share two cores.
hypothesis.settings.register_profile("same", hypothesis.settings.get_profile("drawn"), derandomize=True)
hypothesis.settings.load_profile("same")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # A shell that puts `make test` in the background ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
SERVED = {("e2e", "test_browser.py"), ("flows", "test_faults.py")}


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Starts what `make ui` does, when a test will ask for it."""
    if session.config.option.collectonly:
        return
    if any(item.path.parts[-2:] in SERVED for item in session.items):
        from tests.flows import abandoned  # It imports Prefect and Ray.

        abandoned.begin()
