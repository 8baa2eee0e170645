"""The artifact store in a bucket, or below a prefix of one: Amazon's S3, or whatever speaks it.

A key is one object, `<prefix>/<key>`. Of bytes it is the bytes; of a folder it is the folder's manifest, whose files
lie under `<prefix>/.data/<key>/<manifest digest>/`, each put before it. Writing that one object is the instant at which
a put happens, since a bucket shows an object whole or not at all, one of several parts too. Every object says its
sha256; what is read is held against it, and against the manifest.

Region, address and credentials are the AWS client's own (`AWS_ENDPOINT_URL_S3`, `AWS_PROFILE`, the instance's role).
Folders are read from a cache on this machine (`components.artifacts.cache`).
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from components.artifacts import manifest as manifests
from components.artifacts.bucket import Bucket, Head
from components.artifacts.cache import TreeCache
from components.artifacts.store import address_of, check_key, json_bytes
from components.errors import ConfigError, DamagedError, StoreError, StoreRefused

SCHEME = "s3"
THREADS = 8
"""Transfers at once."""
ORPHANED = timedelta(days=1)
"""Files of a put that was never finished are removed by a later put of the key, when nobody can be writing them.

Of a key that is not put again they stay: who else may still write there cannot be known."""
LARGEST_MANIFEST = 256 << 20
"""Bytes: of two million files. More is no folder of ours, and would be read into memory."""
MOST_ENTRIES = 2_000_000
"""Of files, links and empty folders: the last take few bytes of a manifest, and a folder of the disk."""
LONGEST_NAME = 1_024
"""Bytes of UTF-8. A file's path may have four times as many, and need not be of UTF-8."""
_DATA = ".data"
_BY_DIGEST = ".digest-"
"""Begins the names of objects of files that have no name of their own."""
_PROBES = ".probe"
_SHA256, _KIND, _WRITER = "longshell-sha256", "longshell-kind", "longshell-writer"
_PARTS = "longshell-parts"
"""Beside a manifest: what the names of the folder's files begin with, for those who do not know the store's prefix."""
_OBJECT, _TREE = "object", "tree"
_READ_ATTEMPTS = 3
"""A reader may meet files of a version that a writer removes in that instant; it then reads the new one."""
_Ask = Callable[[str, manifests.Manifest, Callable[[Path], None]], Path]


