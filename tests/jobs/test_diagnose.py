"""The report of a campaign that lies in a store: which trials it leads to, and what it does without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from components.artifacts import LocalStore
from components.config import load
from components.diagnostics.trajectory import Chosen, beside, html, section
from components.jobs import diagnose
from components.jobs.job import Job
from tests.diagnostics.campaigns import records
from tests.diagnostics.test_trajectory import seen
from tests.diagnostics.trajectories import BATCH, CAMPAIGN, stored_campaign

MINIATURE = Path(__file__).parents[2] / "configs" / "miniature.yaml"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    monkeypatch.setattr(diagnose, "figures", lambda *series: {})  # drawn in tests/diagnostics
    made = stored_campaign(tmp_path)
    for record in records(steps=4):
        made.put_json(f"campaigns/{CAMPAIGN}/rl/steps/{record['step']:06d}/record.json", record)
    return made


def report(store: LocalStore, folder: Path, *, before: int = 0) -> dict[str, Any]:
    inputs = {"results": {}, "through": 4, "before": before}
    return diagnose.stage(Job("diagnose", CAMPAIGN, 1, load(MINIATURE, ["name=m"]), inputs, store, folder))


def test_the_report_leads_to_the_pages_of_the_trials_that_it_chose(store: LocalStore, tmp_path: Path) -> None:
    result = report(store, tmp_path)
    told = {each["row"]["trial_id"]: each for each in result["trajectories"]}
    assert told.keys() == {"plain", "hostile"}
    assert (told["plain"]["step"], told["plain"]["batch"]) == (3, BATCH)
    assert any(reason.startswith("signs of work against the verifier") for reason in told["hostile"]["reasons"])
    for name, each in told.items():
        assert each["page"] == f"campaigns/{CAMPAIGN}/diagnose/step-000004/trajectories/{name}.html"
        assert store.get_bytes(each["page"]).decode() == html(seen(store, name))
    text = store.get_bytes(result["report"]).decode()
    read = [Chosen.from_json(each) for each in result["trajectories"]]
    assert text.endswith(section(read, beside(told)))
    page = store.get_bytes(result["page"]).decode()
    assert '<a href="trajectories/plain.html">page</a>' in page
    assert "<b>" not in page.partition("Trajectories to read")[2], "a task's name is no markup"


def test_a_trial_whose_batch_is_damaged_is_named_without_a_page(store: LocalStore, tmp_path: Path) -> None:
    (store.tree(BATCH) / "arrays.safetensors").unlink()
    result = report(store, tmp_path)
    assert [each["page"] for each in result["trajectories"]] == [None, None]
    assert "`plain` | 3 |" in store.get_bytes(result["report"]).decode()


def test_only_the_steps_since_the_report_before_are_chosen_from(store: LocalStore, tmp_path: Path) -> None:
    assert report(store, tmp_path, before=4)["trajectories"] == []
    store.delete(f"campaigns/{CAMPAIGN}/rl/trials")
    result = report(store, tmp_path)
    assert result["trajectories"] == [], "its steps were taken before rows were kept"
    assert "Trajectories to read" not in store.get_bytes(result["report"]).decode()


@pytest.mark.parametrize("rows", [None, {}, [{"trial_id": "t"}], ["t"]])
def test_a_step_whose_rows_cannot_be_read_is_named_and_ends_no_report(
    store: LocalStore, tmp_path: Path, rows: Any
) -> None:
    key = f"campaigns/{CAMPAIGN}/rl/trials/000002"
    store.put_json(key, rows)
    if rows is None:
        (tmp_path / "store" / key).write_bytes(b"other bytes")
    result = report(store, tmp_path)
    assert {each["row"]["trial_id"] for each in result["trajectories"]} == {"plain", "hostile"}, "those of other steps"
    text = store.get_bytes(result["report"]).decode()
    assert "## Trials that could not be looked at\n\n- `step 2: " in text
    assert "Trials that could not be looked at" in store.get_bytes(result["page"]).decode()
