"""What every `ArtifactStore` must do. A backend's test module subclasses `StoreSuite` and gives the `store` fixture."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from components.artifacts import ArtifactStore, open_store
from components.errors import StoreError


def make_folder(root: Path, files: dict[str, bytes]) -> Path:
    """A folder with `files` in it."""
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def make_links(root: Path, links: dict[str, str]) -> None:
    """Links in a folder, to what they say."""
    for name, target in links.items():
        (root / name).symlink_to(target)


class StoreSuite:
    """The behaviour; needs a fixture `store`."""

    def test_what_was_put_is_what_is_read(self, store: ArtifactStore) -> None:
        store.put_bytes("a/b", b"\x00\xff")
        store.put_json("a/c.json", {"x": [1, None, "ß"]})
        assert store.get_bytes("a/b") == b"\x00\xff"
        assert store.get_json("a/c.json") == {"x": [1, None, "ß"]}

    def test_the_last_put_of_a_key_wins(self, store: ArtifactStore) -> None:
        for value in (1, 2, 3):
            store.put_json("k", value)
        assert store.get_json("k") == 3

    def test_an_absent_key_does_not_exist_and_reading_it_names_it(self, store: ArtifactStore) -> None:
        assert not store.exists("no/such")
        for read in (store.get_bytes, store.get_json, store.tree):
            with pytest.raises(StoreError, match="no/such"):
                read("no/such")

    def test_list_gives_the_keys_below_a_prefix_in_order_and_no_others(self, store: ArtifactStore) -> None:
        for key in ("s/2/r.json", "s/1/r.json", "sx/r.json", "s/10/r.json"):
            store.put_bytes(key, b"")
        assert store.list("s") == ["s/1/r.json", "s/10/r.json", "s/2/r.json"]
        assert store.list("nothing") == []
        assert "sx/r.json" in store.list()

    def test_a_folder_comes_back_file_by_file(self, store: ArtifactStore, tmp_path: Path) -> None:
        files = {"config.json": b"{}", "deep/er/w.bin": b"\x01" * 3_000_000, "empty": b""}
        store.put_tree("m/model", make_folder(tmp_path / "in", files))
        folder = store.tree("m/model")
        assert {name: (folder / name).read_bytes() for name in files} == files
        assert store.exists("m/model")
        assert store.list("m") == ["m/model"]

    def test_a_borrowed_folder_is_the_one_that_was_put(self, store: ArtifactStore, tmp_path: Path) -> None:
        store.put_tree("m", make_folder(tmp_path / "in", {"a": b"1"}))
        for _ in range(2):
            with store.borrowed("m") as folder:
                assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"a": b"1"}
        with pytest.raises(StoreError, match="no/such"), store.borrowed("no/such"):
            pass

    def test_a_program_comes_back_executable_and_a_file_does_not(self, store: ArtifactStore, tmp_path: Path) -> None:
        source = make_folder(tmp_path / "in", {"run.sh": b"#!/bin/sh", "data": b"1"})
        (source / "run.sh").chmod(0o755)
        store.put_tree("m", source)
        assert [path.stat().st_mode & 0o111 for path in (store.tree("m") / "run.sh", store.tree("m") / "data")] == [
            0o111,
            0,
        ]

    def test_links_within_a_folder_and_empty_folders_come_back_as_they_were(
        self, store: ArtifactStore, tmp_path: Path
    ) -> None:
        # They were dropped: a task that has them was not the one any more that its pool's index names.
        source = make_folder(tmp_path / "in", {"deep/er/w": b"1", "top": b"2"})
        links = {
            "deep/up": "../top",
            "folder": "deep/er",
            "nowhere": "not/there",
            "self": "self",
            "deep/er/all": "../..",
        }
        make_links(source, links)
        (source / "empty" / "below").mkdir(parents=True)
        store.put_tree("m", source)
        folder = store.tree("m")
        assert {path.relative_to(folder).as_posix() for path in folder.rglob("*")} == {
            path.relative_to(source).as_posix() for path in source.rglob("*")
        }
        assert {name: os.readlink(folder / name) for name in links} == links
        assert (folder / "empty" / "below").is_dir()
        assert (folder / "folder" / "w").read_bytes() == b"1"
        store.put_tree("again", folder)
        assert os.readlink(store.tree("again") / "nowhere") == "not/there"

    def test_files_of_any_name_come_back(self, store: ArtifactStore, tmp_path: Path) -> None:
        # An agent names them, and what it left is put with its evaluation.
        odd, long = os.fsdecode(b"odd-\xff"), "/".join(["x" * 250] * 6)
        files = {odd: b"1", long: b"2", "\n \\": b"3", f".digest-{hashlib.sha256(os.fsencode(odd)).hexdigest()}": b"4"}
        store.put_tree("m", make_folder(tmp_path / "in", files))
        folder = store.tree("m")
        assert {name: (folder / name).read_bytes() for name in files} == files

    def test_a_link_out_of_a_folder_is_kept_as_the_file_it_leads_to_and_what_is_none_is_named(
        self, store: ArtifactStore, tmp_path: Path
    ) -> None:
        source = make_folder(tmp_path / "in", {"a": b"1", "deep/b": b"2"})
        make_folder(tmp_path / "blobs", {"91ab": b"weights"})
        outward = {"model": "../blobs/91ab", "absolute": str(tmp_path / "blobs" / "91ab"), "winding": "deep/../a"}
        make_links(source, outward)
        store.put_tree("m", source)
        folder = store.tree("m")
        assert not any((folder / name).is_symlink() for name in outward)
        assert {name: (folder / name).read_bytes() for name in outward} == {
            "model": b"weights",
            "absolute": b"weights",
            "winding": b"1",
        }
        for target in ("../blobs", "/nowhere"):
            make_links(source, {"out": target})
            with pytest.raises(StoreError, match=rf"/in/out is a link out of the folder, to no file \({target}\)"):
                store.put_tree("m", source)
            (source / "out").unlink()
        os.mkfifo(source / "pipe")
        with pytest.raises(StoreError, match="/in/pipe is neither a file, a folder nor a link"):
            store.put_tree("m", source)
        assert (store.tree("m") / "a").read_bytes() == b"1"

    def test_a_folder_is_replaced_whole(self, store: ArtifactStore, tmp_path: Path) -> None:
        store.put_tree("m", make_folder(tmp_path / "1", {"a": b"1", "b": b"1"}))
        store.put_tree("m", make_folder(tmp_path / "2", {"a": b"2"}))
        assert [path.name for path in store.tree("m").iterdir()] == ["a"]

    def test_putting_the_same_folder_again_leaves_the_readers_folder_alone(
        self, store: ArtifactStore, tmp_path: Path
    ) -> None:
        source = make_folder(tmp_path / "in", {"a": b"1"})
        store.put_tree("m", source)
        before = store.tree("m")
        store.put_tree("m", source)
        assert (before / "a").read_bytes() == b"1"

    def test_delete_forgets_a_key_and_all_below_it_and_may_be_repeated(
        self, store: ArtifactStore, tmp_path: Path
    ) -> None:
        store.put_bytes("d/x", b"")
        store.put_tree("d/y/z", make_folder(tmp_path / "in", {"a": b"1"}))
        store.put_bytes("dd", b"")
        store.delete("d")
        store.delete("d")
        assert store.list() == ["dd"]

    @pytest.mark.parametrize("key", ["", "/a", "a//b", "../a", "a/../b", ".data/a", "a b", "a\n"])
    def test_a_malformed_key_is_refused(self, store: ArtifactStore, key: str) -> None:
        with pytest.raises(StoreError, match="not a store key"):
            store.put_bytes(key, b"")

    def test_another_process_opens_it_by_its_url(self, store: ArtifactStore) -> None:
        store.put_json("k", 1)
        assert open_store(store.url).get_json("k") == 1


class StoreRaces:
    """What holds when several use a store at once; needs a fixture `store`."""

    def test_of_all_that_create_a_key_at_once_one_does_and_its_value_stays(self, store: ArtifactStore) -> None:
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda value: store.create_json("once", value), range(8)))
        assert made.count(True) == 1
        assert store.get_json("once") == made.index(True)
        assert not store.create_bytes("once", b"later")
        assert store.get_json("once") == made.index(True)
        store.delete("once")
        assert store.create_bytes("once", b"anew")

    def test_readers_beside_writers_see_one_whole_value(self, store: ArtifactStore) -> None:
        values = [bytes([n]) * 20_000 for n in range(4)]
        store.put_bytes("k", values[0])

        def write(value: bytes) -> None:
            for _ in range(15):
                store.put_bytes("k", value)

        def read() -> None:
            for _ in range(60):
                assert store.get_bytes("k") in values

        with ThreadPoolExecutor() as pool:
            jobs = [pool.submit(write, value) for value in values] + [pool.submit(read) for _ in range(2)]
            for job in jobs:
                job.result()
