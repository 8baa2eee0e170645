"""`python -m flows.<name>`: a flow in this process, on the local stack.

Invariants: whatever can be refused is refused before anything is started; every failure ends in one message and an exit
code (2 refused, 1 failed, 130 interrupted); services that this process started are stopped when it ends, those that it
found are left; an interrupt stops the flow's Ray jobs first, so that their sandboxes and servers end with them.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import Any

from prefect import Flow
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker

from components.config import CampaignConfig
from tasks.drive import stop_followed
from tasks.given import require_given
from tasks.plan import require_ready, require_sound, tell_plan
from tasks.reconcile import put_in_order
from tasks.site import Site
from tasks.space import explaining, require
from tasks.stack import settings
from tasks.stack.supervisor import Stack
from tasks.summary import finished
from tasks.terminal import EXIT_INTERRUPTED, brief, quiet, tell

_ENDING = (signal.SIGTERM, signal.SIGHUP)
"""What ends a process from outside: a service manager, a terminal that is closed."""


def main(flow: Flow[..., Any], argv: Sequence[str] | None = None, *, reports: bool = False) -> int:
    """Runs `flow` with the configuration named on the command line; gives the exit code.

    With `reports`, the campaign's table and its JSON line end the output, and a finished campaign is only reported;
    `--dry-run` tells what the campaign would do, and does nothing.
    """
    parser = argparse.ArgumentParser(prog=f"python -m flows.{flow.name}", description=flow.description)
    parser.add_argument("--config", default="configs/miniature.yaml", help="YAML file of the campaign")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="changes to it")
    if reports:
        parser.add_argument("--dry-run", action="store_true", help="tell everything that would be done, and do nothing")
    arguments = parser.parse_intermixed_args(argv)  # changes may stand on both sides of an option
    try:
        if reports and arguments.dry_run:
            return tell_plan(arguments.config, arguments.overrides, Site.current())
        return _launch(flow, arguments.config, arguments.overrides, reports)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except Exception as error:  # The boundary: a person reads one message.
        return tell(error)


def _launch(flow: Flow[..., Any], path: str, overrides: Sequence[str], reports: bool) -> int:
    site = Site.current()
    config = require_sound(path, overrides, site)
    stack = Stack(site, lambda line: print(line, file=sys.stderr, flush=True))
    store = site.store()
    if not (reports and finished(config, store)):
        with explaining(site):
            require(site)
            require_given(site)
            if reports:
                require_ready(config, site)
            code = _run(flow, config, site, stack)
        if code:
            return code
    if reports and (ended := finished(config, store)):
        results, table = ended
        print(f"\n{table}\n\n{json.dumps(results)}", flush=True)
    return 0


def _run(flow: Flow[..., Any], config: CampaignConfig, site: Site, stack: Stack) -> int:
    services = [name for name in ("prefect", "ray") if name not in site.given]
    with _unwinding(), stack.session(services):
        settings.apply(settings.environment(site))
        put_in_order(site)
        quiet()
        interrupts = _Interrupts()
        try:
            flow.with_options(on_running=[interrupts.arm])(config)
        except (KeyboardInterrupt, SystemExit, Exception):
            if (told := interrupts.outcome()) is None:
                raise
            # Whatever the flow made of it.
            print(f"interrupted; {told}, the same command continues", file=sys.stderr)
            return EXIT_INTERRUPTED
        finally:
            for sender in (APILogWorker, EventsWorker):  # While there is still a server to send to.
                sender.drain_all(timeout=10)
    return 0


@contextmanager
def _unwinding() -> Iterator[None]:
    """Who is told to end while services start or stop unwinds, as after Ctrl-C: otherwise they would go on."""
    before = {number: signal.getsignal(number) for number in _ENDING}
    for number, handler in before.items():
        if handler is signal.SIG_DFL:  # `nohup` has a hang-up ignored.
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is signal.SIG_DFL:
                signal.signal(number, handler)


class _Interrupts:
    """SIGINT, SIGTERM and SIGHUP while a flow runs: stop its jobs, then unwind. Threads that follow them end too."""

    def __init__(self) -> None:
        self._flow_run: str | None = None
        self._stopping: Future[list[str]] | None = None

    def arm(self, flow: Any, flow_run: Any, state: Any) -> None:
        """The flow's `on_running` hook."""
        self._flow_run = str(flow_run.id)
        for number in (signal.SIGINT, *_ENDING):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._interrupt)

    def outcome(self, within_s: float = 60.0) -> str | None:
        """What became of the jobs, in words; None when there was no interrupt. Waits until they have ended."""
        if self._stopping is None:
            return None
        try:
            self._stopping.result(timeout=within_s)
            stop_followed(str(self._flow_run))  # What was submitted in that instant.
        except Exception as error:  # The boundary: what kept the jobs from being stopped is told.
            reason = "that takes too long" if isinstance(error, TimeoutError) else brief(error)
            return f"the Ray jobs of this run may still run ({reason})"
        return "the Ray jobs of this run are stopped"

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        if self._stopping is None and self._flow_run is not None:
            self._stopping = Future()
            threading.Thread(target=self._stop, args=(self._stopping, self._flow_run), daemon=True).start()
            raise KeyboardInterrupt

    @staticmethod
    def _stop(stopping: Future[list[str]], flow_run: str) -> None:
        try:
            stopping.set_result(stop_followed(flow_run))
        except BaseException as error:  # The boundary of a thread: `outcome` tells.
            stopping.set_exception(error)
