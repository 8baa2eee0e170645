"""Becoming the owner of a host: of the one that an earlier owner left in a folder, or of a new one.

Invariants: a folder's host has at most one owner. Its lock is held for the owner's life by a process of the host's own
machine: the owner itself, or who speaks for it there. The kernel gives the lock, and the host its attention, to the
next only when that process is gone. A folder has at most one host: it holds a lock of its own for its life, without
which none is started, whatever the one before it answers. The folder is its user's alone: who can write into it could
answer for the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import secrets
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from components.config.rollout import SandboxConfig
from components.errors import ConfigError, FaultCause, InfraFault
from components.sandbox.host.client import HostBackend, Link
from components.sandbox.host.wire import HOST, SILENCE_SLICES, SLICE_S, greet

log = logging.getLogger(__name__)

OWNER_S = 60.0
"""How long an owner whose job has ended may take to be gone, or a host that was told to end."""
CLAIM_S = SILENCE_SLICES * SLICE_S + 30.0
"""A host opens its backend, takes a silent owner for gone, and ends what that one had under way, before it answers."""
CONNECT_S = 30.0
POLL_S = 0.05
LOCK, ALIVE, SOCKET, LOG, ADDRESS = "lock", "alive", "socket", "log", "address.json"
DETACH = """
import os, runpy, sys
if os.fork():
    os._exit(0)
sys.argv = ["host", sys.argv[1]]
runpy.run_module("components.sandbox.host", run_name="__main__")
"""
"""Its parent is gone before it begins: whoever ends a job's processes by their descent does not find it."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a host listens: on a socket in its folder, or on a port of its machine, where it asks for a token."""

    folder: str
    machine: str | None = None
    port: int = 0
    token: str = ""


class Place:
    """A folder of this machine that a host has, or will have, and its lock.

    Args:
        machine: the address that the host listens on; None: only this machine's processes reach it.
    """

    def __init__(self, folder: Path, lock: TextIO, machine: str | None) -> None:
        self.folder = folder
        self._lock = lock
        self._machine = machine

    @property
    def address(self) -> Address | None:
        """Of the last host that was started here; None where none was."""
        try:
            with _own(self.folder) as descriptor:
                return Address(**json.loads(Path(f"/proc/self/fd/{descriptor}/{ADDRESS}").read_text()))
        except FileNotFoundError:
            return None

    async def start(self, config: SandboxConfig, state: Path, linger_s: float) -> Address:
        """A new host.

        Raises:
            InfraFault: the one before it lives.
        """
        settings = config.model_dump_json()
        orders: dict[str, str | float] = {"settings": settings, "state": str(state), "linger_s": linger_s}
        alive = await _lock(self.folder / ALIVE, f"the sandbox host of {self.folder} lives and does not answer")
        with alive:  # the host inherits it
            return await asyncio.to_thread(_start, self.folder, self._machine, orders, alive)

    async def release(self) -> None:
        """Lets go of the lock. Idempotent."""
        self._lock.close()


async def open_place(state: Path, machine: str | None = None) -> Place:
    """Holds the place of a host in `state`.

    Raises:
        ConfigError: its folder is not this user's alone.
        InfraFault: another process holds it.
    """
    folder = state.resolve() / "host"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(parents=True, mode=0o700)
    with _own(folder):
        file = await _lock(folder / LOCK, f"{folder} is owned by a process that lives")
    return Place(folder, file, machine)


async def _lock(path: Path, otherwise: str) -> TextIO:
    """Holds a lock for as long as the file is open, here or in a child.

    Raises:
        InfraFault: another process keeps it, which `otherwise` says.
    """
    file = path.open("w")
    deadline = time.monotonic() + OWNER_S
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise InfraFault(FaultCause.SANDBOX, otherwise) from None
            await asyncio.sleep(POLL_S)
    except BaseException:
        file.close()
        raise


async def open_host(config: SandboxConfig, state: Path, linger_s: float) -> HostBackend:
    """The boxes of a host in `state`, which outlive this process by `linger_s` seconds.

    Raises:
        ConfigError: no sandbox can be had here, or the folder is not this user's alone.
        InfraFault: another process owns the host, or it does not answer.
    """
    place = await open_place(state)
    try:
        left = place.address
        if left is not None and (backend := await claim(left, config, place.release)) is not None:
            return backend
        address = await place.start(config, state, linger_s)
        return required(await claim(address, config, place.release), address)
    except BaseException:
        await place.release()
        raise


