"""Messages with a body of bytes over a stream: manager <-> the first process of a box that an engine runs.

A frame is two lengths, a JSON object, and bytes.
"""

from __future__ import annotations

import json
import struct
from typing import Any

HEAD = struct.Struct("<II")
Frame = tuple[dict[str, Any], bytes]


def pack(body: dict[str, Any], blob: bytes = b"") -> bytes:
    """One frame."""
    said = json.dumps(body, separators=(",", ":")).encode()
    return b"".join([HEAD.pack(len(said), len(blob)), said, blob])


class Unpacker:
    """Frames out of a stream's pieces."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole now."""
        self._held += data
        found: list[Frame] = []
        at = 0
        while len(self._held) - at >= HEAD.size:
            said, blob = HEAD.unpack_from(self._held, at)
            end = at + HEAD.size + said + blob
            if len(self._held) < end:
                break
            middle = at + HEAD.size + said
            found.append((json.loads(self._held[at + HEAD.size : middle]), bytes(self._held[middle:end])))
            at = end
        del self._held[:at]
        return found
