"""Layers on disk, without a box: what is saved, and what goes when it is needed no more."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from components.sandbox import ZygoteBackend
from components.sandbox.store import ImageStore, Stack


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
