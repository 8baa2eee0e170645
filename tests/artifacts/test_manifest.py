"""Manifests of stored folders, those of strangers too: no path in one leads out of its folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from components.artifacts.manifest import FileDigest, dump, files_below, parse
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
    manifest = {path: FileDigest(0, "0" * 64, True) for path in files_below(tmp_path)}
    assert parse(dump(manifest)) == manifest


@pytest.mark.parametrize(
    "row", [[-1, "0" * 64, False], [True, "0" * 64, False], ["1", "0" * 64, False], [1, "0", False], [1, 2, False], [1]]
)
def test_a_row_that_is_no_digest_is_refused(row: list[object]) -> None:
    with pytest.raises(StoreError, match="another version, or is damaged"):
        parse(json.dumps({"a": row}).encode())


def test_what_is_nested_without_end_is_refused() -> None:
    with pytest.raises(StoreError, match="another version, or is damaged"):
        parse(b"[" * 100_000)
