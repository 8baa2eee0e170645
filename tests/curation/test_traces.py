"""What a box lists of its files is whole, or there is no list, whatever the box answers with."""

from __future__ import annotations

import io
import tarfile

import pytest

from components.curation.traces import Trace, _listed
from tests.sandbox.test_archive import END, FILE, attributes, header, sparse


def linked(links: int, size: int) -> bytes:
    """A program, and hard links to it; a folder, a link and a pipe."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        member = tarfile.TarInfo("./app/program")
        member.size, member.mode = size, 0o755
        archive.addfile(member, io.BytesIO(b"x" * size))
        kinds = [(f"./app/{number}", tarfile.LNKTYPE, "./app/program") for number in range(links)]
        others = [("./etc", tarfile.DIRTYPE, ""), ("./way", tarfile.SYMTYPE, "etc"), ("./pipe", tarfile.FIFOTYPE, "")]
        for name, kind, to in [*kinds, *others]:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, to
            archive.addfile(member)
    return made.getvalue()


def test_files_folders_and_links_are_listed_and_hard_links_share_their_bytes() -> None:
    # Each link to a large file was read anew, and looked for among all members.
    found = _listed(linked(3, 2_000))
    assert found is not None
    program = Trace(b"x" * 2_000, program=True)
    assert found == {
        "/app/program": program,
        **{f"/app/{number}": program for number in range(3)},
        "/etc": Trace(None),
        "/way": Trace(b"etc"),
    }
    assert all(found[f"/app/{number}"].content is found["/app/program"].content for number in range(3))


@pytest.mark.parametrize(
    "packed",
    [
        FILE * 4,
        header(b"L", 64 << 20) + bytes(512),
        header(b"0", -512, "b"),
        sparse(-512),
        attributes(b"x", {"GNU.sparse.size": str(1 << 40)}) + header(b"0", 0, "b"),
        header(b"1", 0, "b"),
        header(b"0", 4096, "b"),
    ],
    ids=["members", "headers", "backwards", "sparse", "hole", "link to nothing", "torn"],
)
def test_of_a_list_that_is_too_much_or_damaged_there_is_none(packed: bytes) -> None:
    assert _listed(FILE + END, most_members=4) == {"/a": Trace(b"")}
    assert _listed(FILE + packed + END, most_members=4) is None
