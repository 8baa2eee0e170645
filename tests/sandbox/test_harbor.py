"""A real Harbor runs a task in our boxes: `make nightly`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from components.sandbox.store import ImageStore
from tests import dockerd
from tests.harness.harbor_installed import installed
from tests.sandbox.conftest import needs_root
from tests.sandbox.small_root import NAME, small_base

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200), needs_root]
REPOSITORY = Path(__file__).parents[2]
FILES = {
    "task.toml": 'version = "1.0"\n[agent]\ntimeout_sec = 60.0\n[verifier]\ntimeout_sec = 60.0\n'
    '[environment]\ncpus = 1\nmemory = "256M"\nstorage = "256M"\n',
    "instruction.md": "Write the number of lines of poem.txt to /app/count.\n",
    "environment/poem.txt": "one\ntwo\n",
    "solution/solve.sh": "#!/bin/bash\nwc -l < poem.txt > count\nln -s /etc/passwd /logs/agent/leads-out\n"
    "echo told > /logs/agent/zzz\n",
    "tests/test.sh": '#!/bin/bash\n[ "$(cat /app/count)" = "$(cat /usr/bin/lines)" ] && r=1 || r=0\n'
    "echo $r > /logs/verifier/reward.txt; [ ! -e /usr/bin/python3 ] || echo 0 > /logs/verifier/reward.txt\n",
}


STEPS = "WORKDIR /app\nCOPY poem.txt .\nRUN wc -l < poem.txt > /usr/bin/lines\n"


@pytest.fixture(scope="module")
def namespace(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Arguments for boxes of this kernel, and what FROM calls their image."""
    images = tmp_path_factory.mktemp("images")
    small_base(ImageStore(images), images)
    return [NAME, f"images={images}"]


@pytest.fixture(scope="module")
def docker() -> Iterator[list[str]]:
    """Arguments for boxes of an engine that is started for this."""
    if dockerd.missing():
        pytest.skip(dockerd.missing())
    with dockerd.engine() as running:
        engine = json.dumps({"host": running.host})
        yield [dockerd.BASE, "backend=docker", f"docker={engine}"]


@pytest.mark.parametrize("kind", ["namespace", "docker"])
@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
def test_harbor_gives_the_known_reward_in_our_boxes_by_import_path(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, agent: str, reward: float
) -> None:
    harbor = installed()
    base, *given = request.getfixturevalue(kind)
    for name, text in {**FILES, "environment/Dockerfile": f"FROM {base}\n{STEPS}"}.items():
        path = tmp_path / "count-lines" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    argv = [
        str(harbor / "bin" / "harbor"), "run", "-p", str(tmp_path / "count-lines"), "-a", agent,
        "--environment-import-path", "components.sandbox.harbor:LongshellEnvironment",
        *(word for each in (*given, f"state={tmp_path / 'state'}") for word in ("--ek", each)),
        "-o", str(tmp_path / "jobs"), "--job-name", "run",
    ]  # fmt: skip
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HARBOR_TELEMETRY": "0",
    }
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = (tmp_path / "jobs" / "run").glob("*/result.json")
    trial = json.loads(result.read_text())
    assert trial["exception_info"] is None
    assert trial["verifier_result"]["rewards"] == {"reward": reward}
    told = {path.name for path in (tmp_path / "jobs" / "run").glob("*/agent/*")}
    assert ("zzz" in told, "leads-out" in told) == (agent == "oracle", False), "a link that leads out is left out"
    assert not list((tmp_path / "state").glob("leases/*"))
