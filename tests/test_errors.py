"""Kinds of failure: what is tried again and what is not, and a full disk under all the names it is given."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from components.errors import (
    CheckpointError,
    ChecksumError,
    ConfigError,
    DamagedError,
    DivergedError,
    DriftError,
    Exit,
    Failure,
    FaultCause,
    InfraFault,
    JobFailed,
    NoSpaceError,
    RecordError,
    ServiceError,
    StoreError,
    TaskError,
    failure_of,
    no_space,
)
from tests.disks import small_disk


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


REFUSED, PROGRAM, INFRASTRUCTURE = Failure.REFUSED, Failure.PROGRAM, Failure.INFRASTRUCTURE
KINDS = [
    (ConfigError(["rl.leg: unknown key"]), REFUSED),
    (TaskError("pool/x", ["no tests/"]), REFUSED),
    (CheckpointError("no config.json"), REFUSED),
    (NoSpaceError("/data"), REFUSED),
    (OSError(errno.ENOSPC, "No space left on device", "/data/x"), REFUSED),
    (OSError(errno.EDQUOT, "Disk quota exceeded"), REFUSED),
    (raised(StoreError("cannot write"), OSError(errno.ENOSPC, "x")), REFUSED),
    (raised(StoreError("cannot write"), PermissionError(errno.EACCES, "x")), REFUSED),
    (raised(StoreError("cannot write"), OSError(errno.EROFS, "x")), REFUSED),
    (raised(StoreError("cannot open"), NotADirectoryError(errno.ENOTDIR, "x")), REFUSED),
    (sqlite3.OperationalError("database or disk is full"), REFUSED),
    (ServiceError("MLflow at x: (sqlite3.OperationalError) database or disk is full\n[SQL: INSERT]"), REFUSED),
    (ExceptionGroup("two", [ConnectionError(), OSError(errno.ENOSPC, "x")]), REFUSED),
    (DamagedError("pool is corrupt: tests/test.sh is missing"), REFUSED),
    (AssertionError("ours"), PROGRAM),
    (TypeError("takes 2"), PROGRAM),
    (KeyError("metrics"), PROGRAM),
    (IndexError("5"), PROGRAM),
    (ValueError("shape"), PROGRAM),
    (ZeroDivisionError(), PROGRAM),
    (ImportError("no module"), PROGRAM),
    (NotImplementedError(), PROGRAM),
    (RecursionError(), PROGRAM),
    (DivergedError("a gradient is not finite"), PROGRAM),
    (DriftError("trial x"), PROGRAM),
    (RecordError("lengths"), PROGRAM),
    (ChecksumError("t/0"), PROGRAM),
    (ExceptionGroup("two", [ConnectionError(), KeyError("x")]), PROGRAM),
    (ConnectionResetError("peer"), INFRASTRUCTURE),
    (TimeoutError(), INFRASTRUCTURE),
    (OSError(errno.EIO, "Input/output error"), INFRASTRUCTURE),
    (MemoryError(), INFRASTRUCTURE),
    (RuntimeError("Connection closed by peer"), INFRASTRUCTURE),
    (ServiceError("Ray does not answer"), INFRASTRUCTURE),
    (InfraFault(FaultCause.SAMPLER, "dead"), INFRASTRUCTURE),
    (raised(StoreError("cannot read"), OSError(errno.ESTALE, "x")), INFRASTRUCTURE),
    (JobFailed("j", "FAILED with exit code -9", ""), INFRASTRUCTURE),
    (JobFailed("j", "LOST", "OSError: No space left on device"), INFRASTRUCTURE),
    (JobFailed("j", "FAILED with exit code 1", "", PROGRAM), PROGRAM),
    (JobFailed("j", "STOPPED", "", Failure.STOPPED), Failure.STOPPED),
]


def test_a_machine_without_namespaces_is_not_taken_for_a_full_disk() -> None:
    """unshare(2) answers ENOSPC where user.max_user_namespaces is used up."""
    refused = ConfigError(["no sandbox can be had: unshare: No space left on device. Run as root"], "sandbox")
    assert no_space(refused) is None


@pytest.mark.parametrize(("error", "kind"), KINDS, ids=lambda value: repr(value)[:60])
def test_every_failure_has_one_kind(error: BaseException, kind: Failure) -> None:
    assert failure_of(error) is kind


def test_only_infrastructure_is_tried_again_and_every_kind_has_its_exit_code() -> None:
    assert [kind for kind in Failure if kind.retriable] == [INFRASTRUCTURE]
    assert {kind: int(Exit.of(kind)) for kind in Failure} == {
        REFUSED: 2,
        PROGRAM: 1,
        INFRASTRUCTURE: 75,
        Failure.STOPPED: 143,
    }


def test_an_error_that_was_handled_is_not_the_cause_of_the_next() -> None:
    def handle() -> None:
        try:
            raise OSError(errno.ENOSPC, "x")
        except OSError:
            raise KeyError("a bug") from None

    with pytest.raises(KeyError) as caught:
        handle()
    assert failure_of(caught.value) is PROGRAM


def test_errors_survive_the_way_between_processes() -> None:
    for error in (NoSpaceError("/data"), JobFailed("j", "LOST", "tail", PROGRAM), ConfigError(["x"], "y")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), failure_of(again)) == (type(error), str(error), failure_of(error))


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        ("INFO a\nERROR ConfigError: x: 1 problem\n  - y", "ConfigError: x: 1 problem\n  - y"),
        ("ERROR the stage failed\nTraceback\nERROR KeyError: 'x'", "KeyError: 'x'"),
        ("ERROR of a library, long ago\nINFO step 5\nkilled", ""),
        ("", ""),
    ],
)
def test_the_reason_of_a_failed_job_is_its_last_words(tail: str, reason: str) -> None:
    assert JobFailed("j", "FAILED", tail).reason == reason


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with small_disk(tmp_path_factory.mktemp("full") / "disk", 1) as disk:
        disk.fill(leave=64 * 1024)
        yield disk.folder


def _sqlite(folder: Path, data: np.ndarray) -> None:
    with sqlite3.connect(folder / "db") as database:
        database.execute("create table rows (data)")
        database.execute("insert into rows values (?)", (data.tobytes(),))


WRITERS: dict[str, Callable[[Path, np.ndarray], object]] = {
    "open": lambda folder, data: (folder / "file").write_bytes(data.tobytes()),
    "copytree": lambda folder, data: shutil.copytree(Path(__file__).parent, folder / "tree"),
    "safetensors": lambda folder, data: save_file({"x": torch.from_numpy(data)}, folder / "x.safetensors"),
    "torch": lambda folder, data: torch.save(torch.from_numpy(data), folder / "x.pt"),
    "numpy": lambda folder, data: np.save(folder / "x.npy", data),
    "sqlite": _sqlite,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_whatever_writes_a_full_disk_is_recognised_and_told_in_one_line(writer: str, full: Path) -> None:
    data = np.random.default_rng(0).random(1 << 16)
    before = set(full.iterdir())
    with pytest.raises(Exception) as caught:  # noqa: PT011  (each library raises its own)
        WRITERS[writer](full, data)
    for path in set(full.iterdir()) - before:
        shutil.rmtree(path) if path.is_dir() else os.unlink(path)
    told = no_space(caught.value, "/the/place")
    assert told is not None
    assert len(str(told).splitlines()) == 1
    assert str(told).startswith(("/the/place: ", str(full)))
    assert "Free space" in str(told)


async def test_a_full_disk_met_in_a_task_group_is_recognised(full: Path) -> None:
    async def write() -> None:
        (full / "file").write_bytes(bytes(1 << 20))

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            group.create_task(write())
    (full / "file").unlink()
    assert isinstance(no_space(caught.value), NoSpaceError)
