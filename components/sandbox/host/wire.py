"""Messages between a sandbox host and its owner: calls one way, answers the other.

A message is a length and a record (`codec`): data, whoever sends it. The socket is its user's alone (see `launch`), or
each end shows, before anything else, that it knows the token of the other: by what it makes of a number that the other
has just thought of. The token itself is never sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import struct
from dataclasses import dataclass, field
from typing import Any

from components.errors import FaultCause, InfraFault
from components.sandbox.host import codec

log = logging.getLogger(__name__)

HEAD = struct.Struct("<Q")
NONCE_BYTES = PROOF_BYTES = 32
MOST_BYTES = 1 << 32
"""Of one message: several times what `Sandbox.get` gives at most, as text."""
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


RECORDS = codec.RECORDS | {record.__name__: record for record in (Call, Cancel, Answer, Told, Beat, HeldBox)}


def _proof(token: bytes, role: bytes, *nonces: bytes) -> bytes:
    """What only who knows the token makes of these numbers. A role's proof is no other's: it cannot be sent back."""
    return hmac.digest(token, b"longshell host " + role + b"".join(nonces), hashlib.sha256)


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes) -> bool:
    """The owner's side: whether the host knows the token, and was shown that we do."""
    ours = secrets.token_bytes(NONCE_BYTES)
    writer.write(ours)
    theirs = await reader.readexactly(NONCE_BYTES)
    if not hmac.compare_digest(await reader.readexactly(PROOF_BYTES), _proof(token, b"host", ours, theirs)):
        return False
    writer.write(_proof(token, b"owner", ours, theirs))
    return True


async def greeted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes) -> bool:
    """The host's side: whether whoever has come knows the token."""
    ours = secrets.token_bytes(NONCE_BYTES)
    theirs = await reader.readexactly(NONCE_BYTES)
    writer.write(ours + _proof(token, b"host", theirs, ours))
    return hmac.compare_digest(await reader.readexactly(PROOF_BYTES), _proof(token, b"owner", theirs, ours))


def pack(message: Message) -> bytes:
    """One message. An answer that cannot travel is told as a fault."""
    try:
        data = codec.encode(message, RECORDS)
    except TypeError as error:
        if not isinstance(message, Answer):
            raise
        fault = InfraFault(FaultCause.SANDBOX, f"an answer cannot be sent: {error} ({message.error!r})")
        data = codec.encode(Answer(message.id, error=fault), RECORDS)
    return HEAD.pack(len(data)) + data


async def receive(reader: asyncio.StreamReader) -> Message | None:
    """The next message; None when the other side is gone, or says what is no message."""
    try:
        (length,) = HEAD.unpack(await reader.readexactly(HEAD.size))
        if length > MOST_BYTES:
            raise ValueError(f"{length} bytes")
        message = codec.decode(await reader.readexactly(length), RECORDS)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except ValueError as error:
        log.warning("a connection that says what is no message is given up: %s", error)
        return None
    return message if isinstance(message, Message) else None


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
