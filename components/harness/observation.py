"""What the policy sees of a terminal: what is new, and how much of it.

Invariants: the text kept is a head and a tail of whole characters, and kept bytes + omitted bytes = all bytes. What is
called new was not in the buffer before; where that cannot be told, the screen is shown (Terminus-2's rule, with what
follows from it: once a full history loses its beginning, there is no new output to be found in that turn).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OMISSION = "\n[... {omitted} bytes left out ...]\n"


def limit_output(text: str, max_bytes: int = 10_000, *, marker: str = OMISSION) -> str:
    """Keeps the first and the last half of `max_bytes` UTF-8 bytes; `marker` says between them what is missing."""
    data = text.encode("utf-8", "replace")
    if len(data) <= max_bytes:
        return text
    half = max_bytes // 2
    head = data[:half].decode("utf-8", "ignore")
    tail = data[len(data) - half :].decode("utf-8", "ignore")
    kept = len(head.encode()) + len(tail.encode())
    return head + marker.format(omitted=len(data) - kept) + tail


@dataclass(slots=True)
class Lookout:
    """Tells what is new in a terminal's buffer since it was looked at last."""

    _before: str | None = None

    def new(self, lines: Sequence[str]) -> str | None:
        """The text that was added to a captured buffer, from the last line that was known on, which may have grown.

        None when there is none, or it cannot be told: at the first look, and when what was there is there no more.
        """
        buffer = as_text(lines)
        known, self._before = self._before, buffer
        if known is None:
            return None
        known = known.strip()
        if known not in buffer:
            return None
        # As Terminus-2 has it: the place is one of the known text, though blank lines may have stood before that.
        start = known.rfind("\n") if "\n" in known else buffer.index(known)
        new = buffer[start:]
        return new if new.strip() else None


def as_text(lines: Sequence[str]) -> str:
    """Captured rows as one text."""
    return "".join(f"{line}\n" for line in lines)
