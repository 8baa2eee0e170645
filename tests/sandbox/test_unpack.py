"""Archives that a box made: a link out of the folder is left out and named, and the rest is there."""

from __future__ import annotations

import errno
import io
import os
import tarfile
from pathlib import Path

import pytest

from components.sandbox.unpack import MOST_NAMED, NAME_CHARS, unpack


def packed(*members: tarfile.TarInfo) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    return data.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, linkname: str = "", time: float = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.pax_headers = {key: str(said) for key, said in (("path", name), ("mtime", time)) if said}
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


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ([entry("link", tarfile.LNKTYPE, "nothing")], ["link"]),
        ([entry("link", tarfile.LNKTYPE, "link")], ["link"]),
        ([entry("folder", tarfile.DIRTYPE), entry("link", tarfile.LNKTYPE, "folder")], ["link"]),
        ([entry("file"), entry("file/below")], ["file/below"]),
        ([entry("file"), entry("file/far/below")], ["file/far/below"]),
        ([entry("file"), entry("file", tarfile.DIRTYPE)], ["file"]),
        ([entry("folder", tarfile.DIRTYPE), entry("folder")], ["folder"]),
        ([entry("folder", tarfile.DIRTYPE), entry("folder", tarfile.SYMTYPE, "x")], ["folder"]),
        ([entry("loop", tarfile.SYMTYPE, "loop"), entry("loop/below")], ["loop/below"]),
        ([entry("x" * 300)], ["x" * NAME_CHARS]),
        ([entry("file"), entry("other"), entry("other", tarfile.LNKTYPE, "file")], ["other"]),
        ([entry("nul\0"), entry("late", time=1e300)], ["nul\\x00", "late"]),
    ],
)
def test_a_member_that_no_folder_can_have_is_left_out_and_named_and_the_rest_is_there(
    tmp_path: Path, members: list[tarfile.TarInfo], named: list[str]
) -> None:
    # Each was a KeyError or an OSError of the whole, and its trial went out of the denominator.
    left_out = unpack(packed(*members, entry("after")), tmp_path / "target")
    assert [line.partition(" (")[0] for line in left_out] == named
    assert (tmp_path / "target" / "after").read_text() == "xxx"


def test_a_hard_link_to_a_link_leads_nowhere_else_than_the_link(tmp_path: Path) -> None:
    deep = entry("a/b/deep", tarfile.SYMTYPE, "../../file")  # inside there, outside from the top
    left_out = unpack(packed(entry("file"), deep, entry("top", tarfile.LNKTYPE, "a/b/deep")), tmp_path / "target")
    assert [line.partition(" (")[0] for line in left_out] == ["top"]
    assert not os.path.lexists(tmp_path / "target" / "top")


def test_a_link_that_another_goes_through_is_not_made_anew(tmp_path: Path) -> None:
    out = [("way", "a/b"), ("top", "way/../.."), ("way", ".")]  # then `top` would lead out
    links = [entry(name, tarfile.SYMTYPE, to) for name, to in out]
    left_out = unpack(packed(entry("a/b", tarfile.DIRTYPE), *links), tmp_path / "target")
    assert [line.partition(" (")[0] for line in left_out] == ["way"]
    assert (tmp_path / "target" / "top").resolve() == tmp_path / "target"


def test_what_is_unpacked_once_more_is_as_it_was(tmp_path: Path) -> None:
    archive = packed(
        entry("./file"), entry("./hard", tarfile.LNKTYPE, "./file"), entry("./soft", tarfile.SYMTYPE, "file")
    )
    for _ in range(2):
        assert unpack(archive, tmp_path / "target") == []
        assert [(tmp_path / "target" / name).read_text() for name in ("file", "hard", "soft")] == ["xxx"] * 3


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tarfile.TarFile, "makefile", full)
    with pytest.raises(OSError, match="No space left"):
        unpack(packed(entry("file")), tmp_path / "target")


def test_what_is_named_of_what_was_left_out_is_bounded(tmp_path: Path) -> None:
    many = MOST_NAMED + 5
    told = unpack(packed(*(entry(f"link{number}", tarfile.SYMTYPE, "/") for number in range(many))), tmp_path)
    assert (len(told), told[-1]) == (MOST_NAMED + 1, "and 5 more")
