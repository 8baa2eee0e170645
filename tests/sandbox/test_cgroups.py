"""Control groups of both versions, on folders that look like their hierarchies."""

from __future__ import annotations

from pathlib import Path

from components.sandbox.zygote import cgroups

LIMITS = cgroups.Limits(memory_bytes=1 << 27, pids=64, cpus=0.5)


def test_version_2_gets_one_group_with_its_limits(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    found = cgroups.find(str(tmp_path))
    assert found is not None
    assert found.version == 2
    cgroups.open_lease(found, "lease")
    (path,) = cgroups.create(found, "lease", "box", LIMITS)
    assert path == str(tmp_path / "longshell" / "lease" / "box")
    written = {file.name: file.read_text() for file in Path(path).iterdir()}
    assert written == {
        "memory.max": "134217728",
        "memory.swap.max": "0",
        "pids.max": "64",
        "cpu.max": "50000 100000",
    }
    Path(path, "memory.events").write_text("low 0\nhigh 0\noom 3\noom_kill 2\n")
    assert cgroups.oom_kills(found, "lease", "box") == 2
    assert cgroups.reached_limit(found, "lease", "box")
    Path(path, "memory.events").write_text("low 0\nhigh 0\noom 0\noom_kill 2\noom_group_kill 0\n")
    assert not cgroups.reached_limit(found, "lease", "box")


def test_version_1_gets_one_group_a_controller(tmp_path: Path) -> None:
    for name in ("memory", "pids", "cpu"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").write_text("")
    found = cgroups.find(str(tmp_path))
    assert found is not None
    assert found.version == 1
    cgroups.open_lease(found, "lease")
    memory, pids, cpu = cgroups.create(found, "lease", "box", LIMITS)
    assert Path(memory, "memory.limit_in_bytes").read_text() == "134217728"
    for most, reached in ((1 << 26, False), (1 << 27, True), ((1 << 27) - (1 << 21), True)):
        Path(memory, "memory.max_usage_in_bytes").write_text(f"{most}\n")
        assert cgroups.reached_limit(found, "lease", "box") == reached
    assert Path(pids, "pids.max").read_text() == "64"
    assert Path(cpu, "cpu.cfs_quota_us").read_text() == "50000"


def test_without_memory_and_process_limits_there_are_no_groups(tmp_path: Path) -> None:
    assert cgroups.find(str(tmp_path)) is None
    (tmp_path / "cgroup.controllers").write_text("hugetlb\n")
    assert cgroups.find(str(tmp_path)) is None
