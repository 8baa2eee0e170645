"""What a trial has done so far, kept as it happens, so that another process can go on with it.

Invariants: what is read back is what was kept, up to some event: a record that was cut, or changed, and everything
after it is not there. An event is kept before anything follows from it.

A record is three numbers (the lengths of its two parts, a checksum of each), a JSON object and bytes. It is written in
one call and not synced: what a journal needs besides itself, its sandbox, does not survive its machine either.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from components.errors import FaultCause, InfraFault, StoreError

HEAD = struct.Struct("<IIII")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a trial did or was told.

    Attributes:
        kind: what it was: `start`, `terminal`, a call of the terminal, `answer`, or `stop`.
        at_s: running seconds of the trial when it was kept.
        facts: plain values.
        blob: arrays, as bytes; empty where only the facts were read.
    """

    kind: str
    at_s: float
    facts: Any
    blob: bytes = b""


@dataclass(frozen=True, slots=True)
class Kept:
    """A journal as it was found: whose it is, and its events without their bytes."""

    header: dict[str, Any]
    events: tuple[Event, ...]


class Journal:
    """One trial's. First it tells what is past, then it keeps what comes.

    Args:
        past: of an earlier process, or nothing.
    """

    def __init__(self, path: Path, header: dict[str, Any], past: list[Event], size: int) -> None:
        self._past = deque(past)
        try:
            self._file = path.open("r+b" if size else "wb", buffering=0)
            self._file.truncate(size)
            self._file.seek(size)
            if not size:
                self._write(header, b"")
        except OSError as error:
            raise StoreError(f"journal {path} cannot be written: {error}") from error

    @property
    def next_kind(self) -> str | None:
        """What comes next of what has happened already; None where the past is over."""
        return self._past[0].kind if self._past else None

    def recall(self, kind: str) -> Event | None:
        """The next event of the past; None where the past is over.

        Raises:
            InfraFault: it is of another kind: the trial does not do again what it did.
        """
        if not self._past:
            return None
        event = self._past.popleft()
        if event.kind != kind:
            raise InfraFault(FaultCause.STORE, f"a trial's journal has {event.kind} where it does {kind}")
        return event

    def note(self, event: Event) -> None:
        """Keeps an event.

        Raises:
            StoreError: it cannot be written.
        """
        assert not self._past, "nothing comes before the past is over"
        try:
            self._write({"kind": event.kind, "at_s": round(event.at_s, 3), "facts": event.facts}, event.blob)
        except OSError as error:
            raise StoreError(f"journal {self._file.name} cannot be written: {error}") from error

    def close(self) -> None:
        """Idempotent."""
        self._file.close()

    def _write(self, body: dict[str, Any], blob: bytes) -> None:
        said = json.dumps(body, separators=(",", ":")).encode()
        head = HEAD.pack(len(said), len(blob), zlib.crc32(said), zlib.crc32(blob))
        written = os.writev(self._file.fileno(), [head, said, blob])
        left = memoryview(b"" if written == len(head) + len(said) + len(blob) else b"".join([head, said, blob]))[
            written:
        ]
        while left:
            left = left[self._file.write(left) :]


class Journals:
    """The journals of a leg's trials, in a folder, by trial. One process uses it at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def found(self) -> dict[str, Kept]:
        """What earlier processes kept. Of bytes only the lengths are looked at. What names no trial is removed."""
        kept = {}
        for path in sorted(self._folder.iterdir()):
            records = [body for body, _, _ in _records(path, blobs=False)]
            if records:
                events = tuple(Event(body["kind"], body["at_s"], body["facts"]) for body in records[1:])
                kept[path.name] = Kept(records[0], events)
            else:
                path.unlink()
        return kept

    def open(self, trial_id: str, header: dict[str, Any]) -> Journal:
        """A trial's journal, with what is past of it."""
        path = self._folder / trial_id
        records = list(_records(path, blobs=True)) if path.exists() else []
        events = [Event(body["kind"], body["at_s"], body["facts"], blob) for body, blob, _ in records[1:]]
        return Journal(path, header, events, records[-1][2] if records else 0)

    def drop(self, trial_id: str) -> None:
        """Forgets a trial. Idempotent."""
        (self._folder / trial_id).unlink(missing_ok=True)


def _records(path: Path, *, blobs: bool) -> Iterator[tuple[dict[str, Any], bytes, int]]:
    """The whole records of a file, and where each ends."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while (record := _record(file, size, blobs=blobs)) is not None:
            yield (*record, file.tell())


def _record(file: BinaryIO, size: int, *, blobs: bool) -> tuple[dict[str, Any], bytes] | None:
    head = file.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    said_bytes, blob_bytes, said_crc, blob_crc = HEAD.unpack(head)
    if file.tell() + said_bytes + blob_bytes > size:
        return None
    said = file.read(said_bytes)
    if zlib.crc32(said) != said_crc:
        return None
    if not blobs:
        file.seek(blob_bytes, os.SEEK_CUR)
        return json.loads(said), b""
    blob = file.read(blob_bytes)
    return (json.loads(said), blob) if zlib.crc32(blob) == blob_crc else None
