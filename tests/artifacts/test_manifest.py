"""Manifests of stored folders, those of strangers too: no path in one leads out of its folder."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.artifacts.manifest import FileDigest, contents_of, contents_to_keep, difference, dump, lay, parse
from components.errors import DamagedError, StoreError

ROW = [1, "0" * 64, False]


@pytest.mark.parametrize(
    "path", ["/etc/x", "../x", "a/../../x", "a/..", ".", "./a", "a//b", "a/", "", "a\0b", "\ud800", "//x"]
)
def test_a_path_that_is_none_below_the_folder_is_refused(path: str) -> None:
    with pytest.raises(DamagedError, match="which is no file below it"):
        parse(json.dumps({"fine": ROW, path: ROW}).encode())


def test_names_of_any_bytes_come_back(tmp_path: Path) -> None:
    for name in (b"\xff", b"..a", b" ", b"\\..\\b"):
        Path(tmp_path, name.decode(errors="surrogateescape")).touch()
        Path(tmp_path, "to" + name.decode(errors="surrogateescape")).symlink_to(name.decode(errors="surrogateescape"))
    contents = contents_of(tmp_path)
    assert len(contents.files) == len(contents.links) == 4
    manifest = contents.with_digests(dict.fromkeys(contents.files, FileDigest(0, "0" * 64, True)))
    assert parse(dump(manifest)) == manifest


@pytest.mark.parametrize(
    "row",
    [
        [-1, "0" * 64, False],
        [True, "0" * 64, False],
        ["1", "0" * 64, False],
        [1, "0", False],
        [1, 2, False],
        [1],
        [""],
        ["\0"],
    ],
)
def test_a_row_that_is_no_digest_is_refused(row: list[object]) -> None:
    with pytest.raises(StoreError, match="another version, or is damaged"):
        parse(json.dumps({"a": row}).encode())


def test_what_is_nested_without_end_is_refused() -> None:
    with pytest.raises(StoreError, match="another version, or is damaged"):
        parse(b"[" * 100_000)


@pytest.mark.parametrize(
    ("path", "target"), [("a", ".."), ("a", "/etc"), ("a/b", "../.."), ("a", "b/../.."), ("a", "b/../c"), ("a", "./..")]
)
def test_a_link_that_leads_out_or_could_is_refused(path: str, target: str) -> None:
    with pytest.raises(DamagedError, match="a link that leads out of it"):
        parse(json.dumps({"fine": ["x/y"], path: [target]}).encode())


@pytest.mark.parametrize("row", [["."], []])
def test_what_would_be_written_through_a_link_is_refused(row: list[str]) -> None:
    # A stranger's manifest could have a link into a folder of ours, and a file below it.
    with pytest.raises(DamagedError, match="'a/b/c', which is no file below it"):
        parse(json.dumps({"a/b/c": ROW, "a/b": row}).encode())


STEPS = st.lists(st.sampled_from(["..", ".", "a", "b", "c"]), min_size=1, max_size=4).map("/".join)
PATHS = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(PATHS, st.none() | STEPS, max_size=8))
def test_no_link_that_a_manifest_admits_leads_out_and_what_it_lays_is_what_it_says(rows: dict[str, str | None]) -> None:
    try:
        manifest = parse(
            json.dumps({path: [] if target is None else [target] for path, target in rows.items()}).encode()
        )
    except DamagedError:
        return
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made).resolve() / "one" / "folder"
        folder.mkdir(parents=True)
        lay(manifest, folder)
        assert difference(manifest, folder) is None
        assert contents_to_keep(folder).with_digests({}) == manifest
        for path in manifest.links:
            try:
                assert (folder / path).resolve(strict=True).is_relative_to(folder)
            except (OSError, RuntimeError):  # to nothing, or to itself
                continue
