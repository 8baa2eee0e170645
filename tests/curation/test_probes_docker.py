"""What the probes find in namespaces they find on a Docker engine, under the same names."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.config import PoolConfig
from components.curation import audit
from components.pool import index_folder
from components.sandbox import open_backend
from tests import dockerd
from tests.curation import mixed

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200), dockerd.needs_docker]
BASE = "debian:trixie-slim"


async def test_every_defect_is_named_on_an_engine_as_in_namespaces(tmp_path: Path) -> None:
    expected = mixed.executed(tmp_path / "pool")
    mixed.animal(tmp_path / "pool" / "honest", "honest")
    with dockerd.engine() as engine:
        dockerd.import_base(engine, BASE)
        config = engine.config(BASE)
        backend = await open_backend(config, tmp_path / "boxes")
        try:
            verdict = await audit(
                index_folder(tmp_path / "pool"),
                backend,
                config=PoolConfig(imported={"train": ["/t"], "heldout": ["/h"]}),
                sandbox=config,
                journal=tmp_path / "gates.jsonl",
                concurrency=4,
            )
        finally:
            await backend.close()
    assert not verdict.faults
    assert [result.task_id for result in verdict.accepted] == ["honest"]
    found = {result.task_id: (str(result.rejection), result.detail) for result in verdict.rejected}
    assert {task: reason for task, (reason, _) in found.items()} == {task: why[0] for task, why in expected.items()}
