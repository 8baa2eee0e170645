"""A full disk is asked about before anything starts, and blamed for what it causes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect import task
from prefect.client.schemas.objects import TaskRun
from prefect.states import exception_to_failed_state
from prefect.utilities.asyncutils import run_coro_as_sync

from components.errors import Failure, JobFailed, NoSpaceError, ServiceError
from tasks.drive import is_retriable
from tasks.site import Site
from tasks.space import explaining, full, require, require_start
from tests.disks import SmallDisk, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 2) as made:
        yield made


@pytest.fixture
def site(tmp_path: Path, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Its state is on a good disk, its store on the small one."""
    (tmp_path / "home").mkdir()
    for name in ("PREFECT_API_URL", "LONGSHELL_RAY_JOBS", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LONGSHELL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LONGSHELL_STORE", str(disk.folder / "store"))
    made = Site.current()
    made.store()
    return made


def test_the_disk_that_is_full_is_named_and_nothing_is_left_by_looking(site: Site, disk: SmallDisk) -> None:
    require(site)
    disk.fill()
    found = full(site)
    assert found is not None
    assert str(found).startswith(f"artifact store {site.store_url}: ")
    with pytest.raises(NoSpaceError):
        require(site)
    disk.free()
    assert full(site) is None
    assert [path.name for path in disk.folder.iterdir()] == ["store"]


def test_a_scratch_folder_without_room_is_named_though_python_passes_over_it(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "scratch", 1) as scratch:
        monkeypatch.setenv("TMPDIR", str(scratch.folder))
        assert full(site) is None
        scratch.fill()
        found = full(site)
    assert found is not None
    assert str(found).startswith(f"scratch folder {scratch.folder}: ")


def test_services_are_not_started_where_they_would_fill_the_disk(disk: SmallDisk) -> None:
    small = Site.current({"LONGSHELL_HOME": str(disk.folder)})
    with pytest.raises(NoSpaceError, match=r"state directory .*: 2 MB are free, the services need 50 MB"):
        require_start(small)


@pytest.mark.parametrize(
    ("error", "blamed"),
    [
        (ServiceError("Ray does not answer"), True),
        (JobFailed("j", "FAILED with exit code 2", "(no output)", Failure.REFUSED), True),
        (JobFailed("j", "FAILED with exit code 2", "ERROR ConfigError: x", Failure.REFUSED), False),
        (KeyError("a bug"), False),
    ],
)
def test_a_full_disk_is_blamed_for_what_nothing_else_explains(
    site: Site, disk: SmallDisk, error: Exception, blamed: bool
) -> None:
    with pytest.raises(type(error)), explaining(site):
        raise error
    disk.fill()
    with pytest.raises(NoSpaceError if blamed else type(error)) as caught, explaining(site):
        raise error
    assert caught.value is error or caught.value.__cause__ is error


@pytest.mark.filterwarnings("ignore:Logger .* attempted to send logs")
@pytest.mark.parametrize(
    ("error", "again"),
    [
        (JobFailed("j", "FAILED with exit code -9", ""), True),
        (ServiceError("Ray does not answer"), True),
        (JobFailed("j", "FAILED with exit code 2", "", Failure.REFUSED), False),
        (JobFailed("j", "FAILED with exit code 1", "", Failure.PROGRAM), False),
        (JobFailed("j", "STOPPED", "", Failure.STOPPED), False),
        (KeyError("a bug"), False),
    ],
)
def test_a_flow_task_is_tried_again_by_the_kind_of_its_failure_and_not_on_a_full_disk(
    site: Site, disk: SmallDisk, error: Exception, again: bool
) -> None:
    state = run_coro_as_sync(exception_to_failed_state(error))
    run = TaskRun(name="nothing-0", task_key="nothing", dynamic_key="0")
    assert is_retriable(nothing, run, state) is again
    disk.fill()
    assert not is_retriable(nothing, run, state)


@task
def nothing() -> None:
    """A flow task to log for."""
