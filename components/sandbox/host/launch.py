"""Becoming the owner of a host: of the one that an earlier owner left in a folder, or of a new one.

Invariant: a folder's host has at most one owner, who holds the folder's lock for its life; the kernel gives the lock,
and the host's attention, to the next only when the owner's process is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from components.config.rollout import SandboxConfig
from components.errors import FaultCause, InfraFault
from components.sandbox.host.client import HostBackend, Link
from components.sandbox.host.wire import HOST

log = logging.getLogger(__name__)

OWNER_S = 60.0
"""How long an owner whose job has ended may take to be gone."""
CLAIM_S = 120.0
"""A host opens its backend, and ends what its last owner had under way, before it answers."""
POLL_S = 0.05
LOCK, SOCKET, LOG = "lock", "socket", "log"
DETACH = """
import os, runpy, sys
if os.fork():
    os._exit(0)
sys.argv = ["host", sys.argv[1]]
runpy.run_module("components.sandbox.host", run_name="__main__")
"""
"""Its parent is gone before it begins: whoever ends a job's processes by their descent does not find it."""


async def open_host(config: SandboxConfig, state: Path, linger_s: float) -> HostBackend:
    """The boxes of a host in `state`, which outlive this process by `linger_s` seconds.

    Raises:
        ConfigError: no sandbox can be had here.
        InfraFault: another process owns the host, or it does not answer.
    """
    folder = state.resolve() / "host"
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    lock = await _lock(folder / LOCK)
    settings = config.model_dump_json()
    try:
        if (left := await _claim(folder, lock)) is not None:
            backend, found = left
            if found == settings:
                return backend
            log.warning("the boxes that were left were started under another configuration: they end")
            await backend.close()
            lock = await _lock(folder / LOCK)
        await asyncio.to_thread(_start, folder, {"settings": settings, "state": str(state), "linger_s": linger_s})
        begun = await _claim(folder, lock)
    except BaseException:
        lock.close()
        raise
    if begun is None:
        lock.close()
        raise InfraFault(FaultCause.SANDBOX, f"the sandbox host in {folder} did not start: see {folder / LOG}")
    return begun[0]


async def _lock(path: Path) -> TextIO:
    file = path.open("w")
    deadline = time.monotonic() + OWNER_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > deadline:
                file.close()
                raise InfraFault(FaultCause.SANDBOX, f"{path.parent} is owned by a process that lives") from None
        await asyncio.sleep(POLL_S)


async def _claim(folder: Path, lock: TextIO) -> tuple[HostBackend, str] | None:
    """The host of a folder and its settings; None where none listens. It lets go of the lock when it is closed."""
    with _address(folder) as address:
        try:
            reader, writer = await asyncio.open_unix_connection(address)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
    link = Link(reader, writer)
    try:
        async with asyncio.timeout(CLAIM_S):
            claim = await link.call(HOST, "claim")
    except TimeoutError:
        link.close("it did not answer")
        raise InfraFault(FaultCause.SANDBOX, f"the sandbox host in {folder} does not answer") from None
    return HostBackend(link, claim, lock.close), claim["settings"]


def _start(folder: Path, orders: dict[str, str | float]) -> None:
    with contextlib.suppress(FileNotFoundError):
        (folder / SOCKET).unlink()
    with socket.socket(socket.AF_UNIX) as listener, (folder / LOG).open("ab") as errors, _address(folder) as address:
        listener.bind(address)
        listener.listen()
        process = subprocess.Popen(
            [sys.executable, "-c", DETACH, str(listener.fileno()), str(folder)],  # the folder for who lists processes
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=(listener.fileno(),),
            start_new_session=True,
        )
        process.communicate(json.dumps(orders).encode())


@contextlib.contextmanager
def _address(folder: Path) -> Iterator[str]:
    """The socket's name by way of its folder: a socket's name may have 108 bytes, a folder's more."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)
