"""Messages between a pool and its ranks: Python values over a unix socket, their arrays in shared memory.

Invariant: a message is whole or the other side is gone. Arrays are written once, into a memory file that every receiver
maps: what is received is read-only. Both ends are this program, started by one user, so values are pickled.
"""

from __future__ import annotations

import mmap
import os
import pickle
import socket
from typing import Any

import numpy as np

MARK = b"."
ALIGNMENT = 64
"""Of each array in the memory file, so that any dtype may be viewed in place."""


class Gone(Exception):
    """The other side has closed the connection."""


def pack(value: Any) -> int:
    """A descriptor of a memory file that holds `value`."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    parts = [memoryview(head), *(buffer.raw() for buffer in buffers)]
    sizes = np.array([len(parts), *(part.nbytes for part in parts)], dtype="<i8").tobytes()
    file = os.memfd_create("longshell-trainer")
    offset = 0
    for part in (memoryview(sizes), *parts):
        _write(file, part, offset)
        offset += _aligned(part.nbytes)
    return file


def unpack(file: int) -> Any:
    """The value in a memory file; its arrays are read-only views of the mapping."""
    view = memoryview(mmap.mmap(file, 0, prot=mmap.PROT_READ))
    count = int(np.frombuffer(view, "<i8", 1)[0])
    sizes = np.frombuffer(view, "<i8", count, 8).tolist()
    offset = _aligned(8 * (count + 1))
    parts = []
    for size in sizes:
        parts.append(view[offset : offset + size])
        offset += _aligned(size)
    return pickle.loads(parts[0], buffers=parts[1:])


def send(sock: socket.socket, file: int) -> None:
    """Sends a packed value.

    Raises:
        Gone: nobody is there to receive it.
    """
    try:
        socket.send_fds(sock, [MARK], [file])
    except OSError as error:
        raise Gone from error


def receive(sock: socket.socket) -> Any:
    """Waits for the next value.

    Raises:
        Gone: there will be none.
    """
    try:
        mark, files, _, _ = socket.recv_fds(sock, 1, 1, socket.MSG_CMSG_CLOEXEC)
    except OSError as error:
        raise Gone from error
    if not mark:
        raise Gone
    (file,) = files
    try:
        return unpack(file)
    finally:
        os.close(file)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _write(file: int, part: memoryview, offset: int) -> None:
    data = part.cast("B") if part.nbytes else part
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written
