"""Parts of the docker backend that need no engine."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
import requests
import urllib3
from docker.errors import APIError
from hypothesis import given
from hypothesis import strategies as st

from components.config import SandboxConfig
from components.errors import FaultCause, InfraFault
from components.sandbox import leases
from components.sandbox.admission import Admission
from components.sandbox.docker import changes, profile, reaper
from components.sandbox.docker.backend import DockerBackend
from components.sandbox.docker.box import DockerLife
from components.sandbox.docker.engine import Engine
from components.sandbox.docker.images import Image, Images
from components.sandbox.docker.outlet import Outlet
from components.sandbox.docker.stream import HEAD, PIECES_HELD, BoxStream
from components.sandbox.zygote import frames, seccomp, transfer
from components.sandbox.zygote.changes import doubtful, is_asked_for, is_loaded


def test_a_command_at_home_is_the_agent_s_work_where_the_task_names_it_and_its_folder() -> None:
    places = {
        "/root/.local/bin/plan": "Put `plan` into ~/.local/bin.",
        "/root/.cargo/bin/rg": "rg belongs to ~/.cargo/bin/rg",
        "/root/.npmrc": "Write ~/.npmrc.",
    }
    for path, instruction in places.items():
        assert is_loaded(path)
        assert is_asked_for(path, instruction)
        assert not is_asked_for("/root/.local/bin/python3", instruction)
        assert not is_asked_for("/root/.local/bin/env", f"The environment. {instruction}")
    assert not is_loaded("/app/.local/bin/plan")
    assert not is_loaded("/root/.local/bin/tools/plan")
    assert doubtful(["/root/.npmrc", "/root/.local/bin/a\n", "/root/.local/bin/b"]) == [
        "/root/.local/bin",
        "/root/.npmrc",
    ]


@given(st.lists(st.tuples(st.dictionaries(st.text(), st.integers()), st.binary(max_size=50))), st.integers(1, 40))
def test_frames_come_out_as_they_went_in_however_they_are_cut(sent: list[frames.Frame], size: int) -> None:
    stream = b"".join(frames.pack(*frame) for frame in sent)
    unpacker = frames.Unpacker()
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert [frame for piece in pieces for frame in unpacker.feed(piece)] == sent


def test_the_profile_refuses_what_the_boxes_own_filter_refuses_and_leaves_it_the_clock() -> None:
    rules = json.loads(profile.PROFILE)["syscalls"]
    named = {name for rule in rules for name in rule["names"]}
    table = {name for names in seccomp.DENIED.values() for name in names} | {*seccomp.DENIED_EVERYWHERE}
    assert named == (table - {*seccomp.TOLD}) | {*seccomp.ABSENT} | {"clone", "socket"}
    families = [rule["args"][0] for rule in rules if rule["names"] == ["socket"]]
    refused = {each["value"] for each in families if each["op"] == "SCMP_CMP_EQ"}
    assert refused | {*seccomp.FAMILIES} == {*range(17)}
    assert not refused & {*seccomp.FAMILIES}


def test_what_is_of_the_system_is_told_and_the_rest_is_shown() -> None:
    listed = [
        ("/usr", 0), ("/usr/bin", 0), ("/usr/bin/less", 2), ("/usr/lib/a/__pycache__/x.cpython-311.pyc", 1),
        ("/etc/passwd", 0), ("/tests", 1), ("/tests/test.sh", 1), ("/conftest.py", 1), ("/app", 0), ("/app/gone", 2),
        ("/app/new", 1), ("/bin", 0), ("/.longshell", 1),
    ]  # fmt: skip
    found = changes.sort(listed)
    assert found.reverted == ["changed /etc/passwd", "removed /usr/bin/less"]
    assert (found.present, found.removed) == (["/app", "/app/gone", "/app/new"], ["/app/gone"])


def test_a_view_has_the_records_of_a_package_manager_as_the_image_does() -> None:
    listed = [
        ("/var", 0), ("/var/lib", 0), ("/var/lib/dpkg", 0), ("/var/lib/dpkg/status", 0), ("/var/lib/dpkg-mine", 1),
        ("/var/lib/apt", 2), ("/var/cache", 2), ("/var/mail", 2),
    ]  # fmt: skip
    found = changes.sort(listed)
    assert found.present == ["/var", "/var/cache", "/var/lib", "/var/lib/dpkg-mine", "/var/mail"]
    assert found.removed == ["/var/mail"], "what holds records is not removed"


def test_what_is_no_folder_above_the_records_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "lib").symlink_to("/srv")
    paths = [f"{tmp_path}/var", f"{tmp_path}/var/lib", f"{tmp_path}/var/gone"]
    sent: list[bytes] = []
    assert transfer.pack(paths, paths, sent.append) == [f"{tmp_path}/var/lib"]
    with tarfile.open(fileobj=io.BytesIO(b"".join(sent))) as archive:
        assert archive.getnames() == [f"{tmp_path}/var".lstrip("/")]


def test_holes_of_files_are_not_sent_and_are_holes_again(tmp_path: Path) -> None:
    """Eight files of 2 GB without a byte in them were sent as zeros, until the copy's time was up: a fault."""
    full, empty = tmp_path / "full", tmp_path / "empty"
    for path, parts in ((full, {0: b"begin", 5 << 20: b"middle" * 1000}), (empty, {})):
        with path.open("wb") as file:
            for place, data in parts.items():
                file.seek(place)
                file.write(data)
            file.truncate(1 << 30)
        path.chmod(0o750)
    sent: list[bytes] = []
    assert transfer.pack([str(full), str(empty)], [], sent.append) == []
    assert sum(map(len, sent)) < 1 << 20
    for path in (full, empty):
        path.unlink()
    pieces = iter([*sent, b""])
    transfer.unpack(lambda: next(pieces))
    for path in (full, empty):
        assert (path.stat().st_size, path.stat().st_mode & 0o777) == (1 << 30, 0o750)
        assert path.stat().st_blocks * 512 < 1 << 20
    with full.open("rb") as file:
        assert file.read(6) == b"begin\0"
        file.seek(5 << 20)
        assert file.read(6001) == b"middle" * 1000 + b"\0"


