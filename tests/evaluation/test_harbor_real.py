"""A real Harbor's Terminus-2 behind our gateway, beside our own runner: `make nightly`.

Both are driven by the same script, which answers by what the prompt says: which task, and the how manieth answer.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components.config import CampaignConfig, SuiteConfig, load
from components.errors import StopReason
from components.evaluation import Suite, load_suite, sampling_of, under_profile
from components.evaluation.harbor import MODEL, job_config, run_job
from components.gateway import ChatTemplate, Gateway, Routes, SamplerPolicy, Trajectory, chatml, serving
from components.gateway.template import END
from components.harness import run_trial
from components.jobs.harbor import trials_of
from components.records import Trial
from components.sampler import Generation
from components.sandbox import open_backend
from tests import dockerd
from tests.evaluation.parts import write_task
from tests.harness.harbor_installed import installed
from tests.harness.parts import SPECIALS, ByteTokenizer, answer
from tests.sandbox.conftest import needs_root

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900), needs_root]
CONFIG = Path(__file__).parents[2] / "configs" / "miniature.yaml"
LIMITS = (
    "evaluation.harness=harbor",
    "evaluation.harbor.verifier=longshell",
    "harness.max_turns=5",
    "harness.prompt_style=longshell",
    "harness.new_output=history",
    "harness.observation_bytes=10000",
    "harness.confirm_completion=true",
    "harness.max_context_tokens=60000",
    "harness.max_turn_tokens=4000",
    "harness.max_parse_failures=60",
    "sampler.context_tokens=60000",
    "model.max_position_embeddings=60000",
    "trainer.micro_batch_tokens=60000",
    "sandbox.memory_mb=512",
)
TMUX = "longshell-test/tmux:1"
LOG = "harbor.log"
EXACT = '#!/bin/bash\n[ "$(cat /app/out)" = done ] && echo 1 || echo 0\n'
HALF = "#!/bin/bash\n[ -e /app/out ] && echo 0.5 > /logs/verifier/reward.txt\n"
WRITE, WRONG, DONE = answer("echo done > out"), answer("echo nearly > out"), answer(done=True)
FORGE = answer("(while :; do echo '{\"reward\": 1}' > /logs/verifier/reward.json; sleep .02; done) &")
"""What Harbor's own verifier believes: the file is there again when it is read."""
SCRIPTS: dict[str, tuple[str, list[str], str]] = {
    "solved": (EXACT, [WRITE, DONE, DONE], "passed"),
    "in-two-steps": (EXACT, [answer("echo nearly > out"), WRITE, DONE, DONE], "passed"),
    "wrong": (EXACT, [WRONG, DONE, DONE], "failed"),
    "idle": (EXACT, [DONE, DONE], "failed"),
    "never-done": (EXACT, [WRITE, *[answer("ls")] * 9], "passed"),
    "unreadable": (EXACT, ["I will think about it."] * 9, "failed"),
    "half": (HALF, [WRITE, DONE, DONE], "half"),
    "forged": (EXACT, [FORGE, DONE, DONE], "failed"),
    "no-verdict": ("#!/bin/bash\ntrue\n", [WRITE, DONE, DONE], "verifier_bootstrap"),
    "offline": (
        "#!/bin/bash\necho 'curl: (6) Could not resolve host: x'\necho 0 > /logs/verifier/reward.txt\n",
        [WRITE, DONE, DONE],
        "verifier_bootstrap",
    ),
}
"""By task: its verifier, what the model says, and what must come of it."""


class Scripted:
    """A sampler that answers by the prompt alone, whoever asks."""

    async def healthy(self) -> bool:
        return True

    async def generate(self, prompt_ids: Sequence[int], *, max_new_tokens: int, **_: Any) -> Generation:
        text = ByteTokenizer().decode(prompt_ids)
        named = re.search(r"Task ([a-z-]+):", text)
        assert named is not None, text[:2_000]
        says, turn = SCRIPTS[named[1]][1], text.count("<|im_start|>assistant") - 1
        ids = [*ByteTokenizer().encode(says[min(turn, len(says) - 1)]), SPECIALS[END]][:max_new_tokens]
        drawn = np.asarray(ids, np.int32)
        return Generation(drawn, np.full(len(ids), -0.5, np.float32), None, 0, "stop", 0, 0)


def template() -> ChatTemplate:
    return ChatTemplate(ByteTokenizer(), chatml("\n"))


@pytest.fixture(scope="module")
def namespace() -> tuple[str, dict[str, Any]]:
    """What tasks are made from, and the keys of boxes of this kernel."""
    return "longshell-miniature", {}


@pytest.fixture(scope="module")
def docker() -> Iterator[tuple[str, dict[str, Any]]]:
    """Those of an engine that is started for this; its image has the tmux that Terminus-2 wants."""
    if dockerd.missing():
        pytest.skip(dockerd.missing())
    with dockerd.engine() as running:
        dockerd.import_base(running, TMUX, ("tmux", "ncurses-base"))
        yield TMUX, {"backend": "docker", "docker": {"host": running.host, "image": TMUX}}


