"""Messages with file descriptors over a unix SEQPACKET socket: manager <-> zygote, manager <-> box.

A message is one JSON object. One too large for a datagram travels in a memfd, sent first among the descriptors.
Received descriptors are close-on-exec, so that none of them reaches a program of the box by accident.
"""

from __future__ import annotations

import json
import os
import socket
from array import array
from collections.abc import Sequence
from typing import Any

INLINE_BYTES = 60_000
"""Below the smallest socket buffer a kernel is configured with (a datagram must fit it whole)."""
SPILLED = b"@"
MAX_FDS = 8
FD_BYTES = array("i").itemsize
CONTROL_BYTES = socket.CMSG_SPACE(MAX_FDS * FD_BYTES)

Body = dict[str, Any]


def memory_file(data: bytes) -> int:
    """A descriptor of an anonymous file that holds `data`, at offset 0."""
    fd = os.memfd_create("longshell")
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def read_file(fd: int) -> bytes:
    """All of a memory file, whatever its offset."""
    size = os.fstat(fd).st_size
    parts: list[bytes] = []
    offset = 0
    while offset < size:
        part = os.pread(fd, size - offset, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def send(sock: socket.socket, body: Body, fds: Sequence[int] = ()) -> None:
    """Send one message; raises BlockingIOError when the socket is non-blocking and full."""
    data = json.dumps(body, separators=(",", ":")).encode()
    if len(data) <= INLINE_BYTES:
        socket.send_fds(sock, [data], list(fds))
        return
    spill = memory_file(data)
    try:
        socket.send_fds(sock, [SPILLED], [spill, *fds])
    finally:
        os.close(spill)


def receive(sock: socket.socket) -> tuple[Body, list[int]] | None:
    """The next message and its descriptors; None when the other side is gone."""
    try:  # not socket.recv_fds: Python 3.11's ignores its flags, and programs inherited what came with their request
        data, ancillary, _, _ = sock.recvmsg(INLINE_BYTES + 1, CONTROL_BYTES, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return None
    if not data:
        return None
    fds = [fd for _, _, found in ancillary for fd in array("i", found[: len(found) - len(found) % FD_BYTES])]
    if data == SPILLED:
        spill = fds.pop(0)
        data = read_file(spill)
        os.close(spill)
    body: Body = json.loads(data)
    return body, fds


def pack_files(entries: Sequence[tuple[str, str, int, str, bytes]]) -> bytes:
    """(path, kind, mode, name, content) entries as one blob: length of the header, header, contents."""
    header = json.dumps([[*fields, len(content)] for *fields, content in entries]).encode()
    return b"".join([len(header).to_bytes(8, "little"), header, *(content for *_, content in entries)])


def unpack_files(blob: bytes) -> list[tuple[str, str, int, str, memoryview]]:
    """The inverse of `pack_files`, without copying the contents."""
    start = 8 + int.from_bytes(blob[:8], "little")
    view = memoryview(blob)
    entries = []
    for path, kind, mode, name, size in json.loads(blob[8:start]):
        entries.append((path, kind, mode, name, view[start : start + size]))
        start += size
    return entries