def test_what_has_too_long_a_path_is_left_out_and_told(tmp_path: Path) -> None:
    """Nothing of a box was copied when a program had gone down as far as that, in steps."""
    (tmp_path / "kept").write_text("x")
    long = f"{tmp_path}{'/folder' * 900}"
    sent: list[bytes] = []
    assert transfer.pack([f"{tmp_path}/kept", long], [], sent.append) == [long]
    with tarfile.open(fileobj=io.BytesIO(b"".join(sent))) as archive:
        assert archive.getnames() == [f"{tmp_path}/kept".lstrip("/")]


async def test_a_box_over_its_disk_has_who_writes_ended_and_then_its_shells_but_is_no_fault() -> None:
    asked: list[bool] = []

    class Stream:
        async def request(self, body: dict[str, Any], *, timeout_s: float) -> tuple[dict[str, Any], bytes]:
            asked.append(body["spare"])
            return {"ended": ["head"]}, b""

    stream: Any = Stream()
    life = DockerLife("box", Image("image", {}), stream, most_bytes=100)
    admission = Admission(Path("/"), min_free_mb=0, starts_per_s=1)
    backend = DockerBackend(Engine("unix:///nowhere"), SandboxConfig(), admission)
    for held in (100, 101, 101, 102, 50, 101):  # full; over; no more; more; emptied; over again
        await backend._weighed(life, held)
    assert asked == [True, False, True]
    with life.moved():
        await backend._weighed(life, 200)
    assert len(asked) == 3, "who copies its files hears nothing else"


