"""Messages between a sandbox host and its owner: calls one way, answers the other.

A message is a length and a pickle: both ends are this package, and the socket is its user's alone (see `launch`), or
asks for a token.
"""

from __future__ import annotations

import asyncio
import hashlib
import pickle
import struct
from dataclasses import dataclass, field
from typing import Any

from components.errors import FaultCause, InfraFault

HEAD = struct.Struct("<Q")
HOST = 0
"""The target that is the host itself; boxes, views and terminals have numbers from 1."""


SLICE_S = 5.0
SILENCE_SLICES = 24
"""Both ends say something in every slice. One that is silent for so many, while the other runs, is given up: a machine
that was lost closes no connection."""


@dataclass(frozen=True, slots=True)
class Call:
    """A method of a target. `number` counts the calls of a terminal from 1; 0: this one is not counted."""

    id: int
    target: int
    name: str
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    number: int = 0


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody waits for the answer of this call any more."""

    id: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call came to."""

    id: int
    value: Any = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """A line of the host's log."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Beat:
    """Its sender is alive."""


Message = Call | Cancel | Answer | Told | Beat


@dataclass(frozen=True, slots=True)
class HeldBox:
    """A box that a host holds, as its owner needs to know it.

    Attributes:
        target: its number in this host.
        terminals: how many calls each of its terminals has had, by number.
        pristine: nothing was done to it but through its terminals.
        ended: a terminal of it was closed, or what ran in it was ended, to look at what is left.
    """

    target: int
    id: str
    isolation: str
    terminals: dict[int, int]
    pristine: bool
    ended: bool


def countersign(token: bytes) -> bytes:
    """What a host answers to a token, where there is one, before anything else."""
    return hashlib.sha256(b"host" + token).digest() if token else b""


def pack(message: Message) -> bytes:
    """One message. An answer that cannot travel is told as a fault."""
    try:
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # the boundary at which what no pickle holds becomes a fault of whoever asked
        if not isinstance(message, Answer):
            raise
        fault = InfraFault(FaultCause.SANDBOX, f"an answer cannot be sent: {error!r} ({message.error!r})")
        data = pickle.dumps(Answer(message.id, error=fault), pickle.HIGHEST_PROTOCOL)
    return HEAD.pack(len(data)) + data


async def receive(reader: asyncio.StreamReader) -> Message | None:
    """The next message; None when the other side is gone."""
    try:
        (length,) = HEAD.unpack(await reader.readexactly(HEAD.size))
        message: Message = pickle.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return message


class Pulse:
    """Whether the other side has been heard of. A stand-still of this process counts for one slice at most."""

    def __init__(self) -> None:
        self._heard = True

    def heard(self) -> None:
        """It has said something."""
        self._heard = True

    async def lost(self) -> None:
        """Until it has been silent for too long."""
        silent = 0
        while silent < SILENCE_SLICES:
            self._heard = False
            await asyncio.sleep(SLICE_S)
            silent = 0 if self._heard else silent + 1


async def beat(writer: asyncio.StreamWriter) -> None:
    """Says in every slice that this side is alive, until it is cancelled."""
    while not writer.is_closing():
        await asyncio.sleep(SLICE_S)
        writer.write(pack(Beat()))
