"""Copies of stored folders on this machine: what is used stays, what is not goes when there is too much of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from components.artifacts import cache
from components.artifacts import manifest as manifests
from components.artifacts.cache import TreeCache
from components.errors import StoreError


def ask(of: TreeCache, name: str, fetched: list[str]) -> Path:
    """Asks for a folder that holds one file of 1,000 bytes."""
    data = name.encode().ljust(1_000)
    manifest = {"file": manifests.FileDigest(len(data), hashlib.sha256(data).hexdigest(), False)}

    def fetch(into: Path) -> None:
        fetched.append(name)
        (into / "file").write_bytes(data)

    return of.get(hashlib.sha256(name.encode()).hexdigest(), manifest, fetch)


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
    assert [path.name for path in tmp_path.iterdir()] == ["d.lock"]


def test_beyond_the_limit_the_longest_unused_goes_but_never_what_another_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MOST_BYTES", 2_500)
    monkeypatch.setattr(cache, "HELD", 1)
    other, fetched = TreeCache(tmp_path), list[str]()
    used = ask(other, "used", fetched)
    own = TreeCache(tmp_path)
    paths = [ask(own, name, fetched) for name in ("1", "2", "3", "4")]
    assert used.is_dir()
    assert paths[-1].is_dir()
    assert not paths[0].exists()
    assert len([path for path in (used, *paths) if path.exists()]) <= 4


def test_a_cache_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 4_711)
    with pytest.raises(StoreError, match="another user's"):
        ask(TreeCache(tmp_path), "a", [])