def image_of(name: str, size: int, used: int, *layers: str) -> dict[str, Any]:
    times = {"Created": "2026-01-01T00:00:00Z", "Metadata": {"LastTagTime": f"2026-01-01T00:{used:02d}:00.123456789Z"}}
    return {"Id": name, "RepoTags": [name], "Size": size, "RootFS": {"Layers": list(layers)}, **times}


def test_images_are_collected_by_their_own_room_the_longest_unused_first() -> None:
    found = [
        image_of("debian:12", 100, 0, "a"),
        image_of("longshell/task:old", 130, 1, "a", "b"),
        image_of("longshell/task:busy", 120, 2, "a", "c"),
        image_of("longshell/state:of-old", 135, 3, "a", "b", "d"),
        image_of("longshell/snapshot:kept", 200, 0, "a", "e"),
        image_of("longshell/task:new", 150, 9, "a", "f"),
        image_of("longshell/task:recent", 150, 59, "a", "g"),
    ]

    class Api:
        def images(self) -> list[dict[str, Any]]:
            return found

        def info(self) -> dict[str, Any]:
            return {"SystemTime": "2026-01-01T01:00:00.5Z"}

        def inspect_image(self, name: str) -> dict[str, Any]:
            return next(image for image in found if image["Id"] == name)

        def remove_image(self, name: str) -> None:
            if "busy" in name:
                refusal = requests.Response()
                refusal.status_code = 409
                raise APIError("a box is made of it", refusal)

    # Beside debian's hundred: 30 and 20, 5 over the first, 50 and 50.
    for most, removed in ((155, []), (154, ["old"]), (124, ["old", "of-old"]), (0, ["old", "of-old", "new"])):
        collected = Images(Engine("unix:///nowhere"), "debian:12", "none", most)._collect(Api())
        assert [tag.partition(":")[2] for tag in collected] == removed


def test_what_only_the_other_backend_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"docker.build_network"):
        SandboxConfig(backend="docker", build_network="proxy", hosts=("*",))


@pytest.mark.parametrize(
    ("changed", "left"),
    [
        ({}, False),
        ({reaper.DEADLINE: "5"}, False),
        ({reaper.HOST: "elsewhere", reaper.DEADLINE: "5"}, True),
        (
            {
                reaper.HOST: f"{socket.gethostname()}/of another machine",
                reaper.OWNER: '{"pid":1,"started":1,"boot":"x","pid_namespace":1}',
            },
            False,
        ),
        ({reaper.OWNER: '{"pid":1,"started":1,"boot":"x","pid_namespace":1}'}, True),
    ],
)
def test_only_what_is_nobody_s_is_removed(changed: dict[str, str], left: bool) -> None:
    found = {**reaper.labels("lease", 100), **changed}
    assert reaper.is_left(found, leases.current_owner(), reaper.this_host(), time.time()) is left


def test_what_somebody_made_of_an_image_of_ours_is_not_removed() -> None:
    ended = reaper.labels("another", 100) | {reaper.OWNER: '{"pid":1,"started":1,"boot":"x","pid_namespace":1}'}
    removed: list[str] = []

    class Api:
        def containers(self, **_: Any) -> list[dict[str, Any]]:
            return [
                {"Id": "1", "Names": ["/ours"], "Labels": ended},
                {"Id": "2", "Names": ["/somebodys"], "Labels": {**ended, reaper.LEASE: ""}},
            ]

        def volumes(self, **_: Any) -> dict[str, Any]:
            return {"Volumes": []}

        def remove_container(self, name: str, **_: Any) -> None:
            removed.append(name)

    engine = Engine("unix:///nowhere")
    engine.api = Api()
    assert reaper.reap(engine, "mine", lambda _: True) == ["ours"]
    assert removed == ["1"]


