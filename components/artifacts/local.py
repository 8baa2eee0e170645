"""The artifact store in a folder.

A key is a relative symbolic link in a readable tree; what it points to lies beside it under `.data/<key>/` and is
named by its own digest. Replacing the link is the one instant at which a put happens, and reading compares content
with name. Within `.data/<key>/` a lock is held only while the link is swapped and older versions are removed.

    campaigns/m-s1/results.json -> ../../.data/campaigns/m-s1/results.json/5f0c…         (an object)
    campaigns/m-s1/sft/model    -> ../../../.data/campaigns/m-s1/sft/model/91ab….tree    (a folder; 91ab….manifest)
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from components.artifacts import manifest as manifests
from components.artifacts.store import address_of, check_key, json_bytes
from components.errors import DamagedError, StoreError

_DATA = ".data"
_TEMPORARY = ".tmp-"
_READ_ATTEMPTS = 3
"""A reader may follow a link whose target a writer replaces in that instant; it then reads the new one."""


class LocalStore:
    """An `ArtifactStore` in one folder of one machine.

    Args:
        to_read: it is there, and need not be writable.
    """

    def __init__(self, root: Path, *, to_read: bool = False) -> None:
        self._root = root.absolute()
        if to_read:
            return
        with self._clear_errors("open", ""):
            (self._root / _DATA).mkdir(parents=True, exist_ok=True)
            if not os.access(self._root, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    @staticmethod
    def is_at(root: Path) -> bool:
        """Whether there is such a store in the folder. Makes none."""
        return (root / _DATA).is_dir()

    @staticmethod
    def is_of(root: Path, place: Path) -> bool:
        """Whether a path below such a folder is the store's. Any folder may have a `.data` of another kind."""
        below = place.relative_to(root)
        return below.parts[0] == _DATA or (root / _DATA / below).exists() or not place.exists()

    @property
    def url(self) -> str:
        """The folder's path."""
        return str(self._root)

    def address(self, key: str) -> str:
        """The path of the readable link."""
        return address_of(self.url, key)

    def put_bytes(self, key: str, data: bytes) -> None:
        """See `ArtifactStore.put_bytes`."""
        with self._clear_errors("write", key), self._scratch(key) as (home, scratch):
            _write(scratch, data)
            self._commit(key, home, {hashlib.sha256(data).hexdigest(): scratch})

    def create_bytes(self, key: str, data: bytes) -> bool:
        """See `ArtifactStore.create_bytes`."""
        with self._clear_errors("write", key), self._scratch(key) as (home, scratch):
            _write(scratch, data)
            return self._commit(key, home, {hashlib.sha256(data).hexdigest(): scratch}, anew=True)

    def get_bytes(self, key: str) -> bytes:
        """See `ArtifactStore.get_bytes`."""
        with self._clear_errors("read", key):
            name, data = self._read(key)
        if hashlib.sha256(data).hexdigest() != name:
            raise DamagedError(f"store {self._root}: {key} is corrupt: {self._target(key)} is not what was put")
        return data

    def put_json(self, key: str, value: Any) -> None:
        """See `ArtifactStore.put_json`."""
        self.put_bytes(key, json_bytes(value))

    def create_json(self, key: str, value: Any) -> bool:
        """See `ArtifactStore.create_json`."""
        return self.create_bytes(key, json_bytes(value))

    def get_json(self, key: str) -> Any:
        """See `ArtifactStore.get_json`."""
        return json.loads(self.get_bytes(key))

    def exists(self, key: str) -> bool:
        """See `ArtifactStore.exists`."""
        link = self._root / check_key(key)
        return link.is_symlink() and link.exists()

    def list(self, prefix: str = "") -> list[str]:
        """See `ArtifactStore.list`."""
        start = self._root / check_key(prefix) if prefix else self._root
        if start.is_symlink():
            return [prefix]
        keys = []
        for parent, folders, names in os.walk(start):
            folders[:] = [name for name in folders if name != _DATA]
            links = [name for name in names + folders if (Path(parent) / name).is_symlink()]
            keys += [(Path(parent) / name).relative_to(self._root).as_posix() for name in links]
        return sorted(key for key in keys if not Path(key).name.startswith("."))

    def put_tree(self, key: str, folder: Path) -> None:
        """See `ArtifactStore.put_tree`."""
        if not folder.is_dir():
            raise StoreError(f"store {self._root}: cannot put {key}: {folder} is not a folder")
        with self._clear_errors("write", key), self._scratch(key) as (home, scratch):
            tree, listing = scratch / "tree", scratch / "manifest"
            tree.mkdir(parents=True)
            contents = manifests.contents_to_keep(folder)
            manifest = contents.with_digests({path: _copy(folder / path, tree / path) for path in contents.files})
            manifests.lay(manifest, tree)
            data = manifests.dump(manifest)
            listing.write_bytes(data)
            _sync(listing)
            for parent, _, _ in os.walk(tree):
                _sync(Path(parent))
            digest = hashlib.sha256(data).hexdigest()
            self._commit(key, home, {f"{digest}.manifest": listing, f"{digest}.tree": tree})

    def tree(self, key: str) -> Path:
        """See `ArtifactStore.tree`."""
        with self._clear_errors("read", key):
            target = self._target(key)
            if target.suffix != ".tree":
                raise StoreError(f"store {self._root}: {key} is an object, not a folder")
            problem = _damage(target)
        if problem:
            raise DamagedError(f"store {self._root}: {key} is corrupt: {problem}")
        return target

    @contextmanager
    def borrowed(self, key: str) -> Iterator[Path]:
        """See `ArtifactStore.borrowed`."""
        yield self.tree(key)

    def delete(self, key: str) -> None:
        """See `ArtifactStore.delete`."""
        with self._clear_errors("delete", key):
            for name in self.list(check_key(key)):
                (self._root / name).unlink(missing_ok=True)
            for path in (self._root / _DATA / key, self._root / key):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)

    def _target(self, key: str) -> Path:
        link = self._root / check_key(key)
        if not link.is_symlink():
            raise StoreError(f"store {self._root}: there is no {key}")
        return Path(os.path.normpath(link.parent / link.readlink()))

    def _read(self, key: str) -> tuple[str, bytes]:
        for _ in range(_READ_ATTEMPTS - 1):
            target = self._target(key)
            try:
                return target.name, target.read_bytes()
            except FileNotFoundError:
                continue
        target = self._target(key)
        return target.name, target.read_bytes()

    @contextmanager
    def _scratch(self, key: str) -> Iterator[tuple[Path, Path]]:
        """The key's data folder, and a name in it for what is being written; removed unless it was committed."""
        home = self._root / _DATA / check_key(key)
        home.mkdir(parents=True, exist_ok=True)
        scratch = home / f"{_TEMPORARY}{os.getpid()}-{uuid.uuid4().hex[:8]}"
        try:
            yield home, scratch
        finally:
            _remove(scratch)

    def _commit(self, key: str, home: Path, written: dict[str, Path], *, anew: bool = False) -> bool:
        """Moves what was written to its final names, swaps the link to the last of them, drops older versions.

        With `anew` only where there is no link. Says whether it did.
        """
        link = self._root / key
        link.parent.mkdir(parents=True, exist_ok=True)
        with (home / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if anew and link.is_symlink():
                return False
            for name, source in written.items():
                _place(source, home / name)
            _sync(home)
            swap = home / f"{_TEMPORARY}{os.getpid()}-link"
            swap.unlink(missing_ok=True)
            swap.symlink_to(os.path.relpath(home / list(written)[-1], link.parent))
            swap.rename(link)
            _sync(link.parent)
            for path in home.iterdir():
                if path.name not in written and path.name != ".lock" and not _in_use(path):
                    _remove(path)
        return True

    @contextmanager
    def _clear_errors(self, verb: str, key: str) -> Iterator[None]:
        """The boundary at which errors of the file system become a `StoreError` that says what to do."""
        try:
            yield
        except StoreError:
            raise
        except OSError as error:
            what = f"{verb} {key}" if key else verb
            hints = {
                errno.ENOSPC: "the disk is full",
                errno.EDQUOT: "the disk quota is used up",
                errno.EACCES: f"no permission in {error.filename or self._root}",
                errno.EPERM: f"no permission in {error.filename or self._root}",
                errno.EROFS: "the file system is read-only",
            }
            reason = hints.get(error.errno or 0, error.strerror or str(error))
            raise StoreError(f"store {self._root}: cannot {what}: {reason}") from error


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _place(source: Path, target: Path) -> None:
    """Renames, unless the same folder is there already and intact: someone may be reading it."""
    if target.is_dir():
        manifest = manifests.parse(target.with_suffix(".manifest").read_bytes())
        if manifests.difference(manifest, target) is None:
            return
        shutil.rmtree(target)
    source.rename(target)


def _damage(tree: Path) -> str | None:
    """What is wrong with a stored folder, in words; None when nothing is."""
    listing = tree.with_suffix(".manifest")
    if not listing.is_file():
        return "its manifest is missing"
    data = listing.read_bytes()
    if hashlib.sha256(data).hexdigest() != tree.stem:
        return "its manifest has changed"
    return manifests.difference(manifests.parse(data), tree)


def _copy(source: Path, target: Path) -> manifests.FileDigest:
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as stream, target.open("xb") as sink:
        digest = manifests.digest_of(stream, sink)
        os.fchmod(sink.fileno(), 0o755 if digest.executable else 0o644)
        sink.flush()
        os.fsync(sink.fileno())
    return digest


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _in_use(path: Path) -> bool:
    """Whether a temporary belongs to a writer that is still alive."""
    if not path.name.startswith(_TEMPORARY):
        return False
    pid = path.name.removeprefix(_TEMPORARY).partition("-")[0]
    return Path("/proc", pid).exists()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
