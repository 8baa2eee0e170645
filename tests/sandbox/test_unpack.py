"""Archives that a box made: a link out of the folder is left out and named, and the rest is there."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from components.sandbox.unpack import MOST_NAMED, unpack


def packed(*members: tarfile.TarInfo) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    return data.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, linkname: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, linkname, 0o755
    made.size = 3 if kind == tarfile.REGTYPE else 0
    return made


def test_a_link_that_leads_out_is_left_out_and_named_and_the_rest_is_there(tmp_path: Path) -> None:
    archive = packed(
        entry("./before"),
        entry("./absolute", tarfile.SYMTYPE, "/etc/passwd"),
        entry("./up", tarfile.SYMTYPE, "../../outside"),
        entry("./hard", tarfile.LNKTYPE, "./absolute"),
        entry("./../outside"),
        entry("./null", tarfile.CHRTYPE),
        entry("./inside", tarfile.SYMTYPE, "before"),
        entry("./odd\n", tarfile.SYMTYPE, "/"),
        entry("./after"),
    )
    left_out = unpack(archive, tmp_path / "target")
    assert [line.partition(" (")[0] for line in left_out] == [
        "absolute",
        "up",
        "hard",
        "../outside",
        "null",
        "odd\\x0a",
    ]
    assert sorted(path.name for path in (tmp_path / "target").iterdir()) == ["after", "before", "inside"]
    assert (tmp_path / "target" / "inside").read_text() == "xxx"
    assert not (tmp_path / "outside").exists()


def test_what_is_named_of_what_was_left_out_is_bounded(tmp_path: Path) -> None:
    many = MOST_NAMED + 5
    told = unpack(packed(*(entry(f"link{number}", tarfile.SYMTYPE, "/") for number in range(many))), tmp_path)
    assert (len(told), told[-1]) == (MOST_NAMED + 1, "and 5 more")