def test_an_engine_that_falls_silent_amid_an_answer_is_a_fault() -> None:
    def cut(_: Any) -> None:
        raise urllib3.exceptions.ProtocolError("cut")

    with pytest.raises(InfraFault, match="does not answer"):
        Engine("unix:///nowhere").call_now("build", cut, FaultCause.IMAGE)


class Writer:
    """A transport's end that takes what is written once it is `free`."""

    def __init__(self) -> None:
        self.said: list[frames.Frame] = []
        self.free = asyncio.Event()
        self._frames = frames.Unpacker()

    def write(self, data: bytes) -> None:
        self.said += self._frames.feed(data)

    async def drain(self) -> None:
        await self.free.wait()

    def close(self) -> None:
        pass


class Reader(asyncio.StreamReader):
    """Counts what was read of it."""

    pieces = 0

    async def readexactly(self, n: int) -> bytes:
        self.pieces += n == HEAD.size
        return await super().readexactly(n)

    def say(self, *said: frames.Frame) -> None:
        for frame in said:
            data = frames.pack(*frame)
            self.feed_data(HEAD.pack(1, len(data)) + data)


async def _why() -> str:
    return "it ended"


@pytest.mark.asyncio
async def test_a_box_that_says_what_is_no_message_is_given_up_at_once() -> None:
    reader, writer = Reader(), Writer()
    stream: Any = BoxStream((reader, writer), "box", _why)  # type: ignore[arg-type]
    asked = asyncio.create_task(stream.request({"op": "ping"}, timeout_s=30))
    await asyncio.sleep(0)
    reader.feed_data(HEAD.pack(1, 12) + b"\4\0\0\0\0\0\0\0oops")
    with pytest.raises(InfraFault, match="no message"):
        await asyncio.wait_for(asked, 5)


@pytest.mark.asyncio
async def test_files_are_copied_no_faster_than_the_other_box_takes_them() -> None:
    (source, from_), (reader, to) = (Reader(), Writer()), (Reader(), Writer())
    one, other = (BoxStream(ends, "box", _why) for ends in ((source, from_), (reader, to)))  # type: ignore[arg-type]
    many = 4 * PIECES_HELD
    copying = asyncio.create_task(one.copy_to(other, changes.Changes(["/x"], [], []), 30))
    while not from_.said:
        await asyncio.sleep(0)
    source.say(*(({"piece": 1}, b"%d" % number) for number in range(many)), ({"id": 1, "left": ["/var"]}, b""))
    for _ in range(20 * many):
        await asyncio.sleep(0)
    assert source.pieces <= PIECES_HELD + 3
    to.free.set()
    reader.say(({"id": 1}, b""))
    copied = await asyncio.wait_for(copying, 5)
    assert (copied.size, copied.left) == (sum(len(b"%d" % number) for number in range(many)), ["/var"])
    said = [blob for body, blob in to.said if body["op"] == "piece"]
    assert said == [*(b"%d" % number for number in range(many)), b""]
    one.close("done")
    other.close("done")


@pytest.mark.asyncio
async def test_nothing_more_is_fetched_for_a_program_that_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        on_connection: Any = None
        brought = 0

        async def request(self, body: dict[str, Any], blob: bytes, *, timeout_s: float) -> None:
            self.brought += len(blob)

        def post(self, body: dict[str, Any]) -> None:
            pass

    cut = asyncio.Event()

    async def without_end(sock: socket.socket) -> None:
        _, writer = await asyncio.open_connection(sock=sock)
        try:
            while True:
                writer.write(bytes(1 << 16))
                await writer.drain()
        except OSError:
            cut.set()
            writer.close()

    stream: Any = Stream()
    outlet = Outlet(stream, ("*",))
    monkeypatch.setattr(outlet._proxy, "answer", without_end)
    stream.on_connection({"net": 1, "opened": True}, b"")
    while not stream.brought:
        await asyncio.sleep(0)
    stream.on_connection({"net": 1, "gone": True}, b"")
    await asyncio.wait_for(cut.wait(), 5)
    outlet.close()
