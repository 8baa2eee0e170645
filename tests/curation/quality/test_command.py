"""The command line."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from components.config import PoolConfig
from components.curation.quality.__main__ import main
from components.pool import Split, generate
from components.pool.directory import write_task
from tests.curation.scripted_judge import KEY, ScriptedJudge, opinion


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    for task in islice(generate(PoolConfig(), Split.TRAIN, seed=3), 2):
        write_task(task, tmp_path / "pool" / task.task_id)
    return tmp_path / "pool"


def test_tasks_are_told_with_verdict_score_and_reason(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JUDGE", KEY)
    with ScriptedJudge(lambda user, _: opinion(0.9 if len(judge.users()) < 2 else 0.7)) as judge:
        asked = [str(pool), "--base-url", judge.settings()["base_url"], "--model", "m", "--key-from", "JUDGE"]
        asked += ["--samples", "1", "--concurrency", "1", "--prices", "1", "10", "--cache", str(tmp_path / "cache")]
        assert main(asked) == 1
        first, second, last = capsys.readouterr().out.splitlines()
        assert first == "train-00000: accepted 0.900"
        assert second.startswith("train-00001: borderline 0.700: score 0.700 is below 0.8; ")
        assert json.loads(last)["cost_usd"] == pytest.approx(0.004)
        assert main([*asked, "--json"]) == 1
        assert [task["verdict"] for task in json.loads(capsys.readouterr().out)["tasks"]] == ["accepted", "borderline"]
        assert len(judge.requests) == 2, "what was asked before is not asked again"


def test_a_question_that_makes_no_sense_is_refused(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JUDGE_API_KEY", raising=False)
    asked = ["--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--cache", str(tmp_path / "cache")]
    assert main([str(pool), *asked]) == 2
    assert "JUDGE_API_KEY is not set" in capsys.readouterr().err
    assert main([str(tmp_path / "cache"), *asked]) == 2
    assert "has no task" in capsys.readouterr().err
    assert main([str(pool), *asked, "--samples", "2"]) == 2
    assert "must be odd" in capsys.readouterr().err
