"""Folders of a distant store on this machine, by the digest of their manifest.

Invariants: a folder appears whole and verified, by renaming; one process fetches it, and the others wait for that one;
what is used is removed by nobody, its own process neither. What was got is used until the process ends, what was
borrowed until it is given back. Unused folders of this user are removed beyond `MOST_BYTES`, the longest unused first,
and what a fetch that was killed has left at once.

Of a folder `<digest>.tree`, `<digest>.lock` is held, shared, by those who use it; `<digest>.fetch` by who fetches it
into `<digest>.part`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from components.artifacts import manifest as manifests
from components.errors import StoreError

MOST_BYTES = 100 << 30
"""Kept for those who ask again."""


class TreeCache:
    """The cache in one folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}
        """Digest of what was got to the descriptor of its lock."""

    @staticmethod
    def place(url: str) -> Path:
        """The folder for a store, of this user alone."""
        name = hashlib.sha256(url.encode()).hexdigest()[:8]
        return Path(tempfile.gettempdir()) / f"longshell-store-{os.getuid()}-{name}"

    def get(self, digest: str, manifest: manifests.Manifest, fetch: Callable[[Path], None]) -> Path:
        """The folder of this manifest: verified, or fetched into a new one. It stays while this process lives.

        Raises:
            DamagedError, StoreError: what `fetch` raises, or the cache cannot be written.
        """
        with self._clear_errors():
            self._require()
            with self._lock:
                if digest not in self._held:
                    self._held[digest] = self._take(f"{digest}.lock", fcntl.LOCK_SH)
            return self._whole(digest, manifest, fetch)

    @contextmanager
    def borrowed(self, digest: str, manifest: manifests.Manifest, fetch: Callable[[Path], None]) -> Iterator[Path]:
        """`get` for what is needed within a block only.

        Raises:
            DamagedError, StoreError: see `get`.
        """
        with self._clear_errors():
            self._require()
            descriptor = self._take(f"{digest}.lock", fcntl.LOCK_SH)
        try:
            with self._clear_errors():
                folder = self._whole(digest, manifest, fetch)
            yield folder
        finally:
            os.close(descriptor)

    def _require(self) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._root.stat().st_uid != os.getuid():
            raise StoreError(f"cache {self._root} is another user's; set TMPDIR to a folder of your own")

    def _whole(self, digest: str, manifest: manifests.Manifest, fetch: Callable[[Path], None]) -> Path:
        """The folder, which whoever asks holds."""
        target, part = self._root / f"{digest}.tree", self._root / f"{digest}.part"
        if _is_whole(target, manifest):
            return target
        fetching = self._take(f"{digest}.fetch", fcntl.LOCK_EX)
        try:
            if _is_whole(target, manifest):  # Another has fetched it meanwhile.
                return target
            for left in (target, part):  # Damaged, or of one who was killed.
                shutil.rmtree(left, ignore_errors=True)
            part.mkdir()
            fetch(part)
            part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
            os.close(fetching)
        self._tidy()
        return target

    def _take(self, name: str, how: int) -> int:
        """The descriptor of a lock, taken; closing it lets go, and so does the end of the process."""
        descriptor = os.open(self._root / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, how)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def _tidy(self) -> None:
        for part in self._root.glob("*.part"):
            self._remove(part, f"{part.stem}.fetch")
        kept = 0
        for used, size, tree in sorted(map(_measured, self._root.glob("*.tree")), reverse=True):
            kept += size
            if used and kept > MOST_BYTES:
                self._remove(tree, f"{tree.stem}.lock")

    def _remove(self, folder: Path, lock: str) -> None:
        """Removes a folder whose lock nobody holds."""
        with suppress(BlockingIOError):
            descriptor = self._take(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        """The boundary at which errors of the file system become a `StoreError`."""
        try:
            yield
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(f"cache {self._root}: {error.strerror or error}") from error


def _is_whole(folder: Path, manifest: manifests.Manifest) -> bool:
    """Whether the folder is there, with what belongs into it. Asking counts as using it."""
    if not folder.is_dir() or manifests.difference(manifest, folder) is not None:
        return False
    os.utime(folder)
    return True


def _measured(tree: Path) -> tuple[float, int, Path]:
    """When a folder was used, and its bytes; zeros when another process has just removed it."""
    try:
        size = sum((tree / path).stat().st_size for path in manifests.contents_of(tree).files)
        return tree.stat().st_mtime, size, tree
    except FileNotFoundError:
        return 0.0, 0, tree
