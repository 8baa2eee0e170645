"""Task directories from elsewhere: the sound ones come in whole, every other one has a reason."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from components.artifacts import LocalStore
from components.config import PoolConfig
from components.errors import TaskError
from components.pool import Pool, Split, choose, directory_digest, generate, import_tasks, imported, index_folder
from components.pool.directory import write_task
from tests.sandbox.test_archive import header
from tests.sandbox.test_unpack import too_long_to_follow

SOUND = "train-00000"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Twenty task directories."""
    folder = tmp_path / "source"
    for task in islice(generate(PoolConfig(), Split.TRAIN, seed=3), 20):
        write_task(task, folder / task.task_id)
    return folder


def break_in_every_way(source: Path) -> dict[str, tuple[str, str]]:
    """Breaks all but the first; gives by task the reason and a part of the detail that are expected."""
    tasks = {path.name: path for path in sorted(source.iterdir())}
    names = iter(sorted(set(tasks) - {SOUND}))
    expected: dict[str, tuple[str, str]] = {}

    def next_task(reason: str, detail: str) -> Path:
        name = next(names)
        expected[name] = reason, detail
        return tasks[name]

    (next_task("unsafe", "environment/out: is a link that leads out") / "environment/out").symlink_to("../../..")
    (next_task("unsafe", "tests/etc: is a link that leads out") / "tests/etc").symlink_to("/etc")
    (next_task("unsafe", "environment/loop: is a link") / "environment/loop").symlink_to("loop")
    (next_task("unsafe", "tests/winding: is a link that") / "tests/winding").symlink_to("../environment/../tests")
    (next_task("unsafe", "tests/odd: is a link to what is no UTF-8") / "tests/odd").symlink_to(os.fsdecode(b"\xff"))
    os.mkfifo(next_task("unsafe", "environment/pipe: is neither") / "environment/pipe")
    with (next_task("unsafe", "environment/huge: more than 256 MiB") / "environment/huge").open("wb") as file:
        file.truncate((256 << 20) + 1)
    (next_task("unusable", "task.toml: missing") / "task.toml").unlink()
    (next_task("unusable", "task.toml: not valid TOML") / "task.toml").write_text("[task")
    (next_task("unusable", "schema_version") / "task.toml").write_text('schema_version = "9.0"\n')
    (next_task("unusable", "instruction.md: not UTF-8 (byte 0)") / "instruction.md").write_bytes(b"\xff\xfe")
    (next_task("unusable", "instruction.md: empty") / "instruction.md").write_text(" \n")
    shutil.rmtree(next_task("unusable", "tests/: missing") / "tests")
    (next_task("unusable", "tests/: test.sh is missing") / "tests/test.sh").unlink()
    (next_task("unusable", "solution/: solve.sh is missing") / "solution/solve.sh").unlink()
    (next_task("unusable", "Dockerfile is missing") / "environment/Dockerfile").unlink()
    compose = next_task("unusable", "compose environments are not supported")
    (compose / "environment/docker-compose.yaml").write_text("services: {}\n")
    copy = next_task("copy", f"has the content of {SOUND}")
    shutil.rmtree(copy)
    shutil.copytree(source / SOUND, copy)
    odd = next_task("unsafe", "")
    del expected[odd.name]
    expected["-rf task"] = "unsafe", "the name '-rf task'"
    odd.rename(source / "-rf task")
    (source / "gone").symlink_to("nowhere")
    expected["gone"] = "unsafe", "is a link"
    return expected


def test_every_defect_is_named_and_no_sound_task_is_left_out(source: Path, tmp_path: Path) -> None:
    expected = break_in_every_way(source)
    left_out = {each.task: (each.reason, each.detail) for each in import_tasks([source], tmp_path / "pool")}
    assert left_out.keys() == expected.keys()
    for task, (reason, detail) in expected.items():
        assert left_out[task][0] == reason, task
        assert detail in left_out[task][1], task
    sound = {path.name for path in source.iterdir()} - expected.keys()
    assert len(sound) == 1
    assert {path.name for path in (tmp_path / "pool").iterdir()} == sound
    for task in sound:
        assert directory_digest(tmp_path / "pool" / task) == directory_digest(source / task)


