"""Brings what lies under a prefix of an S3 bucket into a folder, to be imported like any other.

Invariants: no key leads out of the folder, whatever it says; what could not be brought is told by its key; a download
that ends early leaves no file that looks whole. Address, region and credentials are the AWS client's own
(`AWS_ENDPOINT_URL_S3`, `AWS_PROFILE`, the instance's role).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from components.artifacts.bucket import Bucket
from components.errors import StoreError, TaskError

SCHEME = "s3://"


def fetch(url: str, folder: Path, most_bytes: int) -> list[tuple[str, str]]:
    """Downloads every object under `url` (`s3://bucket/prefix`) into the new `folder`, by the rest of its key.

    Returns:
        Keys that were left out, each with the reason.

    Raises:
        TaskError: `url` is none, nothing is under it, or more than `most_bytes`; there is no boto3.
        StoreError: the bucket cannot be read.
        OSError: `folder` cannot be written.
    """
    bucket, prefix = _parts(url)
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise TaskError(url, ["needs boto3: install longshell[cluster]"]) from error
    client = boto3.client("s3")
    left_out: list[tuple[str, str]] = []
    folder.mkdir(parents=True)
    try:
        objects = list(_objects(client, bucket, prefix))
        if not objects:
            raise TaskError(url, ["nothing is there"])
        if (size := sum(each for _, each in objects)) > most_bytes:
            raise TaskError(url, [f"holds {size >> 20} MiB, more than {most_bytes >> 20}"])
        for key, _ in objects:
            place = _place(key.removeprefix(prefix).lstrip("/") or PurePosixPath(key).name)
            if place is None:
                left_out.append((key, "the key leads out of its prefix or names no file"))
                continue
            path = folder / place
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                client.download_file(bucket, key, str(path))  # to a temporary name first
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                left_out.append((key, "a part of the key is an object itself"))
                continue
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                left_out.append((key, "a part of the key is too long for the name of a file"))
                continue
            if path.name.endswith(".sh"):  # a bucket keeps no modes
                os.chmod(path, 0o755)
    except (BotoCoreError, ClientError) as error:
        raise StoreError(f"{url}: {error}") from error
    return left_out


def require(url: str) -> None:
    """Asks whether the bucket of `url` is there.

    Raises:
        ConfigError, StoreError: see `components.artifacts.bucket`.
    """
    bucket, _ = _parts(url)
    Bucket(bucket).require()


def _parts(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    if not url.startswith(SCHEME) or not parts.netloc or parts.query or parts.fragment:
        raise TaskError(url, ["is no s3://bucket/prefix"])
    return parts.netloc, parts.path.lstrip("/")


def _objects(client: Any, bucket: str, prefix: str) -> Iterator[tuple[str, int]]:
    """Keys and sizes below a prefix: of `a/b` also `a/b` itself, but not `a/bc`. Folders' own marks are no objects."""
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for each in page.get("Contents", []):
            key = each["Key"]
            below = not prefix or prefix.endswith("/") or key == prefix or key.startswith(f"{prefix}/")
            if below and not key.endswith("/"):
                yield key, each["Size"]


def _place(rest: str) -> PurePosixPath | None:
    place = PurePosixPath(rest)
    strange = place.is_absolute() or any(part in ("..", ".") or "\0" in part for part in rest.split("/"))
    return None if strange or not place.parts else place
