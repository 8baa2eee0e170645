"""The artifact store as its users see it: named objects and named folders, atomic and verified.

Invariants, kept by every implementation and tested by `tests/conformance/store_suite.py`: a key names either one
complete object or nothing; a writer killed at any instant leaves the previous object in place; bytes that differ from
what was put are never returned, a `DamagedError` is raised instead; deleting what is absent is no error.
"""

from __future__ import annotations

import json
import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from components.errors import StoreError

_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+@-]*")


class ArtifactStore(Protocol):
    """Objects and folders under slash-separated keys."""

    @property
    def url(self) -> str:
        """What `open_store` needs to open this store again, in any process."""
        ...

    def put_bytes(self, key: str, data: bytes) -> None:
        """Stores `data` under `key`, replacing what was there in one instant."""
        ...

    def create_bytes(self, key: str, data: bytes) -> bool:
        """Stores `data` under `key` unless something is there; says whether it did. Of several at once one does."""
        ...

    def get_bytes(self, key: str) -> bytes:
        """The bytes under `key`, verified.

        Raises:
            DamagedError: its content is not what was put.
            StoreError: the key is absent, or cannot be read.
        """
        ...

    def put_json(self, key: str, value: Any) -> None:
        """Stores a JSON document, indented for people."""
        ...

    def create_json(self, key: str, value: Any) -> bool:
        """Stores a JSON document unless something is there; says whether it did."""
        ...

    def get_json(self, key: str) -> Any:
        """The JSON document under `key`, verified."""
        ...

    def exists(self, key: str) -> bool:
        """Whether `key` names an object or a folder."""
        ...

    def list(self, prefix: str = "") -> list[str]:
        """Keys at or below the folder-like `prefix`, sorted."""
        ...

    def put_tree(self, key: str, folder: Path) -> None:
        """Stores a copy of what is below `folder` under one key, replacing what was there in one instant.

        Links that stay within the folder, wherever they lead there, and empty folders are kept as such. In place of a
        link that leads out, or goes up again after it went down, the file that it leads to is stored.

        Raises:
            StoreError: such a link leads to no file, or the folder cannot be read or written.
        """
        ...

    def tree(self, key: str) -> Path:
        """A read-only folder with exactly what was put, verified against its manifest.

        It stays while this process lives and nobody replaces or deletes it.

        Raises:
            DamagedError: they are not what was put.
            StoreError: the key is absent, or cannot be read.
        """
        ...

    def borrowed(self, key: str) -> AbstractContextManager[Path]:
        """`tree` for as long as a block lasts: for what is read once, of which there are many."""
        ...

    def address(self, key: str) -> str:
        """Where people and other tools find the object: a path or a URL."""
        ...

    def delete(self, key: str) -> None:
        """Forgets `key` and everything below it."""
        ...


def address_of(url: str, key: str) -> str:
    """Where the object lies of a store whose `url` this is: a path or a URL. Pure."""
    return f"{url.rstrip('/')}/{check_key(key)}"


def key_of(url: str, address: str) -> str:
    """The inverse of `address_of`.

    Raises:
        StoreError: the address is not within that store.
    """
    start = f"{url.rstrip('/')}/"
    if not address.startswith(start):
        raise StoreError(f"{address} is outside the store {url}")
    return check_key(address.removeprefix(start))


def json_bytes(value: Any) -> bytes:
    """A JSON document as it is stored: indented for people."""
    return (json.dumps(value, indent=1) + "\n").encode()


def check_key(key: str) -> str:
    """Returns `key` if it is well-formed.

    Raises:
        StoreError: a segment is empty, starts with a dot, or has a character outside [A-Za-z0-9_.=+@-].
    """
    if not key or not all(_SEGMENT.fullmatch(segment) for segment in key.split("/")):
        raise StoreError(f"{key!r} is not a store key: segments of [A-Za-z0-9_.=+@-], none starting with a dot")
    return key