def test_a_task_with_links_within_it_and_an_empty_folder_is_as_it_was_indexed_when_a_store_gives_it(
    source: Path, tmp_path: Path
) -> None:
    # The store dropped both: curation passed, and the first leg that drew the task was refused.
    task = source / SOUND
    (task / "environment" / "empty").mkdir()
    for place, target in (("tests/all", "../environment"), ("tests/same.sh", "test.sh"), ("tests/later", "not/yet")):
        (task / place).symlink_to(target)
    assert import_tasks([task], tmp_path / "pool") == []
    indexed = index_folder(tmp_path / "pool")
    store = LocalStore(tmp_path / "store")
    store.put_tree("pool", indexed.folder)
    assert Pool(store.tree("pool")).load(SOUND).ref.digest == directory_digest(task)


def test_importing_again_gives_the_same_and_leaves_nothing_beside_it(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "pool"
    folder.parent.mkdir()
    for _ in range(2):
        assert import_tasks([source], folder) == []
        assert [path.name for path in folder.parent.iterdir()] == ["pool"]
    (source / SOUND / "task.toml").unlink()
    assert [each.task for each in import_tasks([source], folder)] == [SOUND]
    assert not (folder / SOUND).exists(), "an earlier import is replaced"


def test_a_name_that_is_no_utf_8_is_told_in_letters_that_every_table_takes(source: Path, tmp_path: Path) -> None:
    odd = os.fsdecode(b"odd-\xff")
    shutil.copytree(source / SOUND, source / odd)
    (source / SOUND / "environment" / odd).write_text("x")
    told = {each["task"]: each["detail"] for each in (e.to_json() for e in import_tasks([source], tmp_path / "pool"))}
    assert told.keys() == {"odd-\\udcff", SOUND}
    assert "environment/odd-" in told[SOUND]
    assert "the name is no UTF-8" in told[SOUND]
    json.dumps(told, ensure_ascii=False).encode()


def test_a_task_with_folders_in_each_other_without_end_costs_no_other(source: Path, tmp_path: Path) -> None:
    # A RecursionError ended the import of all.
    deep = os.open(source / "train-00001" / "tests", os.O_RDONLY)
    for _ in range(sys.getrecursionlimit() + 100):
        os.mkdir("a", dir_fd=deep)
        below = os.open("a", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    try:
        (left_out,) = import_tasks([source], tmp_path / "pool")
    finally:
        subprocess.run(["rm", "-rf", source / "train-00001"], check=True)  # Python, pytest above all, could not.
    assert (left_out.task, left_out.reason) == ("train-00001", "unsafe")
    assert left_out.detail == "tests: has more than 100 folders in each other"


def test_what_a_killed_import_left_is_gone_after_the_next(source: Path, tmp_path: Path) -> None:
    """A job puts the folder around the pool into the store, whatever is in it."""
    left = tmp_path / ".pool.importing/tasks/half"
    left.mkdir(parents=True)
    import_tasks([source], tmp_path / "pool")
    assert {path.name for path in tmp_path.iterdir()} == {"source", "pool"}
    assert not (tmp_path / "pool/half").exists()


def test_archives_and_single_tasks_are_sources_and_the_first_of_a_name_is_taken(source: Path, tmp_path: Path) -> None:
    archive = tmp_path / "pool.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(source, "export/tasks")
    changed = tmp_path / "train-00001"
    shutil.copytree(source / "train-00001", changed)
    (changed / "instruction.md").write_text("Do something else.")
    left_out = import_tasks([changed, archive], tmp_path / "pool")
    assert [(each.task, each.reason) for each in left_out] == [("train-00001", "name_taken")]
    assert len(list((tmp_path / "pool").iterdir())) == 20
    assert (tmp_path / "pool/train-00001/instruction.md").read_text() == "Do something else."


def test_a_member_of_an_archive_that_leads_out_of_it_is_named_and_spoils_its_own_task_alone(
    source: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "evil.tar"
    with tarfile.open(archive, "w") as file:
        for name in (SOUND, "train-00001", "train-00002"):
            file.add(source / name, name)
        file.add(source / SOUND / "task.toml", "../../escaped")
        out = tarfile.TarInfo("train-00001/environment/out")
        out.type, out.linkname = tarfile.SYMTYPE, "/etc/passwd"
        file.addfile(out)
        out.name = "train-00003"  # in place of the whole task
        file.add(source / out.name, out.name)
        file.addfile(out)
    left_out = {each.task: (each.reason, each.detail) for each in import_tasks([archive], tmp_path / "pool")}
    assert {task: reason for task, (reason, _) in left_out.items()} == {
        "evil.tar": "unsafe",
        "train-00001": "unsafe",
        "train-00003": "unsafe",
    }
    assert "../../escaped: the archive's member cannot be unpacked" in left_out["evil.tar"][1]
    assert "train-00001/environment/out" in left_out["train-00001"][1]
    assert {path.name for path in (tmp_path / "pool").iterdir()} == {SOUND, "train-00002"}
    assert {path.name for path in tmp_path.iterdir()} == {"source", "evil.tar", "pool"}


def test_an_archive_whose_links_cannot_be_followed_writes_nothing_elsewhere(source: Path, tmp_path: Path) -> None:
    # Python's own filter let it through before 3.11.13: it wrote wherever this process could.
    archive, outside = tmp_path / "evil.tar", tmp_path / "outside"
    outside.mkdir()
    with tarfile.open(archive, "w") as file:
        file.add(source / SOUND, SOUND)
        with tarfile.open(fileobj=io.BytesIO(too_long_to_follow(outside))) as evil:
            for member in evil:
                file.addfile(member, evil.extractfile(member) if member.isreg() else None)
    left_out = import_tasks([archive], tmp_path / "pool")
    assert {each.task: each.reason for each in left_out}.get("way") == "unsafe"
    assert list(outside.iterdir()) == []
    assert {path.name for path in (tmp_path / "pool").iterdir()} == {SOUND}


def test_an_archive_of_too_much_is_refused_before_it_is_read_to_its_end(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "large.tar"
    with tarfile.open(archive, "w") as file:
        file.add(source / SOUND, SOUND)
    archive.write_bytes(archive.read_bytes()[:-9000] + b"no header" * 2000)  # its end is not even a tar's
    for name, most, told in (("LARGEST_ARCHIVE", 1, "more than 0 MiB"), ("MOST_MEMBERS", 2, "more than 2 members")):
        with monkeypatch.context() as patch:
            patch.setattr(imported, name, most)
            with pytest.raises(TaskError, match=told):
                import_tasks([archive], tmp_path / "pool")


def test_an_archive_of_headers_alone_is_refused_before_they_are_unpacked(tmp_path: Path) -> None:
    # 1.3 MB of gzip took 300 MiB of memory, and there was no member to refuse.
    much, archive = 4 << 20, tmp_path / "evil.tar.gz"
    archive.write_bytes(gzip.compress(header(b"x", much) + b" " * much, 1))
    with pytest.raises(TaskError, match="larger than any in use"):
        import_tasks([archive], tmp_path / "pool")


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.open), ("bz2", bz2.open), ("xz", lzma.open)])
def test_an_archive_may_be_compressed(source: Path, tmp_path: Path, ending: str, pack: Callable[..., Any]) -> None:
    archive = tmp_path / f"tasks.tar.{ending}"
    with pack(archive, "wb") as content, tarfile.open(fileobj=content, mode="w") as file:
        file.add(source / SOUND, SOUND)
    assert import_tasks([archive], tmp_path / "pool") == []
    assert [path.name for path in (tmp_path / "pool").iterdir()] == [SOUND]


def test_a_damaged_archive_is_an_error_and_leaves_nothing(source: Path, tmp_path: Path) -> None:
    archive = tmp_path / "torn.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(source / SOUND, SOUND)
    archive.write_bytes(archive.read_bytes()[:-200])
    with pytest.raises(TaskError, match="cannot be unpacked"):
        import_tasks([archive], tmp_path / "pool")
    assert {path.name for path in tmp_path.iterdir()} == {"source", "torn.tar.gz"}


def test_a_source_that_is_not_there_and_one_without_a_sound_task_are_errors(source: Path, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="neither a folder nor an archive"):
        import_tasks([tmp_path / "missing"], tmp_path / "pool")
    for task in source.iterdir():
        (task / "task.toml").unlink()
    with pytest.raises(TaskError, match=r"no task can be used\n  - train-00000: unusable: task.toml: missing"):
        import_tasks([source], tmp_path / "pool")
    assert not (tmp_path / "pool").exists()


def test_a_choice_is_the_seeds_and_further_tasks_are_others(source: Path, tmp_path: Path) -> None:
    pool = index_folder(source)
    first, more = (
        choose(pool, tmp_path / name, seed=5, skip=skip, count=count)
        for name, skip, count in (("a", 0, 6), ("b", 6, 99))
    )
    ids = [[ref.task_id for ref in each.refs] for each in (first, more)]
    assert sorted(ids[0] + ids[1]) == sorted(ref.task_id for ref in pool.refs)
    assert ids[0] == [ref.task_id for ref in choose(pool, tmp_path / "again", seed=5, skip=0, count=6).refs]
    assert ids[0] != sorted(ids[0])
    assert more.load(ids[1][0]).instruction
    with pytest.raises(TaskError, match="holds no task"):
        choose(pool, tmp_path / "none", seed=5, skip=20, count=1)
