"""What a sandbox host and its owner say to each other, and to whoever is neither."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.config import SandboxConfig
from components.errors import BoxSpent, ConfigError, FaultCause, InfraFault
from components.sandbox import ExecResult, SandboxSpec, contract, image
from components.sandbox.contract import Left, Remains
from components.sandbox.host import HeldBox, claim, codec, wire
from components.sandbox.host.client import Link
from components.sandbox.host.launch import Address
from components.sandbox.host.server import Host
from components.sandbox.image import CopyStep, FileEntry, ImageSpec, RunStep

TOKEN = "0123456789abcdef0123456789abcdef"
IMAGE = ImageSpec(
    "debian:12",
    env={"A": "b"},
    steps=(CopyStep({"/a": FileEntry(b"\0\xff", 0o755)}), RunStep("make", "/app", {"C": "d"}, 3, "nobody")),
    context=Path("/somewhere"),
)
SPEC = SandboxSpec(image=IMAGE, files={"/b": b"plain", "/c": FileEntry(b"", 0o700, "directory")}, setup=("true",))
MESSAGES = (
    wire.Call(1, wire.HOST, "start", (SPEC,), {"env": None, "timeout_s": 1.5}, 7),
    wire.Answer(2, ExecResult(None, b"out\xff", None, True, False, False, b"{}")),
    wire.Answer(3, (4, "box", Left(("a \udc80",), (), ("b",)), "/bin/bash")),
    wire.Answer(3, Remains(("cat",), (), ("changed /logs/verifier/reward.txt",))),
    wire.Answer(4, {"boxes": [HeldBox(1, "box", "namespace/root", {1: 2}, True, False)], "counts": {"x": 0.5}}),
    wire.Cancel(5),
    wire.Told(30, "a warning"),
    wire.Beat(),
)
ERRORS = (
    InfraFault(FaultCause.IMAGE, "no base"),
    BoxSpent(FaultCause.SANDBOX, "for memory"),
    ConfigError(["one", "two"], "sandbox"),
    FileNotFoundError(2, "No such file or directory"),
    ValueError("no user worker"),
)


async def sent(data: bytes) -> wire.Message | None:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return await wire.receive(reader)


def test_every_record_of_a_sandbox_travels() -> None:
    made = {each for module in (contract, image) for each in vars(module).values() if is_dataclass(each)}
    assert made - {image.Instruction} == set(codec.RECORDS.values())


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
async def test_a_message_comes_as_it_was_sent(message: wire.Message) -> None:
    assert await sent(wire.pack(message)) == message


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_an_error_comes_as_what_it_was(error: Exception) -> None:
    came = await sent(wire.pack(wire.Answer(1, error=error)))
    assert isinstance(came, wire.Answer)
    assert (type(came.error), str(came.error)) == (type(error), str(error))


async def test_what_does_not_travel_is_a_fault_of_whoever_asked() -> None:
    for answer in (wire.Answer(1, object()), wire.Answer(1, error=AssertionError("mine"))):
        came = await sent(wire.pack(answer))
        assert isinstance(came, wire.Answer)
        assert isinstance(came.error, InfraFault)
        assert "does not travel" in came.error.detail


class Bomb:
    """As a pickle, a program."""

    def __reduce__(self) -> tuple[Callable[[int], object], tuple[int]]:
        return os._exit, (77,)


async def test_a_program_is_no_message() -> None:
    data = pickle.dumps(Bomb())
    assert await sent(wire.HEAD.pack(len(data)) + data) is None
    assert await sent(wire.HEAD.pack(1 << 60)) is None


KINDS = st.sampled_from(["bytes", "path", "list", "tuple", "dict", "fault", "os", "error", "Left", "Popen"])
LEAVES = st.none() | st.text() | st.integers() | KINDS


@given(st.recursive(LEAVES, lambda inner: st.lists(inner), max_leaves=8))
@settings(max_examples=60, deadline=None)
def test_no_text_is_more_than_a_value_or_refused(document: object) -> None:
    try:
        value = codec.decode(json.dumps(document).encode())
    except ValueError:
        return
    assert not callable(value)
    assert value is None or isinstance(value, str | int | bytes | list | tuple | dict | Path | Left | Exception)


@pytest.mark.parametrize("said", ['["os", 1e999, "x"]', '["SandboxSpec", {"workdir": 5}]', '["Call", {"id": 1}]'])
async def test_what_cannot_be_made_of_a_message_is_told_and_given_up(said: str) -> None:
    assert await sent(wire.HEAD.pack(len(said)) + said.encode()) is None


Spoken = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def met_by(answer: Spoken) -> tuple[object, bytes]:
    """What an owner makes of a program that listens where its host did, and all that this program heard."""
    heard = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        feed = reader.feed_data
        reader.feed_data = lambda data: (heard.extend(data), feed(data))[1]  # type: ignore[method-assign]
        await answer(reader, writer)
        writer.close()

    async def released() -> None:
        return None

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = Address("/nowhere", "127.0.0.1", server.sockets[0].getsockname()[1], TOKEN)
    async with server:
        return await claim(address, SandboxConfig(), released), bytes(heard)


async def test_an_impostor_learns_no_token_and_is_not_listened_to() -> None:
    """The token was the first thing that it was told, and what it answered was unpickled."""

    async def guesses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(wire.NONCE_BYTES) + bytes(wire.PROOF_BYTES))
        await reader.read()

    async def mirrors(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = await reader.readexactly(wire.NONCE_BYTES)
        writer.write(said + said)
        await reader.read()

    for impostor in (guesses, mirrors):
        met, heard = await met_by(impostor)
        assert met is None
        assert TOKEN.encode() not in heard
        assert len(heard) <= wire.NONCE_BYTES


async def test_each_side_knows_the_other_by_the_token_and_tells_it_to_nobody() -> None:
    outcomes: list[bool] = []

    async def host(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        outcomes.append(await wire.greeted(reader, writer, TOKEN.encode()))
        writer.close()

    async with await asyncio.start_server(host, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await wire.greet(reader, writer, TOKEN.encode())
        assert await reader.read() == b""
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert not await wire.greet(reader, writer, b"another")
        writer.write(bytes(wire.PROOF_BYTES))
        assert await reader.read() == b""
        writer.close()
    assert outcomes == [True, False]


@pytest.mark.parametrize("name", ["start", "fork_view"])
@pytest.mark.parametrize("heard", [False, True])
async def test_what_was_made_for_who_was_cancelled_meanwhile_is_ended(name: str, heard: bool) -> None:
    """The answer was on its way, or heard and not told yet: the box lived, nobody's, until its leg ended."""
    ours, theirs = socket.socketpair()
    link = Link(*await asyncio.open_connection(sock=ours))
    reader, writer = await asyncio.open_connection(sock=theirs)
    asking = asyncio.create_task(link.call(wire.HOST, name))
    asked = await wire.receive(reader)
    assert isinstance(asked, wire.Call)
    answer = wire.Answer(asked.id, (7, "box"))
    if heard:
        link._take(answer)
    else:
        writer.write(wire.pack(answer))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    told = await wire.receive(reader)
    if not heard:
        assert told == wire.Cancel(asked.id)
        told = await wire.receive(reader)
    assert isinstance(told, wire.Call)
    assert (told.target, told.name, told.arguments) == (wire.HOST, "stop", (7,))
    link.close("the test is over")
    writer.close()


async def test_whoever_is_no_owner_does_not_keep_a_host_alive() -> None:
    """A scanner that tried the port now and then kept a host that nobody owned, with its boxes, for ever."""

    class Backend:
        ended = False

        async def close(self) -> None:
            self.ended = True

    backend: Any = Backend()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        serving = asyncio.create_task(Host(backend, "{}", 0.3, deque(), TOKEN.encode()).serve(listener))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        assert await wire.greet(reader, writer, TOKEN.encode())
        writer.write(wire.pack(wire.Beat()))
        await asyncio.sleep(0.05)
        writer.close()
        async with asyncio.timeout(2):
            while not serving.done():
                _, stranger = await asyncio.open_connection(*listener.getsockname())
                await asyncio.sleep(0.1)
                stranger.close()
        await serving
    assert backend.ended
