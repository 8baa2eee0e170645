"""Proposals of a model: read strictly, tried like any other, mended by what the gates said, paid for once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from components.artifacts import LocalStore
from components.config import EndpointConfig, PoolConfig, SynthesisConfig
from components.curation import Endpoint
from components.curation.quality.answer import BadAnswer
from components.errors import ServiceError
from components.pool import Pool, load_task
from components.pool.directory import verifier_script
from components.sandbox import SandboxBackend
from components.synthesis import Proposer, RoundReport, World, open_proposer, open_run, rounds, synthesize
from components.synthesis.model import Wish, read_proposal
from components.synthesis.source import Source
from tests.curation.scripted_judge import ScriptedJudge
from tests.synthesis.conftest import LIMITS, root_pool, roots

GOOD: dict[str, Any] = {
    "solution": "echo a > b\n",
    "files": [{"path": "tests/test.sh", "content": "true\n"}, {"path": "environment/files/in", "content": "x\n"}],
    "instruction": "Write a into b.\n",
    "pass_to_pass": ["x:kept"],
}


@pytest.fixture
def wish(tmp_path: Path) -> Wish:
    (source,) = roots(tmp_path / "pool", 1)
    return Wish(source, "pipeline", 7)


def test_a_whole_proposal_is_taken_word_for_word(wish: Wish) -> None:
    written = read_proposal(json.dumps(GOOD), wish)
    assert written.files["solution/solve.sh"] == "echo a > b\n"
    assert set(written.files) == {"solution/solve.sh", "instruction.md", "tests/test.sh", "environment/files/in"}
    assert (written.declared, written.turns, written.words, written.operator) == (("x:kept",), 1, 4, "model-pipeline")


def files(*paths: object, content: object = "x") -> dict[str, Any]:
    return {"files": [{"path": path, "content": content} for path in paths]}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"more": 1}, "with the keys"),
        ({"solution": " "}, "must be texts"),
        ({"instruction": 3}, "must be texts"),
        ({"files": {}}, "must be a list"),
        ({"files": [{"path": "tests/a"}]}, "must be a list"),
        (files("tests/../../etc/passwd"), "must be a plain one"),
        (files("/tests/a"), "must be a plain one"),
        (files("solution/solve.sh"), "must be a plain one"),
        (files("task.toml"), "must be a plain one"),
        (files("tests/a\n"), "must be a plain one"),
        (files(3), "must be a plain one"),
        (files("tests/a", "tests/a"), "named once"),
        (files("environment/a"), "changes no test"),
        (files("tests/a", "tests/a/b"), "no file can be at tests/a/b"),
        (files("tests/test.sh/b"), "no file can be at tests/test.sh/b"),
        (files("tests/a", "environment/files"), "no file can be at environment/files"),
        (files(f"tests/{'a' * 300}"), "no file can be at"),
        (files("tests/a", content="x" * 300_000), "more than 262144"),
        (files("tests/a", content="\ud800"), "no Unicode"),
        ({"pass_to_pass": [1]}, "list of names"),
    ],
)
def test_anything_else_is_a_bad_answer(wish: Wish, change: dict[str, Any], told: str) -> None:
    with pytest.raises(BadAnswer, match=told):
        read_proposal(json.dumps(GOOD | change), wish)
    with pytest.raises(BadAnswer):
        read_proposal(f"Here it is: {json.dumps(GOOD)}", wish)


def test_what_no_task_can_have_costs_its_proposal_and_no_other(wish: Wish, tmp_path: Path) -> None:
    text = json.dumps(GOOD | files("tests/test.sh", "environment/docker-compose.yaml"))
    proposal = rounds.Proposal("grown-1-00000", 1, read_proposal(text, wish))
    assert rounds._written(proposal, tmp_path / "drafts") is None
    assert (proposal.reason, "compose" in proposal.detail) == ("unusable", True)


@pytest.mark.parametrize(
    ("status", "raised"), [(503, ServiceError), (400, BadAnswer)], ids=["an endpoint that is away", "a refusal"]
)
async def test_only_what_would_be_answered_alike_again_is_a_rejection(
    wish: Wish, tmp_path: Path, status: int, raised: type[Exception]
) -> None:
    with ScriptedJudge(lambda user, before: (status, "no")) as model:
        config = EndpointConfig.model_validate({**model.settings(), "api_key_env": None})
        async with Endpoint(config, retry_s=0.001) as endpoint:
            with pytest.raises(raised, match=str(status)):
                await Proposer(endpoint, LocalStore(tmp_path / "answers"), attempts=2).propose(wish)


def proposal(source: Source, command: str, declared: list[str] | None = None, *, asserts: bool = True) -> str:
    """One more step after those of a task, whose command may or may not do it, and may not be asked for."""
    outline, number = source.outline, len(source.outline.steps) + 1
    checks = [*outline.checks, (f"{number}-more:gone", ("is_absent", "x"))]
    checks += [(f"{number}-more:made", ("is_file", "more"))] if asserts else []
    return json.dumps(
        {
            "solution": f"#!/bin/bash\ncd /app || exit 1\n{outline.solution}{command}\n",
            "files": [{"path": "tests/test.sh", "content": verifier_script(checks)}],
            "instruction": f"{outline.instruction}{number}:write kiwi inside more\n",
            "pass_to_pass": [*source.ref.pass_to_pass, *([f"{number}-more:gone"] if declared is None else declared)],
        }
    )


async def grow(pool: Pool, folder: Path, backend: SandboxBackend, config: SynthesisConfig) -> list[RoundReport]:
    run = open_run(pool.folder, folder, config, 1)
    async with open_proposer(config, LocalStore(folder.parent / "answers")) as proposer:
        world = World(backend, LIMITS, PoolConfig(), 2, proposer)
        return await synthesize(run, folder, world, config, seed=1)


@pytest.mark.nightly
async def test_a_scripted_model_is_asked_mended_by_the_log_and_paid_for_once(
    backend: SandboxBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "OPERATORS", {})
    monkeypatch.setenv("JUDGE_API_KEY", "k")
    sources = {source.outline.steps[0].wording: source for source in roots(tmp_path / "roots", 5)}
    wordings = list(sources)

    def script(user: str, before: int) -> str:
        wording = next(each for each in wordings if f"1:{each}" in user)
        source, mends = sources[wording], "WHAT RUNNING IT SHOWED" in user
        if wording == wordings[0]:
            assert not mends or ("oracle_fails" in user and "more:made failed" in user)
            return proposal(source, "echo kiwi > more" if mends else "echo kiwi > less")
        if wording == wordings[1]:
            return proposal(source, "echo kiwi > more") if before else "no JSON"
        if wording == wordings[2]:
            return proposal(source, "echo kiwi > more", declared=[])
        return proposal(source, "echo kiwi > more", asserts=False) if wording == wordings[3] else "never JSON"

    with ScriptedJudge(script) as model:
        config = SynthesisConfig(rounds=1, tasks=5, waves=1, repairs=1, model=model.settings())
        (report,) = await grow(root_pool(tmp_path / "pool", 5), tmp_path / "grown", backend, config)
        asked = len(model.requests)
        assert asked == 2 + 2 + 2 + 2 + 2, "a mend, a second answer, mends in vain, two answers that are none"
        assert {json.dumps(request["response_format"])[:22] for request in model.requests} == {'{"type": "json_schema"'}
        assert await grow(Pool(tmp_path / "pool"), tmp_path / "grown", backend, config) == [report]
        assert len(model.requests) == asked
    fates = {fate.parents[0]: (fate.reason, fate.repairs) for fate in report.fates}
    assert list(dict(sorted(fates.items())).values()) == [
        ("", 1), ("", 0), ("undeclared_guards", 1), ("too_little_more", 1), ("no_proposal", 0),
    ]  # fmt: skip
    for ref in Pool(tmp_path / "grown").refs:
        task = load_task(tmp_path / "grown" / ref.task_id)
        assert (task.metadata["family"], ref.operator.split("-")[0], ref.round) == ("model", "model", "1")
        assert any(name.endswith("more:made") for name in ref.fail_to_pass)
