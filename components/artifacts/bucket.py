"""One bucket through boto3: whole objects with a few words beside each, and errors that say what to do.

Invariants: what is put arrives whole or not at all, in parts too; nothing else than a missing object is taken for one;
requests that fail by the network, throttling or a server's fault are sent again with jitter, so are broken answers.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from components.errors import ConfigError, DamagedError, StoreError, StoreRefused

PART_BYTES = 16 << 20
"""Larger files are sent in parts of this size."""
ATTEMPTS = 5
"""Of each request, and of each reading."""
CONNECT_S, ANSWER_S = 10.0, 60.0
_FIRST_PAUSE_S = 0.2
_ABSENT = {"404", "NoSuchKey", "NotFound"}
_FORBIDDEN = {
    *("403", "AccessDenied", "AllAccessDisabled", "AccountProblem", "Forbidden"),
    *("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "InvalidSecurity"),
}
_TAKEN = {"412", "PreconditionFailed"}
_RACED = {"409", "ConditionalRequestConflict"}

_making = threading.Lock()

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of an object without reading it: its size in bytes, and the words beside it."""

    size: int
    told: Mapping[str, str]


class Bucket:
    """A bucket. Its methods may be called from several threads.

    Raises:
        ConfigError: boto3 is not installed.
        StoreRefused: every method: there is no such bucket, or it may not be used.
        StoreError: every method: it does not answer, or fails.
    """

    def __init__(self, name: str) -> None:
        try:
            from boto3.s3.transfer import TransferConfig
            from botocore.config import Config
        except ImportError as error:
            raise ConfigError([f"s3://{name} needs boto3: install longshell[cluster]"], "artifact store") from error
        self._name = name
        # `standard` sends again what the network, throttling or the server spoiled, after pauses with full jitter.
        config = Config(
            retries={"mode": "standard", "max_attempts": ATTEMPTS},
            connect_timeout=CONNECT_S,
            read_timeout=ANSWER_S,
            max_pool_connections=64,
        )
        with self._clear_errors("open"):
            self._client = _client(config)
        self._transfer = TransferConfig(
            multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=4
        )

    def require(self) -> None:
        """Asks whether the bucket is there."""
        with self._clear_errors("open"):
            self._client.head_bucket(Bucket=self._name)

    def put(self, name: str, data: bytes, told: Mapping[str, str], *, anew: bool = False) -> bool:
        """Puts an object; `anew` only where there is none. Says whether it did."""
        digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
        condition = {"IfNoneMatch": "*"} if anew else {}
        with self._clear_errors(f"write {name}"):
            for attempt in range(ATTEMPTS):
                try:
                    self._client.put_object(
                        Bucket=self._name, Key=name, Body=data, Metadata=dict(told), ChecksumSHA256=digest, **condition
                    )
                    return True
                except self._client.exceptions.ClientError as error:
                    if (code := _code(error)) in _TAKEN:
                        return False
                    if code not in _RACED or attempt == ATTEMPTS - 1:
                        raise
                    _pause(attempt)
        raise AssertionError("unreachable")

    def get(self, name: str, most: int | None = None) -> tuple[bytes, Mapping[str, str]] | None:
        """An object's bytes and its words; None where there is none.

        Raises:
            DamagedError: it has more than `most` bytes. It was not read.
        """

        def read() -> tuple[bytes, Mapping[str, str]]:
            answer = self._client.get_object(Bucket=self._name, Key=name)
            if most is not None and answer["ContentLength"] > most:
                answer["Body"].close()
                raise DamagedError(f"bucket {self._name}: {name} has more than {most} bytes")
            return answer["Body"].read(), answer["Metadata"]

        return self._found(f"read {name}", lambda: _again(read))

    def head(self, name: str) -> Head | None:
        """What is known of an object; None where there is none."""

        def ask() -> Head:
            answer = self._client.head_object(Bucket=self._name, Key=name)
            return Head(answer["ContentLength"], answer["Metadata"])

        return self._found(f"read {name}", ask)

    def list(self, prefix: str, after: str = "") -> Iterator[tuple[str, datetime]]:
        """Names that begin with `prefix` and come after `after`, with the time of their last change, in order."""
        start = {"StartAfter": after} if after else {}
        with self._clear_errors(f"list {prefix}"):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._name, Prefix=prefix, **start)
            for page in pages:
                for each in page.get("Contents", []):
                    yield each["Key"], each["LastModified"]

    def delete(self, name: str) -> None:
        """Removes an object, if it is there."""
        with self._clear_errors(f"delete {name}"):
            self._client.delete_object(Bucket=self._name, Key=name)

    def upload(self, name: str, file: Path, told: Mapping[str, str]) -> None:
        """Puts a file, in parts when it is large."""
        extra = {"Metadata": dict(told), "ChecksumAlgorithm": "SHA256"}
        with self._clear_errors(f"write {name}"):
            self._client.upload_file(str(file), self._name, name, ExtraArgs=extra, Config=self._transfer)

    def download(self, name: str, file: Path, most: int) -> bool:
        """Brings an object into a file; whether there was one. A part of it is never seen under the file's name.

        Raises:
            DamagedError: it has more than `most` bytes. The rest was not brought.
        """
        counting, seen = threading.Lock(), 0

        def count(more: int) -> None:  # Below 0 for what an answer that broke off had brought.
            nonlocal seen
            with counting:
                seen += more
                if seen > most:
                    raise DamagedError(f"bucket {self._name}: {name} has more than {most} bytes")

        def fetch() -> bool:
            self._client.download_file(self._name, name, str(file), Callback=count, Config=self._transfer)
            return True

        return self._found(f"read {name}", fetch) is not None

    def abandon(self, prefix: str, before: datetime) -> None:
        """Removes the parts of uploads that began before a time and were never finished."""
        with self._clear_errors(f"list {prefix}"):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self._name, Prefix=prefix)
            for upload in [each for page in pages for each in page.get("Uploads", [])]:
                if upload["Initiated"] < before:
                    self._client.abort_multipart_upload(
                        Bucket=self._name, Key=upload["Key"], UploadId=upload["UploadId"]
                    )

    def _found(self, what: str, ask: Callable[[], T]) -> T | None:
        with self._clear_errors(what):
            try:
                return ask()
            except self._client.exceptions.ClientError as error:
                if _code(error) in _ABSENT:
                    return None
                raise

    @contextmanager
    def _clear_errors(self, what: str) -> Iterator[None]:
        """The boundary at which errors of boto3 become ours, with what to do."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (BotoCoreError, ClientError, Boto3Error) as error:
            cause = error.__context__ if isinstance(error, Boto3Error) else error
            raise self._told(what, cause if isinstance(cause, ClientError) else error) from error

    def _told(self, what: str, error: Exception) -> StoreError:
        from botocore.exceptions import ClientError, NoCredentialsError, PartialCredentialsError

        place = f"bucket {self._name}: cannot {what}"
        if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
            advice = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the machine a role"
            return StoreRefused(f"{place}: there are no credentials; {advice}")
        if isinstance(error, ClientError):
            code = _code(error)
            if code == "NoSuchBucket" or (what == "open" and code in _ABSENT):
                return StoreRefused(f"{place}: there is no such bucket; make it, or correct the address")
            if code in _FORBIDDEN:
                told = error.response.get("Error", {}).get("Message", "")
                return StoreRefused(f"{place}: no permission ({code}: {told}); check credentials and policy")
            return StoreError(f"{place}: {error}")
        return StoreError(f"{place}: {type(error).__name__}: {error}")


@functools.cache
def _session() -> Any:
    """One for the process: it reads what it knows of S3, half a second's work, once."""
    from boto3.session import Session

    return Session()


def _client(config: Any) -> Any:
    with _making:  # A session makes one client at a time; the clients themselves may be shared.
        return _session().client("s3", config=config)


def _again(read: Callable[[], T]) -> T:
    """Reads, anew when an answer breaks off: boto3 sends requests again, but does not read answers again."""
    from botocore.exceptions import IncompleteReadError, ReadTimeoutError, ResponseStreamingError

    for attempt in range(ATTEMPTS - 1):
        try:
            return read()
        except (IncompleteReadError, ReadTimeoutError, ResponseStreamingError):
            _pause(attempt)
    return read()


def _pause(attempt: int) -> None:
    time.sleep(random.uniform(0, _FIRST_PAUSE_S * 2**attempt))


def _code(error: Any) -> str:
    """What the server calls its refusal; of an answer without a body, the HTTP status."""
    return str(error.response.get("Error", {}).get("Code", ""))
