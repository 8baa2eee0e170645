"""Copies of stored folders on this machine: what is used stays, what is not goes when there is too much of it."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from components.artifacts import cache
from components.artifacts import manifest as manifests
from components.artifacts.cache import TreeCache
from components.errors import StoreError


def _wanted(name: str) -> tuple[str, manifests.Manifest]:
    """A folder that holds one file of 1,000 bytes."""
    data = name.encode().ljust(1_000)
    files = {"file": manifests.FileDigest(len(data), hashlib.sha256(data).hexdigest(), False)}
    return hashlib.sha256(name.encode()).hexdigest(), manifests.Manifest(files, {}, frozenset())


def _fetching(name: str, fetched: list[str]) -> Callable[[Path], None]:
    def fetch(into: Path) -> None:
        fetched.append(name)
        (into / "file").write_bytes(name.encode().ljust(1_000))

    return fetch


def ask(of: TreeCache, name: str, fetched: list[str]) -> Path:
    return of.get(*_wanted(name), _fetching(name, fetched))


def test_a_folder_is_fetched_once(tmp_path: Path) -> None:
    fetched: list[str] = []
    first, again = (ask(TreeCache(tmp_path), "a", fetched) for _ in range(2))
    assert first == again
    assert fetched == ["a"]


def test_a_fetch_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(into: Path) -> None:
        (into / "half").write_bytes(b"1")
        raise StoreError("the wire was cut")

    with pytest.raises(StoreError, match="the wire was cut"):
        TreeCache(tmp_path).get("d", {}, fail)
    assert {path.name for path in tmp_path.iterdir()} == {"d.lock", "d.fetch"}


def _killed_fetching(root: Path, name: str) -> None:
    """A process that is killed in the midst of fetching a folder."""
    if pid := os.fork():
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
        return

    def die(into: Path) -> None:
        (into / "half").write_bytes(b"1")
        os.kill(os.getpid(), signal.SIGKILL)

    TreeCache(root).get(*_wanted(name), die)


@pytest.mark.parametrize("then", ["killed", "other"])
def test_what_a_killed_fetch_left_goes_with_the_next_one(tmp_path: Path, then: str) -> None:
    # Scratch of a name of its own was swept by nobody.
    _killed_fetching(tmp_path, "killed")
    assert len(list(tmp_path.glob("*.part/half"))) == 1
    folder = ask(TreeCache(tmp_path), then, [])
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [folder]
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_a_fetch_that_goes_on_is_waited_for_and_not_swept(tmp_path: Path) -> None:
    fetched: list[str] = []
    with ThreadPoolExecutor(1) as pool:

        def slow(into: Path) -> None:
            fetched.append("slow")
            waiting.append(pool.submit(ask, TreeCache(tmp_path), "slow", fetched))
            ask(TreeCache(tmp_path), "other", fetched)
            (into / "file").write_bytes(b"slow".ljust(1_000))

        waiting: list[Future[Path]] = []
        folder = TreeCache(tmp_path).get(*_wanted("slow"), slow)
        assert waiting[0].result() == folder
    assert fetched == ["slow", "other"]


def test_beyond_the_limit_the_longest_unused_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_BYTES", 2_500)
    folders = []
    for name, used in (("1", 100), ("2", 300), ("3", 200)):
        with TreeCache(tmp_path).borrowed(*_wanted(name), _fetching(name, [])) as folder:
            folders.append(folder)
        os.utime(folder, (used, used))
    last = ask(TreeCache(tmp_path), "4", [])
    assert set(tmp_path.glob("*.tree")) == {folders[1], last}


def test_what_was_got_is_removed_by_nobody_however_much_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A leg asks for its checkpoint once and for a batch every step: the seventeenth took the checkpoint away.
    monkeypatch.setattr(cache, "MOST_BYTES", 0)
    other, own, fetched = TreeCache(tmp_path), TreeCache(tmp_path), list[str]()
    got = {ask(other, "of another", fetched), ask(own, "checkpoint", fetched)}
    for step in map(str, range(20)):
        with own.borrowed(*_wanted(step), _fetching(step, fetched)) as batch:
            assert set(tmp_path.glob("*.tree")) == {*got, batch}
    assert len(fetched) == 22


def test_what_is_borrowed_stays_until_it_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_BYTES", 0)
    own = TreeCache(tmp_path)
    with own.borrowed(*_wanted("a"), _fetching("a", [])) as folder:
        with own.borrowed(*_wanted("b"), _fetching("b", [])):
            assert folder.exists()
        with own.borrowed(*_wanted("a"), _fetching("a", [])):
            pass
        with own.borrowed(*_wanted("c"), _fetching("c", [])):
            assert folder.exists()
    with own.borrowed(*_wanted("d"), _fetching("d", [])):
        assert not folder.exists()


def test_what_another_process_removes_meanwhile_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(TreeCache(tmp_path), "gone", [])
    contents_of = manifests.contents_of

    def removed(folder: Path) -> manifests.Contents:
        found = contents_of(folder)
        if folder.stem == _wanted("gone")[0]:
            shutil.rmtree(folder)
        return found

    monkeypatch.setattr(manifests, "contents_of", removed)
    assert ask(TreeCache(tmp_path), "a", []).is_dir()


def test_a_cache_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 4_711)
    with pytest.raises(StoreError, match="another user's"):
        ask(TreeCache(tmp_path), "a", [])