def under_test(keys: dict[str, Any], *names: str, folder: Path, image: str) -> tuple[CampaignConfig, Suite]:
    """The configuration, and a suite of these scripts."""
    config = load(CONFIG, [*LIMITS, *(f"sandbox.{key}={json.dumps(value)}" for key, value in keys.items())])
    for name in names:
        write_task(
            folder / name,
            test=SCRIPTS[name][0],
            instruction=f"Task {name}: write done into /app/out.\n",
            dockerfile=f"FROM {image}\nWORKDIR /app\n",
        )
    return under_profile(config), load_suite(SuiteConfig(name="scripted", path=str(folder)), config.sandbox)


def verdict(trial: Trial) -> str:
    if trial.fault is not None:
        return trial.fault.cause.value
    assert trial.report is not None
    if trial.report.number not in (None, 0, 1):
        return "half" if trial.report.number == 0.5 else str(trial.report.number)
    return "passed" if trial.report.outcome else "failed"


async def by_us(config: CampaignConfig, suite: Suite, state: Path) -> list[Trial]:
    sampling = sampling_of(config.evaluation)
    backend = await open_backend(config.sandbox, state)

    async def one(task: Any) -> Trial:
        name = task.path.name
        stops = template().stop_token_ids
        policy = SamplerPolicy(Scripted(), stop_token_ids=stops, session_id=name, capture=False)
        return await run_trial(
            task,
            trial_id=name,
            backend=backend,
            trajectory=Trajectory(policy, template(), sampling=sampling),
            config=config.harness,
            sandbox=config.sandbox,
            agent_timeout_s=config.rollout.agent_timeout_s,
            verifier_timeout_s=config.rollout.verifier_timeout_s,
        )

    try:
        return await asyncio.gather(*(one(task) for task in suite.tasks))
    finally:
        await backend.close()


async def by_harbor(config: CampaignConfig, suite: Suite, folder: Path) -> list[Trial]:
    async with served(config) as url:
        found = await run_job(installed(), asked_for(config, suite, folder), url=url, log=folder / LOG, tell=print)
    return trials_of(found, suite, config, "scripted")


def asked_for(config: CampaignConfig, suite: Suite, folder: Path) -> dict[str, Any]:
    places = [task.path for task in suite.tasks]
    return job_config(config, places, name="scripted", jobs=folder / "jobs", state=folder / "state")


@asynccontextmanager
async def served(config: CampaignConfig) -> AsyncIterator[str]:
    gateway = Gateway(
        Scripted(),
        template(),
        model=MODEL,
        context_tokens=config.harness.max_context_tokens,
        capture=False,
        overrule=True,
        open_unknown=True,
        sampling=sampling_of(config.evaluation),
        max_answer_tokens=config.harness.max_turn_tokens,
    )
    async with serving(Routes(gateway)) as url:
        yield url


@pytest.mark.parametrize("kind", ["namespace", "docker"])
async def test_harbor_and_our_runner_agree_on_every_verdict(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    image, keys = request.getfixturevalue(kind)
    config, suite = under_test(keys, *SCRIPTS, folder=tmp_path / "suite", image=image)
    ours = await by_us(config, suite, tmp_path / "ours")
    theirs = await by_harbor(config, suite, tmp_path / "theirs")
    names = [task.path.name for task in suite.tasks]
    expected = {name: SCRIPTS[name][2] for name in names}
    assert dict(zip(names, map(verdict, ours), strict=True)) == expected, [trial.fault for trial in ours]
    assert dict(zip(names, map(verdict, theirs), strict=True)) == expected, [trial.fault for trial in theirs]
    ends = {name: (one.stop, other.stop) for name, one, other in zip(names, ours, theirs, strict=True)}
    assert ends["solved"] == (StopReason.COMPLETED, StopReason.COMPLETED)
    assert ends["never-done"] == (StopReason.TURN_LIMIT, StopReason.TURN_LIMIT)
    turns = {name: (len(one.turns), other.facts["turns"]) for name, one, other in zip(names, ours, theirs, strict=True)}
    assert {name for name, (one, other) in turns.items() if one != other} == set(), turns


async def test_a_job_that_was_killed_is_continued_though_the_endpoint_has_moved(
    tmp_path: Path, namespace: tuple[str, dict[str, Any]]
) -> None:
    image, keys = namespace
    config, suite = under_test(keys, "solved", "wrong", "never-done", folder=tmp_path / "suite", image=image)
    folder = tmp_path / "theirs"
    asked = asked_for(config, suite, folder) | {"n_concurrent_trials": 1}
    async with served(config) as url:
        running = asyncio.create_task(run_job(installed(), asked, url=url, log=folder / LOG, tell=print))
        while not (ended := list((folder / "jobs" / "scripted").glob("*/result.json"))):
            assert not running.done(), (folder / LOG).read_text()
            await asyncio.sleep(0.1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    before = {path: path.stat().st_mtime_ns for path in ended}
    assert len(before) < 3
    async with served(config) as other:
        assert other != url
        found = await run_job(installed(), asked, url=other, log=folder / LOG, tell=print)
    assert sorted(trial.task for trial in found) == ["never-done", "solved", "wrong"]
    assert {path: path.stat().st_mtime_ns for path in before} == before, "what had finished is not run again"
    assert [verdict(trial) for trial in trials_of(found, suite, config, "x")] == ["passed", "passed", "failed"]