def required(host: HostBackend | None, address: Address) -> HostBackend:
    """A host that was just started.

    Raises:
        InfraFault: it is not there.
    """
    if host is None:
        raise InfraFault(FaultCause.SANDBOX, f"the sandbox host at {_told(address)} did not start: see its {LOG}")
    return host


async def claim(address: Address, config: SandboxConfig, released: Callable[[], Awaitable[None]]) -> HostBackend | None:
    """Becomes the owner of the host at an address, whose place this process, or one that it relies on, holds.

    Args:
        released: is awaited when the host has been closed.

    Returns:
        The host; None where none answers, or one that was started under another configuration: it ends.

    Raises:
        ConfigError: no sandbox can be had there.
        InfraFault: it does not answer.
    """
    try:
        reader, writer = await _connect(address)
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return None
    link = Link(reader, writer)
    try:
        async with asyncio.timeout(CLAIM_S):
            said = await link.call(HOST, "claim")
    except TimeoutError:
        link.close("it did not answer")
        raise InfraFault(FaultCause.SANDBOX, f"the sandbox host at {_told(address)} does not answer") from None
    except InfraFault:  # it was about to end
        return None
    if said["settings"] == config.model_dump_json():
        return HostBackend(link, said, released)
    log.warning("the boxes that were left were started under another configuration: they end")
    await HostBackend(link, said, _keep).close()
    return None


async def _keep() -> None:
    """A place that is needed again."""


async def _connect(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which each side has shown that it knows the token: ports go from one program to the next."""
    async with asyncio.timeout(CONNECT_S):
        if address.machine is None:
            with _socket_of(Path(address.folder)) as name:
                return await asyncio.open_unix_connection(name)
        reader, writer = await asyncio.open_connection(address.machine, address.port)
    try:
        async with asyncio.timeout(CLAIM_S):
            if await greet(reader, writer, address.token.encode()):
                return reader, writer
        raise ConnectionError(f"what listens at {_told(address)} is no host of ours")
    except BaseException:
        writer.close()
        raise


def _told(address: Address) -> str:
    return address.folder if address.machine is None else f"{address.machine}:{address.port}"


def _start(folder: Path, machine: str | None, orders: dict[str, str | float], alive: TextIO) -> Address:
    for name in (SOCKET, ADDRESS):
        (folder / name).unlink(missing_ok=True)
    with contextlib.ExitStack() as kept:
        family = socket.AF_UNIX if machine is None else socket.AF_INET
        listener = kept.enter_context(socket.socket(family))
        if machine is None:
            listener.bind(kept.enter_context(_socket_of(folder)))
            address = Address(str(folder))
        else:
            listener.bind((machine, 0))
            address = Address(str(folder), machine, listener.getsockname()[1], secrets.token_hex(16))
        listener.listen()
        errors = kept.enter_context((folder / LOG).open("ab"))
        process = subprocess.Popen(
            [sys.executable, "-c", DETACH, str(listener.fileno()), str(folder)],  # the folder for who lists processes
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=(listener.fileno(), alive.fileno()),
            start_new_session=True,
        )
        process.communicate(json.dumps({**orders, "token": address.token}).encode())
    temporary = folder / f"{ADDRESS}.tmp"
    temporary.touch(mode=0o600)
    temporary.write_text(json.dumps(asdict(address)))
    temporary.rename(folder / ADDRESS)
    return address


@contextlib.contextmanager
def _socket_of(folder: Path) -> Iterator[str]:
    """The socket's name by way of its folder: a socket's name may have 108 bytes, a folder's more."""
    with _own(folder) as descriptor:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"


@contextlib.contextmanager
def _own(folder: Path) -> Iterator[int]:
    """A descriptor of a folder that is this user's alone, for what is read through it.

    Raises:
        ConfigError: it is not.
        FileNotFoundError: there is none.
    """
    advice = f"remove {folder}, and see who can write to {folder.parent}"
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError([f"{folder} is no folder of this user's ({error.strerror}): {advice}"], "sandbox") from error
    try:
        found = os.fstat(descriptor)
        mode = stat.S_IMODE(found.st_mode)
        if found.st_uid != os.getuid() or mode & 0o077:
            problem = f"{folder} is user {found.st_uid}'s with mode {mode:o}, not {os.getuid()}'s alone: {advice}"
            raise ConfigError([problem], "sandbox")
        yield descriptor
    finally:
        os.close(descriptor)
