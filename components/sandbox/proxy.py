"""The only way out of a box whose network is `proxy`: HTTP through us, to hosts that are allowed by name.

The box's first process makes a listening socket in the box's own network and hands it out; we answer on it from ours.
A program of the box reaches nobody else, whatever it does: its network has no other interface than its loopback.

Invariant: a connection is made only to a host that was asked for by a name that is allowed, at port 80 or 443, and
never to this machine or its link: the name is resolved here, once, and the address that was judged is connected to.
"""

from __future__ import annotations

import asyncio
import fnmatch
import ipaddress
import logging
import re
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

log = logging.getLogger(__name__)

PORTS = (80, 443)
HEAD_BYTES = 1 << 16
HEAD_S = 30.0
CONNECT_S = 20.0
READ_BYTES = 1 << 16
CONNECTIONS = 64
"""At once, of one box: more of them wait."""
PRIVATE = (
    *map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "192.0.0.0/24")),
    *map(ipaddress.ip_network, ("198.18.0.0/15", "fc00::/7", "fec0::/10")),
)
NAME_CHARS = 253
NAME = re.compile(r"(?:[a-z0-9_-]+\.)*(?!0x[0-9a-f]*$)[a-z0-9_-]*[a-z_-][a-z0-9_-]*")
"""Names that are no number in disguise. What else a resolver is given it cuts at the first zero byte."""
INNER = ipaddress.ip_network("64:ff9b::/96")
"""Addresses of version 6 behind which a translator has one of version 4."""
PORT = 3128
HOP = (b"proxy-connection", b"proxy-authorization", b"connection", b"keep-alive", b"host")


def environment() -> dict[str, str]:
    """Variables that programs of a box find the proxy by."""
    url = f"http://127.0.0.1:{PORT}"
    local = "localhost,127.0.0.1,::1"
    lower = {"http_proxy": url, "https_proxy": url, "no_proxy": local}
    return {**lower, **{name.upper(): value for name, value in lower.items()}}


def is_allowed(host: str, patterns: Sequence[str]) -> bool:
    """Whether a host may be named: no address, nothing of this machine's, and of these patterns."""
    name = host.lower().rstrip(".")
    if len(name) > NAME_CHARS or NAME.fullmatch(name) is None or name == "localhost":
        return False
    return any(fnmatch.fnmatchcase(name, pattern.lower()) for pattern in patterns)


def may_connect(address: str, host: str, patterns: Sequence[str]) -> bool:
    """Whether the address of an allowed host may be connected to. One of a private network must be named in full."""
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF) if found in INNER else found.ipv4_mapped
        found = inner or found.sixtofour or found
    if found.is_loopback or found.is_link_local or found.is_multicast or found.is_unspecified:
        return False
    in_full = host.lower().rstrip(".") in {pattern.lower() for pattern in patterns}
    if not in_full and any(found.version == network.version and found in network for network in PRIVATE):
        return False
    return not is_own(str(found))


def is_own(address: str) -> bool:
    """Whether an address is one of this machine's: nobody else's can be bound to."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


class Refusal(Exception):
    """Why a request is not answered; HTTP status and reason."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        super().__init__(reason)


class BoxProxy:
    """Serves one box until it is closed."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = tuple(hosts)
        self._server: asyncio.Server | None = None
        self._free = asyncio.Semaphore(CONNECTIONS)
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, listening: int) -> None:
        """Answer on a listening socket, which becomes ours."""
        sock = socket.socket(fileno=listening)
        self._server = await asyncio.start_server(self._accepted, sock=sock, limit=HEAD_BYTES)

    async def answer(self, sock: socket.socket) -> None:
        """Answer on a connection, which becomes ours."""
        await self._accepted(*await asyncio.open_connection(sock=sock, limit=HEAD_BYTES))

    def close(self) -> None:
        """Cut every connection. Idempotent."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            async with self._free:
                await self._answer(reader, writer)
        except (OSError, asyncio.CancelledError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            pass  # either side has gone, or the box has: there is nobody to tell
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_S)
            host, port, opening = read_head(head)
            upstream = await self._connect(host, port)
        except Refusal as refusal:
            body = f"{refusal}\n".encode()
            line = f"HTTP/1.1 {refusal.status} refused\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(line.encode() + body)
            await writer.drain()
            return
        if opening is None:
            writer.write(b"HTTP/1.1 200 connected\r\n\r\n")
        else:
            upstream[1].write(opening)
        try:
            await asyncio.gather(_pump(reader, upstream[1]), _pump(upstream[0], writer))
        finally:
            upstream[1].close()

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if port not in PORTS:
            raise Refusal(403, f"port {port} is not allowed")
        if not is_allowed(host, self._hosts):
            log.info("sandbox proxy: %s was asked for and is not allowed", host[:200])
            raise Refusal(403, f"{host} is not allowed")
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise Refusal(502, f"{host}: {error}") from error
        addresses = [str(entry[4][0]) for entry in found]
        for address in addresses:
            if not may_connect(address, host, self._hosts):
                continue
            try:
                return await asyncio.wait_for(asyncio.open_connection(address, port), CONNECT_S)
            except (OSError, TimeoutError):
                continue
        raise Refusal(502, f"{host} cannot be reached")


def read_head(head: bytes) -> tuple[str, int, bytes | None]:
    """(host, port, what to say there) of a request to a proxy; nothing is said there for a tunnel.

    Raises:
        Refusal: it is no such request.
    """
    line, *fields = head.rstrip(b"\r\n").split(b"\r\n")
    words = line.split(b" ")
    if len(words) != 3:
        raise Refusal(400, "not an HTTP request")
    method, target, version = words
    try:
        if method == b"CONNECT":
            parts = urlsplit("//" + target.decode("ascii"))
            return parts.hostname or "", parts.port or 443, None
        parts = urlsplit(target.decode("ascii"))
        host, port = parts.hostname or "", parts.port or 80
    except ValueError as error:
        raise Refusal(400, f"not an address: {error}") from error
    if parts.scheme != "http":
        raise Refusal(400, "only http:// and CONNECT are served")
    kept = [field for field in fields if field.split(b":", 1)[0].strip().lower() not in HOP]
    kept.insert(0, b"Host: " + parts.netloc.rpartition("@")[2].encode())  # who was judged, whatever it said (RFC 9112)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    # One request a connection: a second one on it would go to the first one's host unjudged.
    lines = [b" ".join((method, path.encode(), version)), *kept, b"Connection: close"]
    return host, port, b"\r\n".join(lines) + b"\r\n\r\n"


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Everything that comes from one side to the other, and its end."""
    try:
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.close()
