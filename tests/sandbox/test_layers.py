"""Layers on disk, without a box: what is saved, and what goes when it is needed no more."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from components.sandbox import ZygoteBackend, store
from components.sandbox.base_image import add
from components.sandbox.store import RECENT_S, WORKPLACE, ImageStore, Stack
from tests.sandbox.conftest import NOBODY, needs_root

LAYER_BYTES = 1 << 20


def make_layer(store: ImageStore, key: str, below: Stack | None = None, *, age_s: float = 2 * RECENT_S) -> Stack:
    """A layer of a megabyte that was used last so long ago."""
    with tempfile.TemporaryDirectory(dir=store.folder.parent) as box:
        Path(box, "big").write_bytes(os.urandom(LAYER_BYTES))
        descriptor = os.open(box, os.O_RDONLY | os.O_DIRECTORY)
        made = store.save(key, below or Stack(), {"root": descriptor}, shift=None)
        os.close(descriptor)
    used = time.time() - age_s
    os.utime(store.folder / "layers" / key / "layer.json", (used, used))
    return made


def keys(store: ImageStore) -> set[str]:
    return {path.name for path in (store.folder / "layers").iterdir()}


def bounded(tmp_path: Path, layers: float) -> ImageStore:
    """A store in which so many layers fit."""
    return ImageStore(tmp_path / "images", int(layers * LAYER_BYTES))


def test_the_longest_unused_layers_go_until_the_others_fit(tmp_path: Path) -> None:
    store = bounded(tmp_path, 2.5)
    for number, key in enumerate("edcba"):
        make_layer(store, key, age_s=(2 + number) * RECENT_S)
    store.layer("a")  # asked for: it is the latest used
    assert store.collect() == ["b", "c", "d"]
    assert keys(store) == {"a", "e"}
    assert store.collect() == []
    assert ImageStore(store.folder).collect() == [], "without a bound nothing is removed"


def test_what_is_held_lain_over_saved_or_was_asked_for_lately_is_not_collected(tmp_path: Path) -> None:
    store, other = bounded(tmp_path, 0), bounded(tmp_path, 0)
    below = make_layer(store, "below")
    held = make_layer(store, "held", below)
    make_layer(store, "recent", age_s=0)
    under = make_layer(store, "under")
    make_layer(store, "snapshot-1", make_layer(store, "base-1", under))
    other.hold(held)
    other.hold(held)
    os.utime(store.folder / "layers" / "held" / "layer.json", (0, 0))
    os.utime(store.folder / "layers" / "below" / "layer.json", (0, 0))
    assert store.collect() == []
    other.release(held)
    assert store.collect() == [], "another box lies over it still"
    other.release(held)
    assert store.collect() == ["held", "below"]
    assert keys(store) == {"recent", "under", "base-1", "snapshot-1"}
    with pytest.raises(LookupError, match="held"):
        other.hold(held)
    assert other._held == {}


def test_a_base_that_has_lost_its_names_goes_once_nothing_lies_over_it(tmp_path: Path) -> None:
    store = bounded(tmp_path, 100)
    roots = [tmp_path / name for name in ("old", "new")]
    for root in roots:
        (root / "usr").mkdir(parents=True)
        (root / "usr" / root.name).touch()
    old = add(store, roots[0], ["image"], {}, {})
    new, other = add(store, roots[1], ["image"], {}, {}), bounded(tmp_path, 100)
    assert store.collect() == [], "its name was lost but now"
    for base in (old, new):
        os.utime(store.folder / "bases" / base.key / "image.json", (0, 0))
    over = make_layer(store, "snapshot-over", Stack(old))
    other.hold(Stack(old))
    assert store.collect() == []
    store.remove(over.layers[0])
    assert store.collect() == [], "a box lies over it"
    other.release(Stack(old))
    assert store.collect() == [old.key]
    assert [base.key for base in store.bases()] == [new.key]
    (store.folder / "bases" / ".killed").mkdir()
    assert store.sweep() == ["killed"]


def test_a_layer_that_is_being_made_again_is_not_collected(tmp_path: Path) -> None:
    async def main() -> None:
        store = bounded(tmp_path, 0)
        make_layer(store, "key")
        async with store.making("key"):
            assert store.collect() == []
        assert store.collect() == ["key"]

    asyncio.run(main())


def test_a_layer_of_a_process_that_was_killed_is_held_no_longer(tmp_path: Path) -> None:
    store = bounded(tmp_path, 0)
    held = make_layer(store, "key")
    ready = tmp_path / "ready"

    def hold() -> None:
        store.hold(held)
        os.utime(store.folder / "layers" / "key" / "layer.json", (0, 0))
        ready.touch()
        signal.pause()

    holder = multiprocessing.get_context("fork").Process(target=hold, daemon=True)
    holder.start()
    try:
        while not ready.exists():
            assert holder.is_alive()
            time.sleep(0.005)
        assert store.collect() == []
    finally:
        holder.kill()
        holder.join()
    assert store.collect() == ["key"]


def test_a_lock_leaves_no_file_and_is_one_process_s_at_a_time(tmp_path: Path) -> None:
    store, inside, most = ImageStore(tmp_path / "images"), 0, 0

    async def one() -> None:
        nonlocal inside, most
        async with ImageStore(store.folder).making("key"):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    async def main() -> None:
        await asyncio.gather(*(one() for _ in range(5)))

    asyncio.run(main())
    assert most == 1
    (store.folder / "locks" / "of-one-who-was-killed").touch()
    store.sweep()
    assert list((store.folder / "locks").iterdir()) == []


def test_a_lock_whose_file_has_gone_meanwhile_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = ImageStore(tmp_path / "images")
    held = images._try_making("key")
    assert held is not None

    def late(descriptor: int) -> bool:
        monkeypatch.undo()
        images._made("key", held)
        return store._try_lock(descriptor)

    monkeypatch.setattr(store, "_try_lock", late)
    assert images._try_making("key") is None
    assert images._try_making("key") is not None


def _stir(folder: Path, most_bytes: int, number: int, over: Path) -> None:
    """Makes, asks for, collects and sweeps, as fast as it can, until there is that file; says when it has done so."""
    store, made = ImageStore(folder, most_bytes), 0
    while not over.exists():
        key = f"key{(number + made) % 3}"
        made += 1

        async def make(key: str = key) -> None:
            async with store.making(key):
                if store.layer(key) is None:
                    store.save(key, Stack(), {}, shift=None)
                os.utime(store.folder / "layers" / key / "layer.json", (0, 0))

        asyncio.run(make())
        (folder / f"{WORKPLACE}{number}-{made}").mkdir()
        os.utime(folder / f"{WORKPLACE}{number}-{made}", (0, 0))
        store.collect()
        store.sweep()
        over.with_name(f"stirs-{number}").touch()


def test_processes_that_make_collect_and_sweep_at_once_do_not_disturb_each_other_nor_does_one_s_kill(
    tmp_path: Path,
) -> None:
    """A sweep had raised out of `open_backend` where another one was faster."""
    context, over = multiprocessing.get_context("fork"), tmp_path / "over"
    stirring = [
        context.Process(target=_stir, args=(tmp_path / "images", most, number, over))
        for number, most in enumerate((0, 0, 1 << 30, 0, 0))
    ]
    for process in stirring:
        process.start()
    try:
        while len(list(tmp_path.glob("stirs-*"))) < len(stirring):
            assert all(process.is_alive() for process in stirring)
            time.sleep(0.005)
        for victim in stirring[3:]:
            time.sleep(0.25)
            victim.kill()
        time.sleep(0.25)
    finally:
        over.touch()
        for process in stirring:
            process.join()
    assert [process.exitcode for process in stirring] == [0, 0, 0, -signal.SIGKILL, -signal.SIGKILL]
    store = ImageStore(tmp_path / "images")
    store.sweep()
    assert not [*store.folder.glob(f"{WORKPLACE}*"), *(store.folder / "layers").glob(".*")]
    assert not list((store.folder / "locks").iterdir())
    assert all(json.loads((store.folder / "layers" / key / "layer.json").read_text()) for key in keys(store))


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user of this machine may enter."""
    folder = Path(tempfile.mkdtemp(prefix="longshell-shared-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@needs_root
def test_a_user_of_this_machine_cannot_run_what_a_box_has_left_as_root(shared: Path) -> None:
    """A layer keeps set-uid bits, and its files are root's."""
    images = shared / "images"
    for name in ("layers", "bases"):
        (images / name).mkdir(parents=True)  # as stores were made before
    store, box = ImageStore(images), shared / "box"
    box.mkdir()
    shutil.copy(shutil.which("id") or "", box / "id")
    (box / "id").chmod(0o4755)
    descriptor = os.open(box, os.O_RDONLY | os.O_DIRECTORY)
    store.save("key", Stack(), {"root": descriptor}, shift=None)
    os.close(descriptor)
    planted = images / "layers" / "key" / "root" / "id"
    assert planted.stat().st_mode & stat.S_ISUID
    with pytest.raises(PermissionError):
        subprocess.run([str(planted)], user=NOBODY, check=False)
    for name in ("layers", "bases"):
        assert subprocess.run(["ls", str(images / name)], user=NOBODY, capture_output=True, check=False).returncode == 2


def test_holes_of_a_file_take_no_room_in_a_layer(tmp_path: Path) -> None:
    box = tmp_path / "box"
    box.mkdir()
    with (box / "sparse").open("wb") as file:
        file.write(b"begin")
        file.seek(32 << 20)
        file.write(b"middle")
        file.truncate(64 << 20)
    (box / "empty").touch()
    (box / "plain").write_bytes(os.urandom(100_000))
    descriptor = os.open(box, os.O_RDONLY | os.O_DIRECTORY)
    ImageStore(tmp_path / "images").save("key", Stack(), {"root": descriptor}, shift=None)
    os.close(descriptor)
    saved = tmp_path / "images/layers/key/root"
    assert (saved / "sparse").stat().st_size == 64 << 20
    assert (saved / "sparse").stat().st_blocks * 512 < 1 << 20
    for name in ("sparse", "plain", "empty"):
        assert (saved / name).read_bytes() == (box / name).read_bytes()


@pytest.mark.asyncio
async def test_a_base_is_not_removed_while_something_is_saved_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = ZygoteBackend("process", tmp_path, "lease")
    store, life, go = ImageStore(tmp_path / "images"), SimpleNamespace(stack=Stack()), asyncio.Event()
    go.set()

    async def save(life: Any, key: str, below: Stack) -> Stack:
        await go.wait()
        return store.save(key, below, {}, shift=None)

    monkeypatch.setattr(backend, "_save", save)
    backend._lives["base"] = life  # type: ignore[assignment]
    first = await backend.save_snapshot(life, "base")  # type: ignore[arg-type]
    go.clear()
    saving = asyncio.create_task(backend.save_snapshot(life, "base"))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    forgetting = asyncio.create_task(backend.forget(first))
    await asyncio.sleep(0.1)
    go.set()
    second = await saving
    await forgetting
    found = store.layer(second)
    assert found is not None
    assert all(store.layer(key) is not None for key in found.layers)
    assert len(found.layers) == 2
    await backend.forget(second)
    assert not [*(tmp_path / "images/layers").iterdir()]
