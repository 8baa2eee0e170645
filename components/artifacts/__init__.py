"""Where everything that outlives a process is kept: pools, checkpoints, step records, results, reports."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from components.artifacts.local import LocalStore
from components.artifacts.store import ArtifactStore, address_of
from components.errors import ConfigError

__all__ = ["ArtifactStore", "LocalStore", "address_of", "open_store", "store_url"]


def open_store(url: str | Path) -> ArtifactStore:
    """Opens the store at a path or a `file://` URL, making the folder when it is absent.

    Raises:
        ConfigError: the URL names a kind of store that does not exist.
        StoreError: the folder cannot be made or written.
    """
    return LocalStore(Path(store_url(url)))


def store_url(url: str | Path) -> str:
    """The `url` of the store that `open_store` would open: an absolute path. Opens nothing.

    Raises:
        ConfigError: as `open_store`.
    """
    parts = urlsplit(str(url))
    if parts.scheme == "s3":
        raise ConfigError([f"{url}: the S3 store is not built yet; use a folder"], "artifact store")
    if parts.scheme not in ("", "file"):
        raise ConfigError([f"{url}: no store of kind {parts.scheme}://; use a folder"], "artifact store")
    return str(Path(url2pathname(parts.path) if parts.scheme else url).absolute())
