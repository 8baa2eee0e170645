"""Where everything that outlives a process is kept: pools, checkpoints, step records, results, reports."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from components.artifacts.local import LocalStore
from components.artifacts.s3 import SCHEME, S3Store, s3_url
from components.artifacts.store import ArtifactStore, address_of, check_key, key_of
from components.errors import ConfigError, NoStoreError, StoreError

__all__ = [
    "ArtifactStore",
    "LocalStore",
    "S3Store",
    "address_of",
    "checked",
    "existing_store",
    "key_of",
    "open_store",
    "read_at",
    "store_url",
    "tree_at",
]


def open_store(url: str | Path) -> ArtifactStore:
    """Opens the store at a path, a `file://` URL or `s3://bucket/prefix`. A folder is made when it is absent.

    Raises:
        ConfigError: the URL names a kind of store that does not exist.
        StoreError: the folder cannot be made or written, the bucket cannot be used.
    """
    found = store_url(url)
    return S3Store(found) if found.startswith(f"{SCHEME}://") else LocalStore(Path(found))


def existing_store(url: str | Path) -> ArtifactStore:
    """Opens a store for who only reads: none is made.

    Raises:
        ConfigError: as `open_store`.
        NoStoreError: there is none.
        StoreError: it may not be looked at, or as `open_store`.
    """
    found = store_url(url)
    if not found.startswith(f"{SCHEME}://"):
        try:
            there = LocalStore.is_at(Path(found))
        except OSError as error:
            raise StoreError(f"store {found} cannot be looked at: {error.strerror or error}") from error
        if not there:
            raise NoStoreError(f"there is no store at {found}; a campaign's is var/store below where it was started")
        return LocalStore(Path(found), to_read=True)
    return open_store(found)


def checked(folder: Path) -> Path:
    """A folder that a person named, to be read; where it lies in a store, after it was held against its digest.

    Raises:
        StoreError: the store has no such folder, or it is damaged.
    """
    place = Path(os.path.abspath(folder))  # Links are followed by the store alone.
    for home in place.parents:
        if not LocalStore.is_at(home):
            continue
        for kept in (place, *place.parents):
            if kept.is_symlink() and home in kept.parents:  # It, or what it lies in, is a folder that was put.
                return LocalStore(home, to_read=True).tree(kept.relative_to(home).as_posix()) / place.relative_to(kept)
        if LocalStore.is_of(home, place):
            raise StoreError(f"store {home}: there is no {place.relative_to(home)}")
    return folder


def store_url(url: str | Path) -> str:
    """The `url` of the store that `open_store` would open: an absolute path, or `s3://bucket/prefix`. Opens nothing.

    Raises:
        ConfigError: as `open_store`.
    """
    parts = urlsplit(str(url))
    if parts.scheme == SCHEME:
        return s3_url(str(url))
    if parts.scheme not in ("", "file"):
        known = "use a folder, or s3://bucket/prefix"
        raise ConfigError([f"{url}: no store of kind {parts.scheme}://; {known}"], "artifact store")
    return str(Path(url2pathname(parts.path) if parts.scheme else url).absolute())


def read_at(address: str) -> bytes:
    """The bytes at an address that a store gave (`ArtifactStore.address`), whose own URL is not known yet.

    Raises:
        StoreError: there is nothing, or it cannot be read.
    """
    if not address.startswith(f"{SCHEME}://"):
        try:
            return Path(address).read_bytes()
        except OSError as error:
            raise StoreError(f"{address} cannot be read: {error.strerror or error}") from error
    place, _, name = address.rpartition("/")
    return S3Store(place).get_bytes(name)


def tree_at(address: str, most_bytes: int) -> Path | None:
    """The folder at an address in a bucket that a store gave; None where there is none. The bucket may be a stranger's.

    Raises:
        StoreRefused: the folder has more than `most_bytes`.
        StoreError: the bucket cannot be used, or the folder is damaged.
    """
    place, _, name = address.rstrip("/").rpartition("/")
    try:
        check_key(name)
        url = s3_url(place)
    except (ConfigError, StoreError):  # No store gives such an address.
        return None
    store = S3Store(url)
    return store.tree(name, most_bytes) if store.is_tree(name) else None
