"""The ranks of a trainer, seen from the process that started them.

Invariants: a call returns when every rank has answered it. A rank that dies, or that is silent after another has
failed, ends all of them and is reported with its last words; no call waits for the dead. No rank outlives the pool, nor
the process that holds it, whatever way that ends.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from components.errors import FaultCause, InfraFault
from components.trainer.ranks import wire

ROOT = Path(__file__).parents[3]
LAST_WORDS = 20
"""Lines of a dead rank's log that are reported."""
GRACE_S = 10.0
"""How long the others have to answer once one rank has failed: they may wait for it in a collective that never ends."""
STOP_S = 5.0
"""How long an idle rank has to end when it is asked to."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a rank made of a call.

    Attributes:
        value: what the function returned.
        error: what the function raised, else None.
    """

    value: Any = None
    error: BaseException | None = None


class Ranks:
    """`count` processes on this machine that form one process group.

    Args:
        count: how many.
        threads: torch threads of each.
        timeout_s: a rank that waits longer in a collective fails.
        logs: folder of the ranks' logs; a temporary one when absent.
    """

    def __init__(self, count: int, *, threads: int = 1, timeout_s: float = 1_800.0, logs: Path | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="longshell-ranks-"))
        self._logs = logs or self._folder
        self._logs.mkdir(parents=True, exist_ok=True)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._sockets: list[socket.socket] = []
        self._offsets: list[int] = []
        self._fault: InfraFault | None = None
        try:
            for rank in range(count):
                self._start(rank, count, threads, timeout_s)
        except BaseException:
            self._end()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids, by rank."""
        return [process.pid for process in self._processes]

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Runs `function(stage, *args, **kwargs)` on every rank; what it returned, by rank.

        `function` must be importable by name; `stage` is a dictionary that a rank keeps between calls.

        Raises:
            InfraFault: a rank died, now or before. Every rank has ended.
            Exception: what the function raised on the first rank that it failed on, when all ranks have answered.
        """
        if self._fault is not None:
            raise self._fault
        file = wire.pack((function, args, kwargs))
        try:
            for rank, sock in enumerate(self._sockets):
                try:
                    wire.send(sock, file)
                except wire.Gone:
                    self._fail(rank)
            answers = self._answers()
        except BaseException:
            self._end()
            raise
        finally:
            os.close(file)
        errors = [answer.error for answer in answers if answer.error is not None]
        if errors:
            raise errors[0]
        return [answer.value for answer in answers]

    def close(self) -> None:
        """Ends all ranks. Idempotent."""
        self._end(grace_s=STOP_S)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(grace_s=STOP_S if kind is None else 0.0)

    def _start(self, rank: int, count: int, threads: int, timeout_s: float) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sockets.append(ours)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            # All ranks are on this machine: gloo need not find out by which name others would reach it.
            "GLOO_SOCKET_IFNAME": "lo",
        }
        command = [sys.executable, "-m", "components.trainer.ranks", str(theirs.fileno()), str(os.getpid())]
        command += [str(rank), str(count), str(self._folder / "store"), str(timeout_s)]
        with theirs, self._log(rank).open("ab") as log:
            self._offsets.append(log.tell())
            self._processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C reaches the parent, which then ends its ranks
                )
            )

    def _answers(self) -> list[Answer]:
        """One of every rank."""
        found: dict[int, Answer] = {}
        deadline: float | None = None
        with selectors.DefaultSelector() as selector:
            for rank, sock in enumerate(self._sockets):
                selector.register(sock, selectors.EVENT_READ, rank)
            while len(found) < len(self._sockets):
                patience = None if deadline is None else deadline - time.monotonic()
                if patience is not None and patience <= 0:
                    self._abandon(found)
                for key, _ in selector.select(patience):
                    rank = key.data
                    try:
                        found[rank] = wire.receive(self._sockets[rank])
                    except wire.Gone:
                        self._fail(rank)
                    selector.unregister(key.fileobj)
                    if found[rank].error is not None and deadline is None:
                        deadline = time.monotonic() + GRACE_S
        return [found[rank] for rank in sorted(found)]

    def _fail(self, rank: int) -> None:
        """A rank is gone."""
        process = self._processes[rank]
        try:
            code = process.wait(STOP_S)
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        except subprocess.TimeoutExpired:
            how = "closed its connection"
        words = self._last_words(rank)
        self._fault = InfraFault(
            FaultCause.TRAINER, f"rank {rank} of {len(self._sockets)} {how}; its last words:\n{words}"
        )
        raise self._fault

    def _abandon(self, found: dict[int, Answer]) -> None:
        """Some ranks failed and the others do not answer: they wait for those in a collective."""
        failed = next(answer.error for answer in found.values() if answer.error is not None)
        silent = sorted(set(range(len(self._sockets))) - set(found))
        self._fault = InfraFault(FaultCause.TRAINER, f"ranks {silent} did not answer after another failed: {failed}")
        raise failed

    def _log(self, rank: int) -> Path:
        return self._logs / f"trainer-rank-{rank}.log"

    def _last_words(self, rank: int) -> str:
        with self._log(rank).open("rb") as file:
            file.seek(self._offsets[rank])
            lines = file.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-LAST_WORDS:]) or "(none)"

    def _end(self, grace_s: float = 0.0) -> None:
        if self._fault is None:
            self._fault = InfraFault(FaultCause.TRAINER, "the trainer's ranks were ended")
        for sock in self._sockets:
            sock.close()  # an idle rank ends by itself
        deadline = time.monotonic() + grace_s
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
