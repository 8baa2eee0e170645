"""A stranger's tar archive, opened so that what it says of its members can take neither this machine's memory nor time.

Invariant: what was read of its headers is at most `spare_bytes`, and `bytes_a_member` for each member that was seen; it
is read forwards alone; and there are no more members, nor do they claim more content, than they may. Python's tarfile
reads what stands before a member whole, whatever its size, and keeps it: a name, a pax header, the map of a sparse
file. A megabyte of gzip holds a gigabyte of them, and no member. A size below 0 leads it back to where it was.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

MOST_MEMBERS = 200_000
"""Of what an agent leaves or finds in its box. Each takes half a kilobyte of memory, and a system of Debian has a
hundred thousand files."""
SPARE_BYTES = 1 << 20
"""For the longest description of a member that is any use: two paths, and attributes of 64 KiB each."""
BYTES_A_MEMBER = 4 << 10
"""A header has 512, a long name and a few attributes 1,536 more."""
MOST_GLOBAL = 100
"""Attributes that are said of all members. Each is applied to each of them."""
MOST_DIGITS = 255
"""In a row: a file's name has no more characters. Before 3.11.10 (3.12.6) Python looks for attributes with expressions
that take a time quadratic in it, an hour for a megabyte."""
_DIGITS = re.compile(rb"\d+")
_SENSELESS = (ValueError, OverflowError, LookupError, RecursionError)
"""What tarfile lets through of a header that makes no sense: a number that is none, names of names of names."""


class TooMuch(tarfile.ReadError):
    """An archive is larger, has more members, or says more of them than any that is of use."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an archive may hold.

    Attributes:
        members: their number.
        content_bytes: of all members, as they claim; None where whoever reads a member asks for its size first.
    """

    members: int = MOST_MEMBERS
    content_bytes: int | None = None
    spare_bytes: int = SPARE_BYTES
    bytes_a_member: int = BYTES_A_MEMBER


class Archive(tarfile.TarFile):
    """A tar archive, not compressed, to be read like any `tarfile.TarFile`.

    Every way to its members leads through `next`. Their content is read unmeasured, and is its reader's to bound.

    Args:
        content: the archive's from then on.

    Raises:
        TooMuch: here, and whenever another member is asked for, once a bound is passed.
        tarfile.ReadError: it is no archive, or damaged.
    """

    def __init__(self, content: io.BufferedIOBase, bounds: Bounds) -> None:
        self._bounds = bounds
        self._seen = self._claimed = 0
        self._last: tarfile.TarInfo | None = None
        self._refused: TooMuch | None = None
        self._headers = _Headers(content, bounds.spare_bytes)
        super().__init__(fileobj=self._headers, mode="r")

    def next(self) -> tarfile.TarInfo | None:
        """See `tarfile.TarFile.next`."""
        if self._refused is not None:
            raise self._refused
        try:
            with self._headers.measured():
                member = super().next()
            if member is not None and member is not self._last:  # the constructor's comes again
                self._last = member
                self._admit(member)
        except TooMuch as refused:
            self._refused = refused
            raise
        except _SENSELESS as error:
            self._refused = TooMuch(f"a header makes no sense ({type(error).__name__})")
            raise self._refused from error
        return member

    def _admit(self, member: tarfile.TarInfo) -> None:
        self._seen += 1
        self._claimed += member.size
        self._headers.grant(self._bounds.bytes_a_member)
        member.pax_headers = {}  # said already by its attributes; of a global one every member has a copy
        if member.size < 0:
            raise TooMuch(f"{member.name[:200]!r} has a size below 0")
        if self._seen > self._bounds.members:
            raise TooMuch(f"there are more than {self._bounds.members} members")
        if (most := self._bounds.content_bytes) is not None and self._claimed > most:
            raise TooMuch(f"it unpacks to more than {most >> 20} MiB")
        if len(self.pax_headers) > MOST_GLOBAL:
            raise TooMuch(f"more than {MOST_GLOBAL} attributes are said of every member")


class _Headers(io.BufferedReader):
    """The bytes of an archive; counted, while they are of headers."""

    def __init__(self, content: io.BufferedIOBase, most: int) -> None:
        self._content = content
        super().__init__(cast(Any, content))  # reads into what it is given, as a raw one does
        self._left = most
        self._end = 0
        """Of the last that was read."""
        self._measures = False

    @contextmanager
    def measured(self) -> Iterator[None]:
        """While this is entered headers are read."""
        self._measures = True
        try:
            yield
        finally:
            self._measures = False

    def grant(self, size: int) -> None:
        """So many bytes more."""
        self._left += size

    def read(self, size: int | None = -1) -> bytes:
        """See `io.BufferedReader.read`.

        Raises:
            TooMuch: there is more about members than there may be.
        """
        if not self._measures:
            return super().read(size)
        if size is None or not 0 <= size <= self._left:
            raise TooMuch("names and attributes of members are larger than any in use")
        if (begins := self.tell()) < self._end - 1:  # tarfile reads the byte before a header, to see that it is there
            raise TooMuch("a size leads back to a header that was read")
        self._left, self._end = self._left - size, begins + size
        said = super().read(size)
        if len(said) > tarfile.BLOCKSIZE and any(len(run) > MOST_DIGITS for run in _DIGITS.findall(said)):
            raise TooMuch(f"an attribute has more than {MOST_DIGITS} digits in a row")
        return said
