"""The store in a bucket of a real server: the shared suite, cut wires, killed writers, and what a bucket can suffer."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from components.artifacts import S3Store, bucket, key_of, open_store, read_at, s3, store_url, tree_at
from components.errors import ConfigError, DamagedError, Failure, StoreError, StoreRefused, failure_of
from tests.buckets import Server, Wire, talk_to
from tests.conformance.store_suite import StoreRaces, StoreSuite, make_folder, make_links

ROOT = Path(__file__).parents[2]
night = pytest.mark.nightly
"""For what takes a server half a minute in all, most of it a folder's suite again; one way through is for every day."""
PREFIX = "some/prefix"


@pytest.fixture
def url(bucket_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # The cache lies there.
    return f"s3://{bucket_server.bucket()}/{PREFIX}"


@pytest.fixture
def store(url: str) -> S3Store:
    return S3Store(url)


@night
class TestS3Store(StoreSuite):
    pass


@night
class TestS3Races(StoreRaces):
    pass


def test_objects_folders_and_commits_go_through_a_real_server(store: S3Store, tmp_path: Path) -> None:
    store.put_json("a/r.json", {"x": 1})
    source = make_folder(tmp_path / "in", {"deep/w": b"\x01" * 100_000, "empty": b""})
    make_links(source, {"deep/up": "../folder"})
    (source / "folder").mkdir()
    store.put_tree("a/m", source)
    assert [store.create_json("a/once", value) for value in (1, 2)] == [True, False]
    again = S3Store(store.url, tmp_path / "other")
    assert (again.get_json("a/r.json"), again.get_json("a/once")) == ({"x": 1}, 1)
    assert (again.tree("a/m") / "deep/w").read_bytes() == b"\x01" * 100_000
    assert os.readlink(again.tree("a/m") / "deep/up") == "../folder"
    assert (again.tree("a/m") / "deep/up").is_dir()
    assert again.list("a") == ["a/m", "a/once", "a/r.json"]
    again.delete("a")
    assert store.list() == []


class Inside:
    """The bucket, seen past the store."""

    def __init__(self, server: Server, url: str) -> None:
        self.client, self.name = server.client(), url.split("/")[2]

    def keys(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return [each["Key"] for page in pages for each in page.get("Contents", [])]

    def replace(self, key: str, data: bytes) -> None:
        """Other bytes, and the same words beside them."""
        told = self.client.head_object(Bucket=self.name, Key=key)["Metadata"]
        self.client.put_object(Bucket=self.name, Key=key, Body=data, Metadata=told)

    def part(self, name: str) -> str:
        (key,) = [key for key in self.keys() if key.endswith(f"/{name}")]
        return key


@pytest.fixture
def inside(bucket_server: Server, url: str) -> Inside:
    return Inside(bucket_server, url)


@night
def test_an_object_is_at_its_address_for_whoever_reads_buckets(store: S3Store, inside: Inside) -> None:
    store.put_json("a/r.json", {"x": 1})
    assert store.address("a/r.json") == f"{store.url}/a/r.json"
    found = inside.client.get_object(Bucket=inside.name, Key=f"{PREFIX}/a/r.json")
    assert json.loads(found["Body"].read()) == {"x": 1}
    assert json.loads(read_at(store.address("a/r.json"))) == {"x": 1}
    assert key_of(store.url, store.address("a/r.json")) == "a/r.json"


@night
def test_a_folder_is_at_its_address_for_whoever_does_not_know_the_store(store: S3Store, tmp_path: Path) -> None:
    store.put_tree("a/grown", make_folder(tmp_path / "in", {"task/task.toml": b"1"}))
    found = tree_at(store.address("a/grown"), 1)
    assert found is not None
    assert (found / "task/task.toml").read_bytes() == b"1"
    store.put_bytes("a/object", b"1")
    for address in (store.address("a/object"), store.address("a"), store.url, f"{store.url}/not a key", "s3://bucket"):
        assert tree_at(address, 1) is None


def _lay(inside: Inside, manifest: bytes, parts: str | None = None) -> str:
    """Puts a manifest as its owner likes it, and `owned`, what it might mean, everywhere; its address."""
    digest = hashlib.sha256(manifest).hexdigest()
    told = {"longshell-sha256": digest, "longshell-kind": "tree", "longshell-parts": parts or f".data/x/{digest}/"}
    inside.client.put_object(Bucket=inside.name, Key="x", Body=manifest, Metadata=told)
    inside.client.put_object(Bucket=inside.name, Key=f"{told['longshell-parts']}task.toml", Body=b"owned")
    return f"s3://{inside.name}/x"


@pytest.mark.parametrize("climbs", [True, False])
def test_a_strangers_folder_writes_nothing_elsewhere(inside: Inside, tmp_path: Path, climbs: bool) -> None:
    # Its manifest named files of the job's user, and they were written before anything was looked at.
    outside = tmp_path / "home" / ".profile"
    path = f"../../home/{outside.name}" if climbs else str(outside)
    manifest = json.dumps({path: [5, hashlib.sha256(b"owned").hexdigest(), True]}).encode()
    digest = hashlib.sha256(manifest).hexdigest()
    inside.client.put_object(Bucket=inside.name, Key=f".data/x/{digest}/{path}", Body=b"owned")
    with pytest.raises(DamagedError, match="which is no file below it"):
        tree_at(_lay(inside, manifest), 1 << 20)
    assert not outside.exists()


def _told(size: int) -> bytes:
    return json.dumps({"task.toml": [size, hashlib.sha256(b"owned").hexdigest(), False]}).encode()


@night
@pytest.mark.parametrize(
    ("manifest", "parts", "error", "said"),
    [
        (_told(1 << 40), None, StoreRefused, "has 1048576 MiB, more than 1"),
        (_told(4), None, DamagedError, "task.toml has more than 4 bytes"),
        (_told(5), "other/", DamagedError, "its files are said to lie at 'other/'"),
        (b" " * 1_000 + _told(5), None, DamagedError, "x has more than 1000 bytes"),
        (json.dumps({str(number): [] for number in range(9)}).encode(), None, DamagedError, "more than 8 files"),
    ],
)
def test_a_strangers_folder_is_not_fetched_beyond_what_it_may_be(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, manifest: bytes, parts: str | None, error: type, said: str
) -> None:
    monkeypatch.setattr(s3, "LARGEST_MANIFEST", 1_000)
    monkeypatch.setattr(s3, "MOST_ENTRIES", 8)
    with pytest.raises(error, match=said):
        tree_at(_lay(inside, manifest, parts), 1 << 20)
    found = tree_at(_lay(inside, _told(5)), 1 << 20)
    assert found is not None
    assert (found / "task.toml").read_bytes() == b"owned"


@night
def test_changed_bytes_are_never_returned(store: S3Store, inside: Inside) -> None:
    store.put_bytes("k", b"value")
    inside.replace(f"{PREFIX}/k", b"velue")
    with pytest.raises(DamagedError, match="k is corrupt"):
        store.get_bytes("k")
    inside.client.put_object(Bucket=inside.name, Key=f"{PREFIX}/foreign", Body=b"put by someone else")
    with pytest.raises(DamagedError, match="foreign is corrupt"):
        store.get_bytes("foreign")


@night
@pytest.mark.parametrize("what", ["changed", "missing", "manifest"])
def test_a_damaged_folder_is_refused_and_a_new_put_heals_it(
    store: S3Store, inside: Inside, tmp_path: Path, what: str
) -> None:
    source = make_folder(tmp_path / "in", {"a": b"1", "b": b"2"})
    store.put_tree("m", source)
    match what:
        case "changed":
            inside.replace(inside.part("a"), b"3")
        case "missing":
            inside.client.delete_object(Bucket=inside.name, Key=inside.part("a"))
        case "manifest":
            inside.replace(f"{PREFIX}/m", b"{}")
    with pytest.raises(DamagedError, match="m is corrupt"):
        S3Store(store.url).tree("m")
    store.put_tree("m", source)
    assert (S3Store(store.url).tree("m") / "a").read_bytes() == b"1"


@night
def test_a_damaged_copy_on_this_machine_is_fetched_anew(store: S3Store, tmp_path: Path) -> None:
    store.put_tree("m", make_folder(tmp_path / "in", {"a": b"1"}))
    (store.tree("m") / "a").write_bytes(b"2")
    assert (store.tree("m") / "a").read_bytes() == b"1"


@night
def test_a_version_that_was_replaced_leaves_nothing_and_what_is_deleted_neither(
    store: S3Store, inside: Inside, tmp_path: Path
) -> None:
    store.put_tree("m", make_folder(tmp_path / "1", {"a": b"1", "b": b"1"}))
    store.put_tree("m", make_folder(tmp_path / "2", {"a": b"2"}))
    assert len(inside.keys()) == 2
    store.delete("m")
    assert inside.keys() == []


@night
def test_what_an_unfinished_put_left_is_used_by_the_next_and_removed_when_it_is_old(
    store: S3Store, inside: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_folder(tmp_path / "1", {"a": b"1", "b": b"2"})
    store.put_tree("m", first)
    inside.client.delete_object(Bucket=inside.name, Key=f"{PREFIX}/m")  # as if killed just before its commit
    sent: list[str] = []
    upload = bucket.Bucket.upload
    monkeypatch.setattr(
        bucket.Bucket, "upload", lambda self, name, *rest: (sent.append(name), upload(self, name, *rest))
    )
    store.put_tree("m", first)
    assert sent == []
    inside.client.delete_object(Bucket=inside.name, Key=f"{PREFIX}/m")
    started = inside.client.create_multipart_upload(Bucket=inside.name, Key=f"{inside.part('a')}x")
    second = make_folder(tmp_path / "2", {"c": b"3"})
    store.put_tree("m", second)
    assert len(inside.keys()) == 4, "another may be writing them"
    monkeypatch.setattr(s3, "ORPHANED", timedelta(seconds=-5))
    store.put_tree("m", second)
    assert len(inside.keys()) == 2
    assert started["UploadId"]
    assert "Uploads" not in inside.client.list_multipart_uploads(Bucket=inside.name)


@night
def test_stores_beside_each_other_in_a_bucket_do_not_meet(url: str, inside: Inside) -> None:
    one, other, above = S3Store(url), S3Store(f"{url}er"), S3Store(url.removesuffix("/prefix"))
    one.put_bytes("d/x", b"1")
    other.put_bytes("d/y", b"2")
    assert (one.list(), other.list()) == (["d/x"], ["d/y"])
    one.delete("d")
    assert (one.list(), other.list(), above.list()) == ([], ["d/y"], ["prefixer/d/y"])
    for address in (other.address("d/y"), f"s3://{inside.name}/d", "/etc/passwd", f"{url}/../d"):
        with pytest.raises(StoreError, match=r"outside the store|not a store key"):
            key_of(url, address)


@pytest.mark.parametrize(
    "url",
    ["s3://", "s3:///prefix", "s3://a:b@bucket/x", "s3://bucket/x?versionId=1", "s3://bucket/../x", "s3://b/.data"],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="s3://"):
        store_url(url)


@night
def test_a_server_that_ignores_conditions_commits_nothing(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put = bucket.Bucket.put
    monkeypatch.setattr(bucket.Bucket, "put", lambda self, *rest, anew=False: put(self, *rest))
    with pytest.raises(StoreRefused, match=r"ignores conditional writes \(If-None-Match\)"):
        store.create_json("result.json", {})
    assert store.list() == []


@night
def test_a_lost_answer_does_not_make_a_commit_anothers(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store.create_json("first", 1)
    put = bucket.Bucket.put

    def twice(self: bucket.Bucket, *rest: Any, anew: bool = False) -> bool:
        put(self, *rest, anew=anew)
        return put(self, *rest, anew=anew)

    monkeypatch.setattr(bucket.Bucket, "put", twice)
    assert store.create_json("second", 2)
    assert not store.create_json("first", 3)


@pytest.fixture
def wire(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Wire]]:
    """Puts a wire between clients and the server, which is cut so often after 3 MB of a connection."""
    made: list[Wire] = []

    def between(cuts: int) -> Wire:
        made.append(Wire(s3_server, 3_000_000, cuts))
        talk_to(made[-1].server, monkeypatch)
        return made[-1]

    yield between
    for each in made:
        each.close()


@night
def test_a_wire_that_is_cut_in_an_upload_costs_a_retry(
    url: str, wire: Callable[[int], Wire], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "PART_BYTES", 5 << 20)
    cut = wire(2)
    store, source = S3Store(url), make_folder(tmp_path / "in", {"w": os.urandom(11 << 20)})
    store.put_tree("m", source)
    store.put_bytes("k", bytes(7 << 20))
    assert cut.made == 2
    assert (store.tree("m") / "w").read_bytes() == (source / "w").read_bytes()
    assert store.get_bytes("k") == bytes(7 << 20)


@night
def test_a_wire_that_stays_cut_leaves_what_was_there(
    store: S3Store, wire: Callable[[int], Wire], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_tree("m", make_folder(tmp_path / "old", {"w": b"old"}))
    monkeypatch.setattr(bucket, "PART_BYTES", 5 << 20)
    monkeypatch.setattr(bucket, "ATTEMPTS", 2)
    wire(1_000)
    new = make_folder(tmp_path / "new", {"w": bytes(11 << 20)})
    with pytest.raises(StoreError, match="cannot write") as caught:
        S3Store(store.url).put_tree("m", new)
    assert failure_of(caught.value) is Failure.INFRASTRUCTURE
    with pytest.raises(StoreError, match="cannot write"):
        S3Store(store.url).put_bytes("k", bytes(7 << 20))
    assert (store.tree("m") / "w").read_bytes() == b"old"
    assert store.list() == ["m"]
    store.put_tree("m", new)
    assert (store.tree("m") / "w").stat().st_size == 11 << 20


@night
def test_a_writer_that_is_killed_at_any_request_leaves_the_old_folder_or_the_new_one(
    url: str, bucket_server: Server, tmp_path: Path
) -> None:
    before = make_folder(tmp_path / "before", {"a": b"old", "b": b"old"})
    after = make_folder(tmp_path / "after", {"a": b"new", "c": b"new"})
    command = [sys.executable, "-m", "tests.artifacts.s3_victims", url, str(before), str(after)]
    environment = {**os.environ, **bucket_server.environment, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    old, new = {"a": "old", "b": "old"}, {"a": "new", "c": "new"}
    assert [died for died, _ in ends] == [9] * (len(ends) - 1) + [0]
    kinds = [folder for _, folder in ends]
    assert all(folder in (old, new) for folder in kinds)
    assert kinds.index(new) > 5, "the commit is the last but the tidying"
    assert kinds[kinds.index(new) :] == [new] * (len(kinds) - kinds.index(new))


class _Forbidding(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(403)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def _refused(monkeypatch: pytest.MonkeyPatch, server: Server, url: str = "s3://there/is/none") -> StoreError:
    talk_to(server, monkeypatch)
    monkeypatch.setattr(bucket, "ATTEMPTS", 1)
    with pytest.raises(StoreError) as caught:
        open_store(url)
    return caught.value


@night
def test_a_bucket_that_is_not_there_is_named(bucket_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    error = _refused(monkeypatch, bucket_server)
    assert "bucket there: cannot open: there is no such bucket; make it, or correct the address" in str(error)
    assert failure_of(error) is Failure.REFUSED


@night
def test_a_bucket_that_may_not_be_used_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with HTTPServer(("127.0.0.1", 0), _Forbidding) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        error = _refused(monkeypatch, Server("127.0.0.1", server.server_port))
        server.shutdown()
    assert "no permission" in str(error)
    assert failure_of(error) is Failure.REFUSED


@night
def test_without_credentials_it_says_which_to_set(
    bucket_server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    talk_to(bucket_server, monkeypatch)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    bucket._session.cache_clear()
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with pytest.raises(StoreRefused, match="there are no credentials; set AWS_ACCESS_KEY_ID"):
        open_store("s3://bucket/prefix")


@night
def test_a_server_that_does_not_answer_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and does not listen
        error = _refused(monkeypatch, Server("127.0.0.1", held.getsockname()[1]))
    assert "EndpointConnectionError" in str(error)
    assert failure_of(error) is Failure.INFRASTRUCTURE
