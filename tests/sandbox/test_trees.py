"""Folders that programs of a box have filled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from components.sandbox import SandboxSpec, ZygoteBackend, leases
from components.sandbox.zygote import changes, trees
from tests.conformance.sandbox_suite import sh

DEPTH = 1100
"""More than Python recurses, and a path that is longer than the kernel takes."""
DIG = f"import os\nfor _ in range({DEPTH}): os.mkdir('ddd'); os.chdir('ddd')\nopen('end', 'w').write('here')"


def dig(folder: Path) -> None:
    """A tree that is too deep for a path, with a file at its end."""
    place = os.open(folder, trees.FOLDER)
    for _ in range(DEPTH):
        os.mkdir("ddd", dir_fd=place)
        inner = os.open("ddd", trees.FOLDER, dir_fd=place)
        os.close(place)
        place = inner
    os.close(os.open("end", os.O_CREAT | os.O_WRONLY, dir_fd=place))
    os.close(place)


def entries(folder: Path) -> int:
    root = os.open(folder, trees.FOLDER)
    try:
        return sum(1 for _ in trees.everything(root))
    finally:
        os.close(root)


def test_a_folder_is_removed_however_deep_and_closed_and_nothing_outside_of_it(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("kept")
    folder = tmp_path / "folder"
    folder.mkdir()
    dig(folder)
    (folder / "out").symlink_to(tmp_path)
    (folder / "closed").mkdir()
    (folder / "closed" / "inner").write_text("x")
    (folder / "closed").chmod(0)
    assert entries(folder) == DEPTH + 4
    trees.remove(folder)
    assert list(tmp_path.iterdir()) == [kept]
    trees.remove(folder)


def test_what_was_left_deep_is_swept_with_its_lease(tmp_path: Path) -> None:
    """A RecursionError in the sweep refused every later start."""
    owner = leases.Owner(1, 1, "another boot", 1)
    leases.record(tmp_path / "leases", "1-1-1-00000000", owner)
    box = tmp_path / "boxes" / "1-1-1-00000000" / "box1"
    box.mkdir(parents=True)
    dig(box)
    assert leases.sweep(tmp_path / "leases", tmp_path / "boxes") == ["1-1-1-00000000"]
    assert list((tmp_path / "boxes").iterdir()) == []


@pytest.mark.asyncio(loop_scope="module")
async def test_a_deep_folder_ends_nothing_but_its_own_box(process_backend: ZygoteBackend) -> None:
    """The zygote copied and removed it by recursion, and died with every box."""
    other = await process_backend.start(SandboxSpec())
    box = await process_backend.start(SandboxSpec())
    assert await sh(box, f'mkfifo pipe; ln -s /nowhere link; python3 -c "{DIG}"') == (0, "")
    view = await box.fork_view()
    assert await sh(view, "find . | wc -l; test -p pipe; readlink link") == (0, f"{DEPTH + 4}\n/nowhere\n")
    await view.stop()
    await box.stop()
    assert await sh(other, "echo alive") == (0, "alive\n")
    await other.stop()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_deep_folder_is_saved_and_comes_back(root_backend: ZygoteBackend) -> None:
    box = await root_backend.start(SandboxSpec(memory_mb=128, disk_mb=16))
    assert await sh(box, f'echo two > a; ln a b; python3 -c "{DIG}"; find . -name end -execdir ln {{}} other ";"')
    saved = await box.snapshot()
    await box.stop()
    again = await root_backend.start(SandboxSpec(memory_mb=128, disk_mb=16, snapshot=saved))
    assert await sh(again, "find . | wc -l; stat -c %h a; find . -name end -execdir stat -c %h {} ';'") == (
        0,
        f"{DEPTH + 5}\n2\n2\n",
    )
    await again.stop()
    await root_backend.forget(saved)


def test_of_what_a_box_changed_no_more_is_looked_at_than_one_has_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytecode is not told, so nothing ended the walk: half a million of it at the end of a long path took a minute."""
    for number in range(40):
        (tmp_path / str(number) / "__pycache__").mkdir(parents=True)
        (tmp_path / str(number) / "__pycache__" / "x.pyc").touch()
    upper = os.open(tmp_path, trees.FOLDER)
    try:
        assert list(changes.changed("/nowhere", {"usr": upper}, ())) == []
        monkeypatch.setattr(changes, "MOST_SEEN", 60)
        (told,) = changes.changed("/nowhere", {"usr": upper}, ())
        assert told.startswith("changed /usr/")
        assert told.endswith("/, and what else is there")
        monkeypatch.setattr(changes, "MOST_SEEN", 39)
        assert list(changes.changed("/nowhere", {"usr": upper}, ())) == ["changed /usr//, and what else is there"]
    finally:
        os.close(upper)
