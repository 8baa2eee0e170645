"""The diagnosis of a campaign that lies in a store."""

import pytest

from components.artifacts import LocalStore
from components.diagnostics import read
from components.diagnostics.__main__ import EXIT_RED, EXIT_REFUSED, main
from components.diagnostics.trajectory.__main__ import main as main_of_a_trial
from components.errors import ConfigError
from tests.diagnostics.campaigns import PLANTED, records
from tests.diagnostics.trajectories import BATCH, CAMPAIGN, stored_campaign

RL = {"rl": {"legs": 2, "leg_steps": 12}}


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store")


def keep(store, campaign, steps, evaluations=(0, 1, 2, 3)):
    for record in steps:
        store.put_json(f"campaigns/{campaign}/rl/steps/{record['step']:06d}/record.json", record)
    for index in evaluations:
        folder = f"campaigns/{campaign}/jobs/{campaign}-evaluate-{index}-abc"
        label = {0: "base", 1: "sft"}.get(index, f"leg-{index - 1}")
        store.put_json(f"{folder}/spec.json", {"index": index, "config": RL})
        score = {"resolved": 0.2 + 0.1 * min(index, 5), "stderr": 0.01}
        store.put_json(f"{folder}/result.json", {"label": label, "score": score})


def test_steps_come_in_order_and_evaluations_with_the_steps_behind_them(store):
    keep(store, "c-s1", reversed(records(steps=3)), evaluations=(739_000, 3, 1, 0))
    steps, evaluations = read(store, "c-s1")
    assert [record["step"] for record in steps] == [0, 1, 2]
    assert [(one.name, one.step) for one in evaluations] == [("base", 0), ("sft", 0), ("leg-2", 24)], "and no night's"


def test_a_campaign_that_is_not_there_is_refused_with_those_that_are(store, capsys):
    keep(store, "c-s1", records(steps=1))
    with pytest.raises(ConfigError, match="no step and no evaluation of 'd-s1'; it has c-s1"):
        read(store, "d-s1")
    assert main([store.url, "d-s1"]) == EXIT_REFUSED
    assert "it has c-s1" in capsys.readouterr().err


def test_the_command_prints_the_report_and_fails_where_it_is_red(store, capsys):
    keep(store, "sound-s1", records())
    assert main([store.url, "sound-s1"]) == 0
    assert "**Verdict: ok: nothing is wrong in what was measured.**" in capsys.readouterr().out
    _, planted = PLANTED["turns that explode"]
    keep(store, "sick-s1", planted.records())
    assert main([store.url, "sick-s1"]) == EXIT_RED
    assert "**Verdict: red: turns explode and win nothing" in capsys.readouterr().out


def test_the_command_names_the_trials_to_read(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("components.diagnostics.__main__.figures", lambda *series: {})
    store = stored_campaign(tmp_path)
    keep(store, CAMPAIGN, records(steps=4))
    assert main([store.url, CAMPAIGN]) == 0
    told = capsys.readouterr().out
    assert "## Trajectories to read" in told
    assert "| `hostile` | 3 |" in told
    assert f"python -m components.diagnostics.trajectory {store.url} TRIAL" in told
    (store.tree(BATCH) / "batch.json").unlink()
    assert main([store.url, CAMPAIGN, "--out", str(tmp_path / "out")]) == 0
    assert not (tmp_path / "out" / "trajectories").exists(), "what cannot be read has no page"


def test_the_command_tells_of_a_step_whose_trials_cannot_be_looked_at(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("components.diagnostics.__main__.figures", lambda *series: {})
    store = stored_campaign(tmp_path)
    keep(store, CAMPAIGN, records(steps=4))
    (tmp_path / "store" / "campaigns" / CAMPAIGN / "rl" / "trials" / "000003").write_bytes(b"other bytes")
    assert main([store.url, CAMPAIGN, "--out", str(tmp_path / "out")]) == 0
    assert "## Trials that could not be looked at\n\n- `step 3: " in capsys.readouterr().out
    assert "Trials that could not be looked at" in (tmp_path / "out" / "report.html").read_text()


def test_the_command_writes_the_report_and_the_pages_that_it_leads_to(tmp_path, monkeypatch):
    monkeypatch.setattr("components.diagnostics.__main__.figures", lambda *series: {})
    store = stored_campaign(tmp_path)
    keep(store, CAMPAIGN, records(steps=4))
    assert main([store.url, CAMPAIGN, "--out", str(tmp_path / "out")]) == 0
    report = (tmp_path / "out" / "report.html").read_text()
    for name in ("plain", "hostile"):
        assert f'<a href="trajectories/{name}.html">page</a>' in report
        assert f"Trial {name}" in (tmp_path / "out" / "trajectories" / f"{name}.html").read_text()
    assert main([store.url, CAMPAIGN, "--out", str(tmp_path / "out" / "report.html")]) == EXIT_REFUSED


def test_a_leg_that_stands_still_is_only_looked_for_where_one_runs(store, capsys):
    keep(store, "old-s1", records())
    assert main([store.url, "old-s1"]) == 0
    assert main([store.url, "old-s1", "--running"]) == EXIT_RED
    assert "the run stands still" in capsys.readouterr().out
    store.put_json("campaigns/old-s1/results.json", {})
    assert main([store.url, "old-s1", "--running"]) == 0, "it is finished, however old its last step is"
    assert "old-s1 is finished" in capsys.readouterr().err


@pytest.mark.parametrize("command", [main, main_of_a_trial])
def test_who_mistypes_the_store_is_told_so_and_no_folder_is_made(tmp_path, capsys, command):
    assert command([str(tmp_path / "nope"), "x-s1"]) == EXIT_REFUSED
    assert f"there is no store at {tmp_path}/nope" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
