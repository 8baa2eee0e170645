"""Folders of a distant store on this machine, by the digest of their manifest.

Invariants: a folder appears whole and verified, by renaming; what one process uses is not removed by another. A process
uses the last folders that it asked for; others of this user are removed beyond `MOST_BYTES`, the longest unused first.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from components.artifacts import manifest as manifests
from components.errors import StoreError

HELD = 16
"""Folders that a process may use at once: pool, checkpoint, critic, state, and the batches at hand."""
MOST_BYTES = 100 << 30
"""Kept for those who ask again."""


class TreeCache:
    """The cache in one folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._held: OrderedDict[str, int] = OrderedDict()
        """Digest to the descriptor of its lock."""

    @staticmethod
    def place(url: str) -> Path:
        """The folder for a store, of this user alone."""
        name = hashlib.sha256(url.encode()).hexdigest()[:8]
        return Path(tempfile.gettempdir()) / f"longshell-store-{os.getuid()}-{name}"

    def get(self, digest: str, manifest: manifests.Manifest, fetch: Callable[[Path], None]) -> Path:
        """The folder of this manifest: verified, or fetched into a new one.

        Raises:
            DamagedError, StoreError: what `fetch` raises, or the cache cannot be written.
        """
        try:
            with self._lock:
                return self._get(digest, manifest, fetch)
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(f"cache {self._root}: {error.strerror or error}") from error

    def _get(self, digest: str, manifest: manifests.Manifest, fetch: Callable[[Path], None]) -> Path:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._root.stat().st_uid != os.getuid():
            raise StoreError(f"cache {self._root} is another user's; set TMPDIR to a folder of your own")
        target = self._root / f"{digest}.tree"
        self._hold(digest)
        if target.is_dir():
            if manifests.difference(manifest, target) is None:
                os.utime(target)
                return target
            shutil.rmtree(target)
        scratch = self._root / f".tmp-{uuid.uuid4().hex}"
        try:
            scratch.mkdir()
            fetch(scratch)
            self._place(scratch, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        self._tidy()
        return target

    def _place(self, scratch: Path, target: Path) -> None:
        try:
            scratch.rename(target)
        except OSError:  # Another process was faster: the same bytes, verified.
            if not target.is_dir():
                raise

    def _hold(self, digest: str) -> None:
        """Keeps others from removing the folder; lets go of the one that was asked for longest ago."""
        if digest in self._held:
            self._held.move_to_end(digest)
            return
        descriptor = os.open(self._lock_of(digest), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        self._held[digest] = descriptor
        if len(self._held) > HELD:
            _, oldest = self._held.popitem(last=False)
            os.close(oldest)

    def _lock_of(self, digest: str) -> Path:
        return self._root / f"{digest}.lock"

    def _tidy(self) -> None:
        trees = sorted(self._root.glob("*.tree"), key=lambda tree: tree.stat().st_mtime, reverse=True)
        kept = 0
        for tree in trees:
            kept += sum((tree / path).stat().st_size for path in manifests.files_below(tree))
            if kept > MOST_BYTES and tree.stem not in self._held:
                self._remove(tree)

    def _remove(self, tree: Path) -> None:
        """Removes a folder that nobody holds."""
        descriptor = os.open(self._lock_of(tree.stem), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(tree)
        except BlockingIOError:
            return
        finally:
            os.close(descriptor)
