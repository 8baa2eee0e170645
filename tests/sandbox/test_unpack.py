"""Archives that a box made: a link out of the folder is left out and named, and the rest is there."""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.artifacts.manifest import contents_of, contents_to_keep
from components.sandbox.unpack import MOST_FOLDERS, MOST_NAMED, NAME_CHARS, unpack
from tests.sandbox.test_archive import END, FILE, attributes, header


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
        ([entry("link", tarfile.SYMTYPE, "x" * 300)], ["link"]),
        ([entry("link", tarfile.SYMTYPE, "x/" * 2_000)], ["link"]),
        ([entry("x/" * MOST_FOLDERS + "x")], [("x/" * NAME_CHARS)[:NAME_CHARS]]),
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


def too_long_to_follow(outside: Path) -> bytes:
    """An archive whose links are too long to follow: Python's filter gave up, and one of them led to `outside`."""
    folders, members = "", []
    for step in "abcdefghijklmnop":
        deep, way = os.path.join(folders, "d" * 247), os.path.join(folders, step)
        members += [entry(deep, tarfile.DIRTYPE), entry(way, tarfile.SYMTYPE, "d" * 247)]
        folders = deep
    far = "/".join([*"abcdefghijklmnop", "l" * 254])
    members += [
        entry(far, tarfile.SYMTYPE, "../" * 16),
        entry("way", tarfile.SYMTYPE, f"{far}/{'../' * 15}{str(outside)[1:]}"),
    ]
    return packed(*members, entry("way/planted"), entry("after"))


def test_no_link_is_followed_to_see_where_it_leads(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    left_out = unpack(too_long_to_follow(outside), tmp_path / "target")
    assert list(outside.iterdir()) == []
    assert [line.partition(" (")[2] for line in left_out] == ["below a link)", "a link that climbs on its way)"]
    assert (tmp_path / "target" / "after").read_text() == "xxx"


@pytest.mark.parametrize(("name", "to"), [("b/.", "./."), ("c/b/.", "../b"), ("b/c/c/.", ".")])
def test_a_link_whose_name_ends_in_a_dot_is_the_one_without_it(tmp_path: Path, name: str, to: str) -> None:
    # Python could not make it and put what it leads to: itself, without end.
    target = tmp_path / "target"
    assert unpack(packed(entry("a"), entry(name, tarfile.SYMTYPE, to), entry("after")), target) == []
    assert os.readlink(target / name.removesuffix("/.")) == to
    assert (target / "after").read_text() == "xxx"


def with_mode(member: tarfile.TarInfo, mode: int) -> tarfile.TarInfo:
    member.mode = mode
    return member


@pytest.mark.parametrize(
    "refused",
    [
        entry("a", tarfile.SYMTYPE, "/etc"),
        entry("a", tarfile.CHRTYPE),
        entry("a", tarfile.FIFOTYPE),
        with_mode(entry("a"), 0o4755),
    ],
    ids=["link", "device", "pipe", "setuid"],
)
def test_nothing_that_was_left_out_is_put_in_place_of_a_link_that_cannot_be_made(
    tmp_path: Path, refused: tarfile.TarInfo
) -> None:
    # Python put the last member whose name is that of the link's folder, as it is: no filter saw it, nobody was told.
    target = tmp_path / "target"
    archive = packed(entry("a", tarfile.DIRTYPE), refused, entry("a/b", tarfile.SYMTYPE, ""), entry("after"))
    assert [line.partition(" (")[0] for line in unpack(archive, target)] == ["a", "a/b"]
    assert sorted(path.name for path in target.rglob("*")) == ["a", "after"]
    top = packed(entry(".", tarfile.SYMTYPE, "/"), entry("y", tarfile.SYMTYPE, ""))
    assert [line.partition(" (")[0] for line in unpack(top, target)] == [".", "y"]
    assert not os.path.lexists(target / "y")


def test_a_file_with_all_the_links_that_it_can_have_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python copied its content instead, once a header: a small archive filled the disk, past every bound.
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))

    monkeypatch.setattr(os, "link", full)
    left_out = unpack(packed(entry("file"), entry("more", tarfile.LNKTYPE, "file")), tmp_path / "target")
    assert left_out == ["more (Too many links)"]
    assert not (tmp_path / "target" / "more").exists()


