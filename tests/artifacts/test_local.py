"""The folder store: the shared suite, and what only a folder can suffer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from components.artifacts import LocalStore, checked, existing_store, open_store, read_at, store_url
from components.errors import ConfigError, DamagedError, Failure, NoStoreError, StoreError, failure_of
from tests.conformance.store_suite import StoreRaces, StoreSuite, make_folder, make_links
from tests.disks import small_disk

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


class TestLocalStore(StoreSuite):
    pass


class TestLocalRaces(StoreRaces):
    pass


def _killed_at(function: str, action: str, root: Path) -> None:
    """Runs `action` in a process that is killed on entering `os.<function>` or `Path.<function>`."""
    script = f"""
        import os, signal
        from pathlib import Path
        from components.artifacts import LocalStore
        store = LocalStore(Path({str(root)!r}))
        def die(*args, **kwargs): os.kill(os.getpid(), signal.SIGKILL)
        {function} = die
        {action}
    """
    process = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("function", ["os.fsync", "Path.rename", "Path.symlink_to"])
def test_a_writer_killed_at_any_call_leaves_the_old_value_and_the_next_put_cleans_up(
    store: LocalStore, tmp_path: Path, function: str
) -> None:
    store.put_bytes("k", b"old")
    _killed_at(function, "store.put_bytes('k', b'new')", Path(store.url))
    assert store.get_bytes("k") == b"old"
    assert store.list() == ["k"]
    store.put_bytes("k", b"newer")
    assert store.get_bytes("k") == b"newer"
    left = [path.name for path in (Path(store.url) / ".data/k").iterdir()]
    assert len([name for name in left if name != ".lock"]) == 1, left


def test_a_folder_whose_writer_was_killed_is_not_there(store: LocalStore, tmp_path: Path) -> None:
    source = make_folder(tmp_path / "in", {"a": b"1"})
    _killed_at("Path.rename", f"store.put_tree('m', Path({str(source)!r}))", Path(store.url))
    assert not store.exists("m")
    with pytest.raises(StoreError, match="there is no m"):
        store.tree("m")


def test_an_address_at_which_nothing_is_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"none\.json cannot be read: No such file"):
        read_at(str(tmp_path / "none.json"))


def test_changed_bytes_are_never_returned(store: LocalStore, tmp_path: Path) -> None:
    store.put_bytes("k", b"value")
    (Path(store.url) / "k").write_bytes(b"velue")
    with pytest.raises(DamagedError, match="k is corrupt"):
        store.get_bytes("k")


def turned(place: Path, target: str) -> None:
    place.unlink()
    place.symlink_to(target)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "a").write_bytes(b"2"), "content of a"),
        (lambda folder: (folder / "a").unlink(), "a is missing"),
        (lambda folder: (folder / "z").write_bytes(b""), "z does not belong"),
        (lambda folder: (folder / "z").mkdir(), "z does not belong"),
        (lambda folder: (folder / "empty").rmdir(), "empty is missing"),
        (lambda folder: turned(folder / "to", "empty"), "to is not a link to a any more"),
        (lambda folder: turned(folder / "a", "to"), "a is not a file any more"),
    ],
)
def test_a_damaged_folder_is_refused_and_a_new_put_heals_it(store, tmp_path: Path, damage, words: str) -> None:
    source = make_folder(tmp_path / "in", {"a": b"1"})
    make_links(source, {"to": "a"})
    (source / "empty").mkdir()
    store.put_tree("m", source)
    damage(store.tree("m"))
    with pytest.raises(StoreError, match=words):
        store.tree("m")
    store.put_tree("m", source)
    assert (store.tree("m") / "a").read_bytes() == b"1"


def test_a_disk_that_fills_at_any_page_leaves_what_was_there_and_the_same_put_succeeds_later(tmp_path: Path) -> None:
    before = make_folder(tmp_path / "before", {"a": b"1", "b/c": b"2"})
    after = make_folder(tmp_path / "after", {"a": b"3" * 20_000, "b/d": b"4", "e": b"5"})
    refusals: list[StoreError] = []

    def refusal(put: Callable[[], None]) -> StoreError | None:
        try:
            put()
        except StoreError as error:
            return error
        return None

    with small_disk(tmp_path / "disk", 2) as disk:
        store = LocalStore(disk.folder)
        store.put_tree("tree", before)
        puts = [lambda: store.put_tree("tree", after), lambda: store.put_bytes("object", b"6" * 10_000)]
        for pages in range(24):
            disk.fill(leave=pages * 4096)
            refusals += [error for put in puts if (error := refusal(put))]
            names = {path.name for path in store.tree("tree").iterdir()}
            assert names in ({"a", "b"}, {"a", "b", "e"})
            assert not store.exists("object") or store.get_bytes("object") == b"6" * 10_000
            assert not list(disk.folder.rglob(".tmp-*"))
            disk.free()
            store.delete("object")
            store.put_tree("tree", before)
        store.put_tree("tree", after)
        assert (store.tree("tree") / "e").read_bytes() == b"5"
    assert 5 < len(refusals) < 40
    assert {failure_of(error) for error in refusals} == {Failure.REFUSED}
    assert all("the disk is full" in str(error) for error in refusals)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"store .*file/store: cannot open"):
        open_store(tmp_path / "file/store")


def test_a_reader_makes_no_store_and_finds_the_one_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(NoStoreError, match="there is no store at"):
        existing_store(tmp_path)
    assert list(tmp_path.iterdir()) == []
    open_store(tmp_path).put_bytes("k", b"1")
    assert existing_store(tmp_path).get_bytes("k") == b"1"


def test_folders_and_buckets_are_stores_and_nothing_else_is(tmp_path: Path) -> None:
    assert open_store(f"file://{tmp_path}/s").url == f"{tmp_path}/s"
    assert store_url("s3://bucket/prefix/") == "s3://bucket/prefix"
    with pytest.raises(ConfigError, match="no store of kind ftp"):
        open_store("ftp://x/y")


def test_a_folder_that_a_person_names_is_held_against_its_digest_where_it_lies_in_a_store(
    store: LocalStore, tmp_path: Path
) -> None:
    store.put_tree("campaigns/c/trials", make_folder(tmp_path / "made", {"batch.json": b"[1]"}))
    named = Path(store.url) / "campaigns" / "c" / ".." / "c" / "trials"
    assert checked(named) == store.tree("campaigns/c/trials")
    assert checked(tmp_path / "made") == tmp_path / "made", "it is of no store"
    file = next(path for path in named.rglob("*") if path.is_file() and path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamagedError, match="campaigns/c/trials is corrupt"):
        checked(named)
    with pytest.raises(StoreError, match="campaigns/c/gone"):
        checked(Path(store.url) / "campaigns" / "c" / "gone")


def test_who_only_reads_needs_no_leave_to_write(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_tree("trials", make_folder(tmp_path / "made", {"batch.json": b"[1]"}))
    monkeypatch.setattr(os, "access", lambda *_: False)  # For root everything is writable.
    with pytest.raises(StoreError, match="no permission"):
        open_store(store.url)
    assert (checked(Path(store.url) / "trials") / "batch.json").read_bytes() == b"[1]"
    assert existing_store(store.url).list() == ["trials"]


def test_a_folder_named_data_does_not_make_a_store_of_what_lies_beside_it(tmp_path: Path) -> None:
    batch = make_folder(tmp_path / "home" / "batch", {"batch.json": b"[1]"})
    (tmp_path / "home" / ".data").mkdir()
    assert checked(batch) == batch


def test_what_a_store_keeps_is_read_under_its_key_alone(store: LocalStore, tmp_path: Path) -> None:
    store.put_tree("c/trials", make_folder(tmp_path / "made", {"batch.json": b"[1]"}))
    for place in (store.tree("c/trials"), Path(store.url) / "c"):
        with pytest.raises(StoreError, match="there is no"):
            checked(place)
