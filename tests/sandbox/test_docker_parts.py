"""Parts of the docker backend that need no engine."""

from __future__ import annotations

import json
import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.config import SandboxConfig
from components.sandbox import leases
from components.sandbox.docker import changes, profile, reaper
from components.sandbox.zygote import frames, seccomp


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


def test_what_only_the_other_backend_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"docker.build_network"):
        SandboxConfig(backend="docker", build_network="proxy", hosts=("*",))


@pytest.mark.parametrize(
    ("changed", "left"),
    [
        ({}, False),
        ({reaper.DEADLINE: "5"}, False),
        ({reaper.HOST: "elsewhere", reaper.DEADLINE: "5"}, True),
        ({reaper.HOST: "elsewhere", reaper.OWNER: '{"pid":1,"started":1,"boot":"x","pid_namespace":1}'}, False),
        ({reaper.OWNER: '{"pid":1,"started":1,"boot":"x","pid_namespace":1}'}, True),
    ],
)
def test_only_what_is_nobody_s_is_removed(changed: dict[str, str], left: bool) -> None:
    found = {**reaper.labels("lease", 100), **changed}
    assert reaper.is_left(found, leases.current_owner(), socket.gethostname(), time.time()) is left
