"""Archives whose headers are the attack: what tarfile keeps of them is bounded, and any of use is read as before."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from components.errors import TaskError
from components.pool import archive as archives
from components.pool import import_tasks
from components.pool.archive import Listing

MUCH = 8 << 20


def header(kind: bytes, size: int, name: str = "x") -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


def sparse_map() -> bytes:
    """A sparse file whose map goes on and on: each block says that there is another."""
    first = bytearray(header(tarfile.GNUTYPE_SPARSE, 0))
    first[482] = 1
    first[148:156] = b"%06o\0 " % (sum(first[:148]) + 8 * 32 + sum(first[156:]))
    more = bytearray(512)
    more[504] = 1
    return bytes(first) + bytes(more) * (MUCH // 512)


@pytest.mark.parametrize(
    "packed",
    [
        *(pytest.param(header(kind, MUCH) + b" " * MUCH, id=kind.decode()) for kind in (b"x", b"g", b"L", b"K")),
        pytest.param(sparse_map(), id="sparse"),
        # A size below 0 was read to the end of the file.
        pytest.param(header(b"x", -1024) + b" " * MUCH, id="below-0"),
    ],
)
@pytest.mark.parametrize("begins", [b"", header(b"0", 0, "a")])
def test_what_is_said_of_members_is_not_read_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bytes, begins: bytes
) -> None:
    # 1.3 MB of gzip took 300 MiB of memory, and there was no member to refuse.
    source, read = tmp_path / "evil.tar.gz", list[int]()
    source.write_bytes(gzip.compress(begins + packed, 1))
    taken = Listing.read

    def counted(self: Listing, size: int | None = -1) -> bytes:
        read.append(len(got := taken(self, size)))
        return got

    monkeypatch.setattr(Listing, "read", counted)
    with pytest.raises(TaskError, match="larger than any in use"):
        import_tasks([source], tmp_path / "pool")
    assert sum(read) <= archives.SPARE_BYTES + archives.BYTES_A_MEMBER


def test_a_member_of_a_size_below_0_is_refused(tmp_path: Path) -> None:
    # It leads back to an earlier header, which came again, and again.
    source = tmp_path / "evil.tar"
    source.write_bytes(header(b"0", 0, "a") + header(b"0", -1024, "b") + bytes(1024))
    with pytest.raises(TaskError, match="'b' has a size below 0"):
        import_tasks([source], tmp_path / "pool")


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("opener", [open, gzip.open, lzma.open])
def test_long_names_and_many_are_read_whatever_the_file_is_packed_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: int, opener: Callable[..., io.BufferedIOBase]
) -> None:
    monkeypatch.setattr(archives, "SPARE_BYTES", 20_000)
    names = [f"{number}/" + "long/" * 200 + "é" for number in range(50)]
    with opener(tmp_path / "a.tar", "wb") as file, tarfile.open(fileobj=file, mode="w", format=form) as packed:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.pax_headers = 5_000, {"comment": "x" * 500}
            packed.addfile(member, io.BytesIO(name.encode()[:5] * 1_000))
    with Listing(tmp_path / "a.tar") as listing, tarfile.open(fileobj=listing, mode="r:") as found:
        members = []
        for member in found:
            listing.grant()
            members.append(member)
        listing.is_listed()
        assert [member.name for member in members] == names
        for member, name in zip(members, names, strict=True):
            content = found.extractfile(member)
            assert content is not None
            assert content.read() == name.encode()[:5] * 1_000
