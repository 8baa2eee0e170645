"""Looks into archives, compressed files, git objects and Base64, as far as they go into each other.

Invariant: all that is unpacked under one allowance is bounded, whatever an archive claims; what cannot be unpacked is
not an error, and the allowance names it.
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
from typing import Protocol

from components.sandbox.archive import MOST_MEMBERS, Archive, Bounds, TooMuch

LARGEST_FILE = 64 << 20
"""Bytes of a file that is looked at, and of all that is unpacked under one allowance."""
LONGEST_BASE64 = 1 << 20
SHORTEST_BASE64 = 64
DEPTH = 3
"""Archives within archives."""
ZIP_MEMBER = b"PK\x01\x02"
"""Begins each of the list of them. A zip within a zip, not compressed, counts as well."""
_GZIP, _BZIP2, _XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ"
_OTHERS = (b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"LZIP")
"""Of 7z, RAR, Zstandard, LZ4 and lzip: the standard library unpacks none of them."""
_BASE64 = (string.ascii_letters + string.digits + "+/").encode()


class Allowance:
    """How many bytes and members may still be unpacked, of one file or of many.

    Attributes:
        left: bytes.
        members: of archives.
        short: whether anything was, or may have been, left packed for want of them.
        sealed: places of what is packed, and is damaged, encrypted or of a kind that is not looked into.
    """

    def __init__(self, left: int = LARGEST_FILE, members: int = MOST_MEMBERS) -> None:
        self.left = left
        self.members = members
        self.sealed: list[str] = []
        self._refused = False

    @property
    def short(self) -> bool:
        return self._refused or self.left < 1

    def admits(self, size: int) -> bool:
        """Whether so many bytes are left."""
        self._refused |= size > self.left
        return size <= self.left

    def refuse(self) -> None:
        """Something is left packed."""
        self._refused = True

    def take(self, content: bytes) -> bytes:
        self.left -= len(content)
        return content


def unpacked(name: str, content: bytes, allowance: Allowance) -> Iterator[tuple[str, bytes]]:
    """A file, and what is in it where it is an archive, a compressed file, a git object or Base64; with its place.

    `allowance` bounds the bytes of all that is in it, and is used up by them.
    """
    yield name, content
    yield from _within(name, content, DEPTH, allowance)


def _within(name: str, content: bytes, depth: int, allowance: Allowance) -> Iterator[tuple[str, bytes]]:
    for place, inner in _members(name, content, allowance):
        yield place, inner
        if depth > 1:
            yield from _within(place, inner, depth - 1, allowance)


def _members(name: str, content: bytes, allowance: Allowance) -> Iterator[tuple[str, bytes]]:
    if inner := allowance.take(_expanded(name, content, allowance)):
        yield f"{name} (unpacked)", inner
    if content[257:262] == b"ustar":
        yield from ((f"{name}!{member}", inner) for member, inner in _of_tar(name, content, allowance))
    elif content.startswith(b"PK\x03\x04"):
        yield from ((f"{name}!{member}", inner) for member, inner in _of_zip(name, content, allowance))
    elif content.startswith(_OTHERS):
        allowance.sealed.append(name)
    elif SHORTEST_BASE64 <= len(content) <= LONGEST_BASE64:
        plain = b"".join(content.split())
        if not plain.rstrip(b"=").translate(None, _BASE64):
            try:
                yield f"{name} (Base64)", base64.b64decode(plain, validate=True)
            except binascii.Error:
                return


def _expanded(name: str, content: bytes, allowance: Allowance) -> bytes:
    """What is in a compressed file, as far as it may be unpacked; of a git object less its header; else nothing."""
    if allowance.left < 1:  # to a decompressor it would mean all
        return b""
    try:
        if content.startswith(_GZIP):
            return _stream(name, zlib.decompressobj(wbits=31), content, allowance)
        if content.startswith(_BZIP2):
            return _stream(name, bz2.BZ2Decompressor(), content, allowance)
        if content.startswith(_XZ):
            return _stream(name, lzma.LZMADecompressor(), content, allowance)
    except (OSError, EOFError, zlib.error, lzma.LZMAError):
        allowance.sealed.append(name)
        return b""
    if content.startswith((b"x\x01", b"x\x9c", b"x\xda")):  # as any text may begin
        try:
            return zlib.decompressobj().decompress(content, allowance.left).partition(b"\0")[2]
        except zlib.error:
            return b""
    return b""


class _Decompressor(Protocol):
    """What the three of the standard library have in common."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _stream(name: str, packed: _Decompressor, content: bytes, allowance: Allowance) -> bytes:
    """The first stream of a file. One that is cut off, or has anything behind it, is not known whole."""
    inner = packed.decompress(content, allowance.left)
    if packed.unused_data.strip(b"\0") or (not packed.eof and len(inner) < allowance.left):
        allowance.sealed.append(name)
    return inner


def _of_tar(name: str, content: bytes, allowance: Allowance) -> Iterator[tuple[str, bytes]]:
    try:
        with Archive(io.BytesIO(content), Bounds(allowance.members)) as archive:
            for member in archive:
                allowance.members -= 1
                file = archive.extractfile(member) if member.isreg() and allowance.admits(member.size) else None
                if file is not None:
                    yield member.name, allowance.take(file.read())
            if content[archive.offset :].strip(b"\0"):  # tarfile ends without a word at a header that is none
                allowance.sealed.append(name)
    except TooMuch:
        allowance.refuse()
    except (tarfile.TarError, OSError, ValueError):
        allowance.sealed.append(name)


def _of_zip(name: str, content: bytes, allowance: Allowance) -> Iterator[tuple[str, bytes]]:
    if content.count(ZIP_MEMBER) > allowance.members:  # its list of them is read whole
        allowance.refuse()
        return
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.infolist():
                allowance.members -= 1
                if allowance.left < 1:
                    return
                try:
                    with archive.open(member) as file:
                        inner = file.read(allowance.left)
                except _UNREADABLE:
                    allowance.sealed.append(f"{name}!{member.filename}")
                else:
                    yield member.filename, allowance.take(inner)
    except _UNREADABLE:
        allowance.sealed.append(name)


_UNREADABLE = (zipfile.BadZipFile, OSError, ValueError, RuntimeError, zlib.error, lzma.LZMAError, EOFError)
"""What zipfile and its decompressors say of what is damaged, encrypted (RuntimeError) or packed in an unknown way."""
