"""The beginning and the end of a stream whose middle is only counted.

Invariant: memory never exceeds the bound, whatever is written; with nothing dropped the bytes are exact.
"""

from __future__ import annotations

READ_BYTES = 1 << 16


class HeadTail:
    """Keeps the first and the last half of a stream."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit - limit // 2
        self._tail_limit = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    @property
    def dropped(self) -> int:
        """Bytes that were not kept."""
        return self._dropped + max(0, len(self._tail) - self._tail_limit)

    @property
    def size(self) -> int:
        """Bytes held."""
        return len(self._head) + len(self._tail)

    def add(self, data: bytes) -> None:
        """Append what was written."""
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            if len(self._tail) > 2 * self._tail_limit + READ_BYTES:
                self._trim()

    def _trim(self) -> None:
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            self._dropped += excess
            del self._tail[:excess]

    def contents(self) -> bytes:
        """What is kept, with a note where bytes are missing."""
        self._trim()
        note = b"\n[... %d bytes omitted ...]\n" % self._dropped if self._dropped else b""
        return bytes(self._head) + note + bytes(self._tail)

    def take(self) -> bytes:
        """The contents, and start anew."""
        contents = self.contents()
        self._head.clear()
        self._tail.clear()
        self._dropped = 0
        return contents
