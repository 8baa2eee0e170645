"""A stranger's tar archive, opened so that the words about its members cannot take this machine's memory.

Invariant: of an archive that is being listed, at most `SPARE_BYTES` are read, and `BYTES_A_MEMBER` a member that was
seen. Python's tarfile reads what stands before a member whole, whatever its size, and keeps it: a name, a pax header,
the map of a sparse file. A megabyte of gzip holds a gigabyte of them, and no member.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from pathlib import Path

SPARE_BYTES = 1 << 20
"""For the longest description of a member that is any use: two paths, and attributes of 64 KiB each."""
BYTES_A_MEMBER = 4 << 10
"""A header has 512, a long name and a few attributes 1,536 more."""


class Listing(io.BufferedReader):
    """What is in an archive, unpacked, for `tarfile`; measured until it `is_listed`."""

    def __init__(self, source: Path) -> None:
        self._content = _unpacked(source)
        super().__init__(self._content)
        self._left: int | None = SPARE_BYTES

    def grant(self) -> None:
        """A member was seen."""
        if self._left is not None:
            self._left += BYTES_A_MEMBER

    def is_listed(self) -> None:
        """Every member was seen. Their content is read from here on, and is another's to measure."""
        self._left = None

    def read(self, size: int | None = -1) -> bytes:
        """See `io.BufferedReader.read`.

        Raises:
            tarfile.ReadError: there is more about members than there may be.
        """
        if self._left is not None:
            if size is None or not 0 <= size <= self._left:
                raise tarfile.ReadError("names and attributes of members are larger than any in use")
            self._left -= size
        return super().read(size)

    def close(self) -> None:
        """Closes the file too."""
        super().close()
        self._content.close()


def _unpacked(source: Path) -> io.BufferedIOBase:
    """The content, by how the file begins. What is none of these is a tar, or nothing."""
    with source.open("rb") as stream:
        start = stream.read(6)
    if start.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(source)
    if start.startswith(b"BZh"):
        return bz2.BZ2File(source)
    if start == b"\xfd7zXZ\0":
        return lzma.LZMAFile(source)
    return source.open("rb")