class S3Store:
    """An `ArtifactStore` in a bucket.

    Args:
        url: `s3://bucket/prefix`, or `s3://bucket`.
        cache: folder for what is read; None for one of this user's, in the machine's folder for temporary files.

    Raises:
        ConfigError: `url` is no such address, or boto3 is not installed.
        StoreRefused: there is no such bucket, or it may not be used.
        StoreError: it does not answer.
    """

    def __init__(self, url: str, cache: Path | None = None) -> None:
        self._url = s3_url(url)
        name, _, prefix = self._url.removeprefix(f"{SCHEME}://").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._bucket = Bucket(name)
        self._bucket.require()
        self._cache = TreeCache(TreeCache.place(self._url) if cache is None else cache)
        self._honours: bool | None = None
        """Whether the server was seen to honour conditions."""

    @property
    def url(self) -> str:
        """`s3://bucket/prefix`."""
        return self._url

    def address(self, key: str) -> str:
        """Where the object is; of a folder, its manifest."""
        return address_of(self._url, key)

    def put_bytes(self, key: str, data: bytes) -> None:
        """See `ArtifactStore.put_bytes`."""
        self._bucket.put(self._name(key), data, _described(data, _OBJECT))

    def create_bytes(self, key: str, data: bytes) -> bool:
        """See `ArtifactStore.create_bytes`.

        Raises:
            StoreRefused: the server takes the condition and ignores it.
        """
        self._require_conditions()
        return self._create(self._name(key), data)

    def get_bytes(self, key: str) -> bytes:
        """See `ArtifactStore.get_bytes`."""
        data, told = self._read(key)
        if told[_KIND] != _OBJECT:
            raise StoreError(f"store {self._url}: {key} is a folder, not an object")
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
        return self._bucket.head(self._name(key)) is not None

    def list(self, prefix: str = "") -> list[str]:
        """See `ArtifactStore.list`."""
        if not prefix:
            # Everything that begins with `.data/` or `.probe/` is before every key.
            found = self._bucket.list(self._prefix, after=f"{self._prefix}/")
            return sorted(name.removeprefix(self._prefix) for name, _ in found)
        start = self._name(prefix)
        if self._bucket.head(start) is not None:
            return [prefix]
        return sorted(name.removeprefix(self._prefix) for name, _ in self._bucket.list(f"{start}/"))

    def put_tree(self, key: str, folder: Path) -> None:
        """See `ArtifactStore.put_tree`. What an earlier attempt has put is not sent again."""
        if not folder.is_dir():
            raise StoreError(f"store {self._url}: cannot put {key}: {folder} is not a folder")
        name, manifest = self._name(key), _manifest_of(folder)
        data = manifests.dump(manifest)
        digest, before = hashlib.sha256(data).hexdigest(), self._tree_digest(key)

        def put(path: str) -> None:
            part, expected = _part(self._parts(key, digest), path), manifest.files[path]
            described = {_SHA256: expected.sha256, _KIND: _OBJECT}
            # The same folder again: whoever puts it may want to heal it.
            if before == digest or not _is(self._bucket.head(part), expected):
                self._bucket.upload(part, folder / path, described)

        _in_parallel(put, manifest.files)
        self._bucket.put(name, data, {**_described(data, _TREE), _PARTS: self._parts(key, digest)})
        self._forget(key, before, digest)

    def tree(self, key: str, most: int | None = None) -> Path:
        """See `ArtifactStore.tree`.

        Raises:
            StoreRefused: its files have more than `most` bytes. None was fetched.
        """
        return self._cached(key, self._cache.get, most)

    @contextmanager
    def borrowed(self, key: str) -> Iterator[Path]:
        """See `ArtifactStore.borrowed`."""
        with ExitStack() as block:
            yield self._cached(key, lambda *wanted: block.enter_context(self._cache.borrowed(*wanted)))

    def is_tree(self, key: str) -> bool:
        """Whether `key` names a folder."""
        return self._tree_digest(key) is not None

    def delete(self, key: str) -> None:
        """See `ArtifactStore.delete`. Names go first: nothing is seen of which a part is missing."""
        _in_parallel(self._bucket.delete, [self._name(name) for name in self.list(check_key(key))])
        self._drop(f"{self._prefix}{_DATA}/{key}/")

    def _name(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _parts(self, key: str, digest: str) -> str:
        return f"{self._prefix}{_DATA}/{key}/{digest}/"

    def _read(self, key: str, most: int | None = None) -> tuple[bytes, Mapping[str, str]]:
        """What an object of at most so many bytes holds, verified, and the words beside it."""
        found = self._bucket.get(self._name(key), most)
        if found is None:
            raise StoreError(f"store {self._url}: there is no {key}")
        data, told = found
        if hashlib.sha256(data).hexdigest() != told.get(_SHA256) or _KIND not in told:
            raise DamagedError(f"store {self._url}: {key} is corrupt: {self.address(key)} is not what was put")
        return data, told

    def _tree_digest(self, key: str) -> str | None:
        """Digest of the manifest of a folder; None of an object, or of nothing."""
        found = self._bucket.head(self._name(key))
        return None if found is None or found.told.get(_KIND) != _TREE else found.told.get(_SHA256)

    def _cached(self, key: str, ask: _Ask, most: int | None = None) -> Path:
        """What the cache gives of a folder."""
        for _ in range(_READ_ATTEMPTS):
            data, told = self._read(key, LARGEST_MANIFEST)
            if told[_KIND] != _TREE:
                raise StoreError(f"store {self._url}: {key} is an object, not a folder")
            if data.count(b"[") > MOST_ENTRIES:
                raise DamagedError(f"store {self._url}: {key} has more than {MOST_ENTRIES} files and folders")
            digest, manifest = hashlib.sha256(data).hexdigest(), manifests.parse(data)
            size = sum(each.size for each in manifest.files.values())
            if most is not None and size > most:
                raise StoreRefused(f"store {self._url}: {key} has {size >> 20} MiB, more than {most >> 20}")
            parts = told.get(_PARTS, "")
            if parts not in _places_of(self._name(key), digest):
                raise DamagedError(f"store {self._url}: {key} is corrupt: its files are said to lie at {parts!r}")
            try:
                return ask(digest, manifest, partial(self._fetch, key, parts, manifest))
            except DamagedError:
                if self._tree_digest(key) == digest:
                    raise
        raise StoreError(f"store {self._url}: {key} is replaced faster than it can be read")

    def _fetch(self, key: str, parts: str, manifest: manifests.Manifest, into: Path) -> None:
        def fetch(path: str) -> None:
            target = into / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if not self._bucket.download(_part(parts, path), target, manifest.files[path].size):
                raise DamagedError(f"store {self._url}: {key} is corrupt: {path} is missing")
            target.chmod(0o755 if manifest.files[path].executable else 0o644)

        _in_parallel(fetch, manifest.files)
        manifests.lay(manifest, into)
        if (problem := manifests.difference(manifest, into)) is not None:
            raise DamagedError(f"store {self._url}: {key} is corrupt: {problem}")

    def _forget(self, key: str, before: str | None, now: str) -> None:
        """Removes the files of the version that was replaced, and those of puts that were given up long ago."""
        home, limit = f"{self._prefix}{_DATA}/{key}/", datetime.now(UTC) - ORPHANED
        replaced = None if before == now else before
        old = [
            name
            for name, changed in self._bucket.list(home)
            if (version := name.removeprefix(home).partition("/")[0]) == replaced
            or (version != now and changed < limit)
        ]
        _in_parallel(self._bucket.delete, old)
        self._bucket.abandon(home, limit)

    def _drop(self, start: str) -> None:
        _in_parallel(self._bucket.delete, [name for name, _ in self._bucket.list(start)])

    def _create(self, name: str, data: bytes) -> bool:
        """Whether it was this call that made the object. A lost answer does not make it another's."""
        writer = uuid.uuid4().hex
        if self._bucket.put(name, data, {**_described(data, _OBJECT), _WRITER: writer}, anew=True):
            return True
        found = self._bucket.head(name)
        return found is not None and found.told.get(_WRITER) == writer

    def _require_conditions(self) -> None:
        """Asks once whether the server honours `If-None-Match`: some take it and overwrite all the same."""
        if self._honours is None:
            name = f"{self._prefix}{_PROBES}/{uuid.uuid4().hex}"
            self._bucket.put(name, b"1", {})
            self._honours = not self._bucket.put(name, b"2", {}, anew=True)
            self._bucket.delete(name)
        if not self._honours:
            raise StoreRefused(
                f"store {self._url}: its server ignores conditional writes (If-None-Match), so two jobs could both "
                "commit one result; use a server that honours them"
            )


def s3_url(url: str) -> str:
    """The normal form of `s3://bucket/prefix`: no slash at its end.

    Raises:
        ConfigError: it is no such address.
    """
    parts = urlsplit(url)
    prefix = parts.path.strip("/")
    if parts.scheme != SCHEME or not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigError([f"{url!r} is no s3://bucket/prefix"], "artifact store")
    if prefix:
        try:
            check_key(prefix)
        except StoreError as error:
            raise ConfigError([f"{url!r}: {error}"], "artifact store") from error
    return f"{SCHEME}://{parts.netloc}" + (f"/{prefix}" if prefix else "")


def _places_of(name: str, digest: str) -> set[str]:
    """Where the files of a folder may lie whose manifest is the object `name`, whatever the prefix of its store."""
    parts = name.split("/")
    starts = ["/".join([*parts[:cut], _DATA, *parts[cut:]]) for cut in range(len(parts))]
    return {f"{start}/{digest}/" for start in starts}


def _part(parts: str, path: str) -> str:
    """The name of the object of a file: of its path below `parts`, or where no name can be that, of its digest."""
    plain = f"{parts}{path}"
    if path.isprintable() and not path.startswith(_BY_DIGEST) and len(plain.encode()) <= LONGEST_NAME:
        return plain
    return f"{parts}{_BY_DIGEST}{hashlib.sha256(os.fsencode(path)).hexdigest()}"


def _described(data: bytes, kind: str) -> dict[str, str]:
    return {_SHA256: hashlib.sha256(data).hexdigest(), _KIND: kind}


def _manifest_of(folder: Path) -> manifests.Manifest:
    contents, digests = manifests.contents_to_keep(folder), {}
    for path in contents.files:
        with (folder / path).open("rb") as stream:
            digests[path] = manifests.digest_of(stream)
    return contents.with_digests(digests)


def _is(head: Head | None, expected: manifests.FileDigest) -> bool:
    """Whether an object says that it is this file."""
    return head is not None and (head.size, head.told.get(_SHA256)) == (expected.size, expected.sha256)


def _in_parallel(work: Callable[[str], None], names: Iterable[str]) -> None:
    """Does something to every name; the first error ends it, when what was begun has ended."""
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            for _ in pool.map(work, names):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
