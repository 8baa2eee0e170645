"""Where everything that outlives a process is kept: pools, checkpoints, step records, results, reports."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from components.artifacts.local import LocalStore
from components.artifacts.store import ArtifactStore
from components.errors import ConfigError

__all__ = ["ArtifactStore", "LocalStore", "open_store"]


def open_store(url: str | Path) -> ArtifactStore:
    """Opens the store at a path or a `file://` URL, making the folder when it is absent.

    Raises:
        ConfigError: the URL names a kind of store that does not exist.
        StoreError: the folder cannot be made or written.
    """
    parts = urlsplit(str(url))
    if parts.scheme == "":
        return LocalStore(Path(url))
    if parts.scheme == "file":
        return LocalStore(Path(url2pathname(parts.path)))
    if parts.scheme == "s3":
        raise ConfigError([f"{url}: the S3 store is not built yet; use a folder"], "artifact store")
    raise ConfigError([f"{url}: no store of kind {parts.scheme}://; use a folder"], "artifact store")
