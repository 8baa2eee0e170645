"""Task directories from a bucket: a real server, and keys that no file system would have."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from components.artifacts import S3Store
from components.config import PoolConfig
from components.errors import StoreError, TaskError
from components.pool import Split, generate, import_tasks, index_folder
from components.pool.bucket import fetch
from components.pool.directory import write_task

BUCKET, SECOND = "pools", "train-00001"

pytestmark = pytest.mark.nightly


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import boto3
    from moto.server import ThreadedMotoServer  # seconds that only a night has

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in (
        ("AWS_ENDPOINT_URL_S3", f"http://{host}:{port}"),
        ("AWS_ACCESS_KEY_ID", "nobody"),
        ("AWS_SECRET_ACCESS_KEY", "nothing"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ):
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket=BUCKET)
    yield client
    server.stop()


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    for task in islice(generate(PoolConfig(), Split.TRAIN, seed=3), 3):
        write_task(task, folder / task.task_id)
    return folder


def upload(client: Any, folder: Path, prefix: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), BUCKET, f"{prefix}/{path.relative_to(folder)}")


def test_a_prefix_is_imported_like_a_folder_and_its_archives_too(bucket: Any, tasks: Path, tmp_path: Path) -> None:
    upload(bucket, tasks / "train-00000", "v1/train-00000")
    upload(bucket, tasks / SECOND, f"v1/{SECOND}")
    upload(bucket, tasks, "v10/other")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(tasks / "train-00002", "train-00002")
    bucket.put_object(Bucket=BUCKET, Key="v1/more.tar.gz", Body=packed.getvalue())
    bucket.put_object(Bucket=BUCKET, Key="v1/", Body=b"")
    bucket.put_object(Bucket=BUCKET, Key="v1/x/../../../escaped", Body=b"x")
    bucket.put_object(Bucket=BUCKET, Key=f"v1/{SECOND}/task.toml/below", Body=b"x")
    # A part over 255 bytes was an OSError of the whole import, tried again as infrastructure.
    long = [f"v1/{SECOND}/{'x' * 256}", f"v1/{'x' * 256}/y", f"v1/{SECOND}/{'é' * 128}"]
    for key in long:
        bucket.put_object(Bucket=BUCKET, Key=key, Body=b"x")

    left_out = {each.task: each.detail for each in import_tasks([f"s3://{BUCKET}/v1"], tmp_path / "pool")}
    assert left_out.keys() == {"v1/x/../../../escaped", f"v1/{SECOND}/task.toml/below", *long}
    assert all("too long" in left_out[key] for key in long)
    assert "leads out of its prefix" in left_out["v1/x/../../../escaped"]
    pool = index_folder(tmp_path / "pool")
    assert [ref.task_id for ref in pool.refs] == ["train-00000", SECOND, "train-00002"]
    assert [ref.digest for ref in pool.refs] == [ref.digest for ref in index_folder(tasks).refs]


def test_a_pool_that_a_store_keeps_in_a_bucket_is_imported_by_its_address(
    bucket: Any, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # The cache.
    store = S3Store(f"s3://{BUCKET}/longshell")
    store.put_tree("campaigns/c-s1/grown", tasks)
    address = store.address("campaigns/c-s1/grown")
    # Its address is that of one object, its manifest: as a prefix it held no task.
    assert import_tasks([address], tmp_path / "pool") == []
    assert [ref.digest for ref in index_folder(tmp_path / "pool").refs] == [
        ref.digest for ref in index_folder(tasks).refs
    ]


def test_what_cannot_be_had_from_a_bucket_is_an_error_with_its_address(
    bucket: Any, tasks: Path, tmp_path: Path
) -> None:
    upload(bucket, tasks / SECOND, f"v1/{SECOND}")
    for number, (url, error, said) in enumerate(
        (
            (f"s3://{BUCKET}/v2", TaskError, "nothing is there"),
            ("s3://elsewhere/v1", StoreError, "NoSuchBucket"),
            ("s3://", TaskError, "is no s3://bucket/prefix"),
            (f"s3://{BUCKET}/v1", TaskError, "more than 0"),
        )
    ):
        with pytest.raises(error, match=said):
            fetch(url, tmp_path / str(number), 1)
