"""Four public tasks with their unmodified verifiers, in boxes whose image stands for the one that FROM names.

Their verifiers install what they run: the boxes that build and verify reach the network through the backend's proxy,
the agent's reach nobody, except in the task whose solution installs packages itself.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from components.config import PoolConfig, SandboxConfig
from components.curation.gates import gate
from components.pool import load_task
from components.sandbox import SandboxBackend, open_backend
from components.sandbox.store import ImageStore
from tests import dockerd
from tests.sandbox.conftest import needs_root

REPOSITORY = Path(__file__).parents[2]
TASKS = REPOSITORY.parent / "shared" / "data" / "terminal-bench-2"
IMAGES = Path(os.environ.get("LONGSHELL_IMAGES", REPOSITORY / "var" / "images"))
PASSED_UNTOUCHED = {"git-leak-recovery": 4, "log-summary-date-ranges": 0, "regex-log": 0, "sqlite-db-truncate": 0}
PROBED = ("git-leak-recovery", "regex-log", "sqlite-db-truncate")
"""The solution of the fourth installs packages, at every run."""
ASSERTIONS = {"git-leak-recovery": 5, "log-summary-date-ranges": 2, "regex-log": 1, "sqlite-db-truncate": 1}

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    needs_root,
    pytest.mark.skipif(not TASKS.is_dir(), reason=f"{TASKS} is not there"),
]


@pytest.fixture(scope="module")
def images() -> ImageStore:
    """With an image for every FROM of the four, made once. Skips, with the reason, where none can be made."""
    wanted = {load_task(TASKS / name).sandbox_spec(SandboxConfig()).image.base for name in PASSED_UNTOUCHED}
    known = {name for base in ImageStore(IMAGES).bases() for name in base.names}
    if not wanted <= known:
        done = subprocess.run(
            ["make", "image", f"IMAGES={IMAGES}"], cwd=REPOSITORY, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            pytest.skip(f"no image can be made here: {(done.stdout + done.stderr)[-300:]}")
    return ImageStore(IMAGES)


@pytest.fixture(scope="module", params=["namespace", "docker"])
def limits(request: pytest.FixtureRequest, images: ImageStore) -> Iterator[SandboxConfig]:
    common = {"memory_mb": 2048, "disk_mb": 1536, "pids": 256, "cpus": 2, "hosts": ("*",)}
    common |= {"network": "proxy", "verifier_network": "proxy"}
    if request.param == "namespace":
        yield SandboxConfig(images=str(images.folder), build_network="proxy", **common)
        return
    if dockerd.missing():
        pytest.skip(dockerd.missing())
    with dockerd.engine(networked=True) as engine:
        for base in images.bases():
            dockerd.import_folder(engine, images.folder / "bases" / base.key / "root", base.names, base.env)
        yield SandboxConfig(backend="docker", docker={"host": engine.host, "build_network": "host"}, **common)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(limits: SandboxConfig, state_dir: Path) -> AsyncIterator[SandboxBackend]:
    opened = await open_backend(limits, state_dir)
    yield opened
    await opened.close()


@pytest.mark.parametrize("name", sorted(PASSED_UNTOUCHED))
async def test_the_solution_passes_everything_and_doing_nothing_what_is_known(
    name: str, backend: SandboxBackend, limits: SandboxConfig
) -> None:
    result = await gate(load_task(TASKS / name), backend, PoolConfig(), limits)
    assert result.rejection is None, result.detail
    assert len(result.assertion_ids) == ASSERTIONS[name]
    assert len(result.pass_to_pass) == PASSED_UNTOUCHED[name]


async def test_no_probe_is_paid_for_a_public_task(backend: SandboxBackend, limits: SandboxConfig) -> None:
    """They were checked by many: what a probe finds here would be the probe's fault."""
    if limits.backend == "docker":
        pytest.skip("a verifier that installs its Python twenty times is run on one backend")
    probes = {"commands": 2, "paths": 2}
    pool = PoolConfig(imported={"train": ["/t"], "heldout": ["/h"], "probes": probes})
    for name in PROBED:
        result = await gate(load_task(TASKS / name), backend, pool, limits)
        assert result.rejection is None, (name, result.detail)
        assert len(result.pass_to_pass) == PASSED_UNTOUCHED[name]
