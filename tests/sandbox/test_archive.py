"""Archives whose headers are the attack: what tarfile keeps of them is bounded, and any of use is read as before."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator

import pytest

from components.sandbox.archive import BYTES_A_MEMBER, MOST_DIGITS, MOST_GLOBAL, SPARE_BYTES, Archive, Bounds, TooMuch

MUCH = 8 << 20


class Counted(io.BytesIO):
    """Counts what is read of it."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.taken = 0

    def readinto(self, buffer: object, /) -> int:
        size = super().readinto(buffer)  # type: ignore[arg-type]
        self.taken += size
        return size


def header(kind: bytes, size: int, name: str = "x") -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


def said(kind: bytes, content: bytes) -> bytes:
    """A header of a header."""
    return header(kind, len(content)) + content + bytes(-len(content) % 512)


def attributes(kind: bytes, values: dict[str, str]) -> bytes:
    """Of pax, each with its length before it."""
    lines = b""
    for key, value in values.items():
        rest = f" {key}={value}\n".encode()
        length = len(rest) + 1
        while len(str(length)) + len(rest) != length:
            length += 1
        lines += str(length).encode() + rest
    return said(kind, lines)


def sparse(size: int, *, goes_on: int = 0) -> bytes:
    """A sparse file, whose map has so many blocks more."""
    first = bytearray(header(tarfile.GNUTYPE_SPARSE, size))
    first[482] = goes_on > 0
    first[483:495] = b"00000001000\0"
    first[148:156] = b"%06o\0 " % (sum(first[:148]) + 8 * 32 + sum(first[156:]))
    more = bytearray(512)
    more[504] = 1
    return bytes(first) + bytes(more) * goes_on


def names(content: bytes, bounds: Bounds) -> Iterator[str]:
    with Archive(io.BytesIO(content), bounds) as archive:
        yield from (member.name for member in archive)


FILE = header(b"0", 0, "a")
END = bytes(1024)


@pytest.mark.parametrize(
    "packed",
    [
        *(pytest.param(header(kind, MUCH) + b" " * MUCH, id=kind.decode()) for kind in (b"x", b"g", b"L", b"K")),
        pytest.param(sparse(0, goes_on=MUCH // 512), id="sparse"),
        # A size below 0 was read to the end of the file.
        pytest.param(header(b"x", -1024) + b" " * MUCH, id="below-0"),
    ],
)
@pytest.mark.parametrize("begins", [b"", FILE])
def test_what_is_said_of_members_is_not_read_without_end(packed: bytes, begins: bytes) -> None:
    content = Counted(begins + packed)
    with pytest.raises(TooMuch, match="larger than any in use"):
        Archive(content, Bounds()).getmembers()
    assert content.taken <= SPARE_BYTES + BYTES_A_MEMBER + io.DEFAULT_BUFFER_SIZE


def test_members_are_given_up_to_their_most_and_every_way_to_more_is_refused() -> None:
    found = names(FILE * 5 + END, Bounds(members=4))
    assert [next(found) for _ in range(4)] == ["a"] * 4
    with pytest.raises(TooMuch, match="more than 4 members"):
        next(found)
    assert list(names(FILE * 4 + END, Bounds(members=4))) == ["a"] * 4
    with Archive(io.BytesIO(FILE * 5 + END), Bounds(members=4)) as archive:
        for _ in range(2):
            with pytest.raises(TooMuch, match="more than 4 members"):
                archive.getmember("b")


def test_members_may_not_claim_more_than_there_is() -> None:
    # The hole of a sparse file is memory to its reader.
    content = header(b"0", 512, "a") + bytes(512) + attributes(b"x", {"GNU.sparse.size": str(1 << 40)}) + FILE + END
    assert len(list(names(content, Bounds()))) == 2
    found = names(content, Bounds(content_bytes=len(content)))
    assert next(found) == "a"
    with pytest.raises(TooMuch, match="unpacks to more"):
        next(found)


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(FILE + header(b"0", -1024, "b"), id="file"),
        pytest.param(FILE + sparse(-512), id="sparse"),
        pytest.param(FILE + attributes(b"x", {"GNU.sparse.size": "5"}) + header(b"0", -1536, "b"), id="pax"),
        pytest.param(FILE + attributes(b"x", {"size": "-2048"}) + header(b"0", 0, "b"), id="pax-size"),
    ],
)
def test_no_size_leads_back_to_an_earlier_header(packed: bytes) -> None:
    # Before 3.11.14 it came again, and again, and each time was another member.
    with pytest.raises(TooMuch, match=r"below 0|leads back"):
        list(names(packed + END, Bounds(members=100)))


def test_a_header_of_headers_of_headers_is_a_refusal_and_no_end_of_the_stack() -> None:
    with pytest.raises(TooMuch, match="RecursionError"):
        list(names(FILE + said(b"L", b"long") * 500 + FILE + END, Bounds()))


@pytest.mark.parametrize("kind", [b"x", b"g"])
def test_digits_without_end_are_not_looked_through(kind: bytes) -> None:
    # Half a megabyte of them took a quarter of an hour.
    with pytest.raises(TooMuch, match="digits in a row"):
        list(names(FILE + said(kind, b"1" * (512 << 10)) + FILE + END, Bounds()))
    whole = attributes(kind, {"path": "1" * MOST_DIGITS, "comment": "x" * 1000}) + FILE
    assert list(names(whole + END, Bounds())) == ["1" * MOST_DIGITS]


def test_few_attributes_may_be_said_of_every_member() -> None:
    few = {f"attribute{number}": "1" for number in range(MOST_GLOBAL)}
    assert len(list(names(attributes(b"g", few) + FILE * 2 + END, Bounds()))) == 2
    with pytest.raises(TooMuch, match="of every member"):
        list(names(attributes(b"g", {**few, "another": "1"}) + FILE * 2 + END, Bounds()))


def test_a_size_that_is_no_number_is_passed_over() -> None:
    content = FILE + attributes(b"x", {"size": "many", "GNU.sparse.minor": "0"}) + FILE + END
    assert len(list(names(content, Bounds()))) == 2


@pytest.mark.parametrize("values", [{"GNU.sparse.map": "1,?"}, {"GNU.sparse.major": "1"}])
def test_a_sparse_file_whose_map_makes_no_sense_is_refused(values: dict[str, str]) -> None:
    content = FILE + attributes(b"x", {**values, "GNU.sparse.minor": "0"}) + FILE + END
    with pytest.raises(TooMuch):
        list(names(content, Bounds()))


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names_and_many_are_read_and_their_content_is_not_counted(form: int) -> None:
    made, long = io.BytesIO(), [f"{number}/" + "long/" * 200 + "é" for number in range(50)]
    with tarfile.open(fileobj=made, mode="w", format=form) as packed:
        for name in long:
            member = tarfile.TarInfo(name)
            member.size, member.pax_headers = 5_000, {"comment": "x" * 500}
            packed.addfile(member, io.BytesIO(name.encode()[:5] * 1_000))
    with Archive(io.BytesIO(made.getvalue()), Bounds(members=50, spare_bytes=20_000)) as archive:
        for member, name in zip(archive, long, strict=True):
            content = archive.extractfile(member)
            assert content is not None
            assert (member.name, content.read()) == (name, name.encode()[:5] * 1_000)
