"""Bounding what the policy sees of a terminal.

Invariant: the text kept is a head and a tail of whole characters, and kept bytes + omitted bytes = all bytes.
"""

from __future__ import annotations

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
