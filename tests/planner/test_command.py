"""`python -m components.planner`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from components.config.hugging_face import document
from components.planner.__main__ import main
from tests.planner.conftest import QWEN35_122B

MINIATURE = Path(__file__).parents[2] / "configs" / "miniature.yaml"
BUDGET = ["--gpus", "64", "--memory-gib", "95", "--context", "86016"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(document(QWEN35_122B)))
    return str(tmp_path)


def test_the_table_says_what_fits_and_what_decides(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", model, *BUDGET]) == 0
    text = capsys.readouterr().out
    for part in ("36 of them gated delta nets", "P_e 115.96 B", "384 B a token", "expert optimizer", "131,084"):
        assert part in text
    assert "fits" in text


def test_nothing_fits_eight_devices(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", model, "--gpus", "8", "--memory-gib", "95", "--context", "86016"]) == 1
    assert "0 of 16 layouts fit" in capsys.readouterr().out


def test_json_has_every_layout_in_bytes(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", model, *BUDGET, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"]["routing_bytes_per_token"] == 384
    (plan,) = (p for p in found["plans"] if list(p["layout"].values()) == [2, 4, 4, 2, 16])
    assert plan["fits"]
    assert plan["total"] == plan["stages"]["last"]["total"] < plan["budget"]
    assert found["split"] is None


def test_a_budget_of_everything_is_split(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", model, "--gpus", "128", "--memory-gib", "95", "--context", "86016"]
    assert main([*arguments, "--rollout", "1024", "--update", "2624"]) == 0
    assert "32 devices generate in 32.0, 96 train in 27.3" in capsys.readouterr().out
    assert main([*arguments, "--rollout", "1024", "--update", "2624", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["split"]["training"] == 96


def test_a_campaign_is_held_against_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(MINIATURE)]) == 0
    assert "of this machine" in capsys.readouterr().out
    assert main(["--model", str(MINIATURE), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fits"]


def test_a_campaign_on_gpus_is_held_against_those(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(MINIATURE.with_name("t1-122b.yaml")), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["layout"] == {"tp": 2, "pp": 4, "cp": 8, "dp": 2, "ep": 32}
    assert sum(found["terms"].values()) == found["total"] < found["memory"] == 95 << 30
    assert main(["--model", str(MINIATURE.with_name("t1-122b.yaml"))]) == 0
    assert "float32: actor" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--gpus", "0"], "--gpus 0"),
        ([], "--gpus is needed"),
        (["--gpus", "8", "--rollout", "3"], "come together"),
        (["--gpus", "8", "--context", "0"], "0 tokens"),
        (["--gpus", "8", "--memory-gib", "-1"], "not positive"),
    ],
)
def test_a_question_without_sense_is_refused(
    model: str, arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", model, *arguments]) == 2
    assert problem in capsys.readouterr().err


def test_a_missing_model_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--gpus", "8"], []):
        assert main(["--model", "/nowhere", *arguments]) == 2
        assert "there is no /nowhere" in capsys.readouterr().err
