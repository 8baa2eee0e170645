"""Looks into archives, compressed files, git objects and Base64, as far as they go into each other.

Invariant: all that is unpacked of one file is bounded, whatever an archive claims; what cannot be unpacked is not an
error.
"""

from __future__ import annotations

import base64
import binascii
import bz2
import io
import lzma
import string
import tarfile
import zipfile
import zlib
from collections.abc import Iterator

LARGEST_FILE = 64 << 20
"""Bytes of a file that is looked at, and of all that is unpacked of one."""
LONGEST_BASE64 = 1 << 20
SHORTEST_BASE64 = 64
DEPTH = 3
"""Archives within archives."""
_BASE64 = (string.ascii_letters + string.digits + "+/").encode()


class _Allowance:
    """How many bytes may still be unpacked."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, content: bytes) -> bytes:
        self.left -= len(content)
        return content


def unpacked(name: str, content: bytes, most: int = LARGEST_FILE) -> Iterator[tuple[str, bytes]]:
    """A file, and what is in it where it is an archive, a compressed file, a git object or Base64; with its place.

    `most` bounds the bytes of all that is in it.
    """
    yield name, content
    yield from _within(name, content, DEPTH, _Allowance(most))


def _within(name: str, content: bytes, depth: int, allowance: _Allowance) -> Iterator[tuple[str, bytes]]:
    for place, inner in _members(name, content, allowance):
        yield place, inner
        if depth > 1:
            yield from _within(place, inner, depth - 1, allowance)


def _members(name: str, content: bytes, allowance: _Allowance) -> Iterator[tuple[str, bytes]]:
    if inner := allowance.take(_expanded(content, allowance.left)):
        yield f"{name} (unpacked)", inner
    if content[257:262] == b"ustar":
        yield from ((f"{name}!{member}", inner) for member, inner in _of_tar(content, allowance))
    elif content.startswith(b"PK\x03\x04"):
        yield from ((f"{name}!{member}", inner) for member, inner in _of_zip(content, allowance))
    elif SHORTEST_BASE64 <= len(content) <= LONGEST_BASE64:
        plain = b"".join(content.split())
        if not plain.rstrip(b"=").translate(None, _BASE64):
            try:
                yield f"{name} (Base64)", base64.b64decode(plain, validate=True)
            except binascii.Error:
                return


def _expanded(content: bytes, most: int) -> bytes:
    """What is in a compressed file, up to `most` bytes; of a git object less its header; else nothing."""
    if most < 1:  # to a decompressor it would mean all
        return b""
    try:
        if content.startswith(b"\x1f\x8b"):
            return zlib.decompressobj(wbits=31).decompress(content, most)
        if content.startswith(b"BZh"):
            return bz2.BZ2Decompressor().decompress(content, most)
        if content.startswith(b"\xfd7zXZ"):
            return lzma.LZMADecompressor().decompress(content, most)
        if content.startswith((b"x\x01", b"x\x9c", b"x\xda")):
            return zlib.decompressobj().decompress(content, most).partition(b"\0")[2]
    except (OSError, EOFError, zlib.error, lzma.LZMAError):
        return b""
    return b""


def _of_tar(content: bytes, allowance: _Allowance) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isreg() and member.size <= allowance.left else None
                if file is not None:
                    yield member.name, allowance.take(file.read())
    except (tarfile.TarError, OSError, ValueError):
        return


def _of_zip(content: bytes, allowance: _Allowance) -> Iterator[tuple[str, bytes]]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.infolist():
                if allowance.left < 1:
                    return
                with archive.open(member) as file:
                    yield member.filename, allowance.take(file.read(allowance.left))
    except (zipfile.BadZipFile, OSError, ValueError, RuntimeError, NotImplementedError, zlib.error, EOFError):
        return