STEPS = st.lists(st.sampled_from(["..", ".", "a", "b", "c"]), min_size=1, max_size=5).map("/".join)
KINDS = [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE]
MEMBERS = st.tuples(STEPS, st.sampled_from(KINDS), STEPS | st.just(""))


@settings(max_examples=40, deadline=None)
@given(st.lists(MEMBERS, max_size=8))
def test_whatever_is_in_an_archive_nothing_is_written_and_no_link_leads_outside(
    members: list[tuple[str, bytes, str]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder).resolve()
        target = base / "one" / "target"
        unpack(packed(*(entry(*member) for member in members)), target)
        assert [path.name for path in base.iterdir()] == ["one"]
        assert [path.name for path in (base / "one").iterdir()] == ["target"]
        assert contents_to_keep(target) == contents_of(target), "a store takes all of it"
        for root, folders, files in os.walk(target):
            for name in (*folders, *files):
                kind = stat.S_IFMT(os.lstat(os.path.join(root, name)).st_mode)
                assert kind in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
                try:
                    found = Path(os.path.realpath(os.path.join(root, name), strict=True))
                except OSError:  # a loop, or nothing there
                    continue
                assert found == target or target in found.parents


def test_a_link_that_another_goes_through_is_not_made_anew(tmp_path: Path) -> None:
    out = [("way", "a/b"), ("top", "way/../.."), ("way", ".")]  # then `top` would lead out
    links = [entry(name, tarfile.SYMTYPE, to) for name, to in out]
    left_out = unpack(packed(entry("a/b", tarfile.DIRTYPE), *links), tmp_path / "target")
    assert [line.partition(" (")[0] for line in left_out] == ["top", "way"]
    assert (tmp_path / "target" / "way").resolve() == tmp_path / "target" / "a" / "b"


def test_what_is_unpacked_once_more_is_as_it_was(tmp_path: Path) -> None:
    archive = packed(
        entry("./file"), entry("./hard", tarfile.LNKTYPE, "./file"), entry("./soft", tarfile.SYMTYPE, "file")
    )
    for _ in range(2):
        assert unpack(archive, tmp_path / "target") == []
        assert [(tmp_path / "target" / name).read_text() for name in ("file", "hard", "soft")] == ["xxx"] * 3


def test_a_file_is_its_owners_to_read_and_write_and_nobody_elses_to_write(tmp_path: Path) -> None:
    modes = {"open": 0o666, "shut": 0, "program": 0o777, "odd": 0o6011, "stuck": 0o1755}
    members = [with_mode(entry(f"/{name}", time=86_400.5), mode) for name, mode in modes.items()]
    assert unpack(packed(*members), tmp_path) == []
    found = {name: (tmp_path / name).stat() for name in modes}
    assert {name: oct(stat.S_IMODE(info.st_mode)) for name, info in found.items()} == {
        "open": "0o644",
        "shut": "0o600",
        "program": "0o755",
        "odd": "0o600",
        "stuck": "0o755",
    }
    assert {(info.st_uid, info.st_mtime) for info in found.values()} == {(os.getuid(), 86_400.5)}


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


@pytest.mark.parametrize(
    ("archive", "reason"),
    [
        (FILE * 5 + END, "all after a (there are more than 4 members)"),
        (FILE + header(b"L", 64 << 20) + bytes(1024), "larger than any in use"),
        (FILE + header(b"0", -1024, "b") + END, "a size below 0"),
        (FILE + attributes(b"x", {"GNU.sparse.size": str(1 << 62)}) + header(b"0", 0, "b") + END, "it unpacks to more"),
        (FILE + header(b"0", 1024, "b") + bytes(512), "unexpected end of data"),
    ],
    ids=["members", "headers", "backwards", "sparse", "torn"],
)
def test_what_follows_too_much_or_damage_is_left_out_and_named_and_the_rest_is_there(
    tmp_path: Path, archive: bytes, reason: str
) -> None:
    # A size below 0 filled the memory; the others were errors of the whole, or a file of any size.
    [told] = unpack(archive, tmp_path / "target", most_members=4)
    assert told.startswith("all after ")
    assert reason in told
    assert (tmp_path / "target" / "a").read_text() == ""


def test_what_unpacks_to_more_than_it_is_is_no_archive(tmp_path: Path) -> None:
    # A megabyte that a box had compressed filled the disk with a gigabyte.
    with pytest.raises(tarfile.ReadError):
        unpack(gzip.compress(packed(entry("file"))), tmp_path / "target")
