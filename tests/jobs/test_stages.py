"""The stages, for real: sandboxes, trainer, sampler, Ray. Everything is small, so nothing here learns much."""

from __future__ import annotations

import fcntl
import logging
import math
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from components.artifacts import LocalStore
from components.diagnostics.trajectory import decoder, find, view
from components.errors import Failure, JobFailed
from components.jobs import supervised
from components.jobs.job import Job
from components.pool import Pool
from components.rollout import Origin, load_batch
from tests.jobs.conftest import SmallCampaign

pytestmark = pytest.mark.timeout(600)


def test_curation_admits_executed_tasks_with_what_they_measure(campaign: SmallCampaign, pool: dict[str, Any]) -> None:
    assert (pool["train"], pool["heldout"], pool["warmup"], pool["rejected"]) == (10, 6, 5, 0)
    parts = {name: Pool(campaign.store.tree(pool["pool"]) / name).refs for name in ("train", "heldout", "warmup")}
    assert len({ref.digest for refs in parts.values() for ref in refs}) == 21, "no task is in two parts"
    for ref in parts["train"]:
        assert ref.fail_to_pass
        assert set(ref.fail_to_pass) | set(ref.pass_to_pass) == set(ref.assertion_ids)


def test_the_base_model_is_trained_and_loads_in_transformers(campaign: SmallCampaign, base: dict[str, Any]) -> None:
    folder = campaign.store.tree(base["checkpoint"])
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("1:write apple inside alpha\n$ ", return_tensors="pt").input_ids
    with torch.no_grad():
        assert model(ids).logits.isfinite().all()
    assert base["metrics"]["base/loss"] < math.log(campaign.config.model.vocab_size) / 3
    assert base["demonstrations"]["n"] == 60


def test_sft_continues_from_the_base_model_and_its_last_record_is_that_of_its_last_step(
    campaign: SmallCampaign, sft: dict[str, Any], base: dict[str, Any]
) -> None:
    assert sft["checkpoint"] != base["checkpoint"]
    assert "sft/loss" in sft["metrics"]
    for stage, result in (("base", base), ("sft", sft)):
        prefix = f"campaigns/{campaign.name}/{stage}/steps"
        keys = campaign.store.list(prefix)
        records = [campaign.store.get_json(key) for key in keys if key.endswith("/record.json")]
        assert {record["total"] for record in records} == {result["step"]}
        assert records[-1]["step"] + 1 == result["step"]
        states = [key for key in keys if key.endswith("/state")]
        assert states == [f"{prefix}/{record['step']:06d}/state" for record in records[-2:]], "the last two are kept"


def _damage(campaign: SmallCampaign, stage: str, step: int) -> None:
    """Changes one byte of the trainer's state after a step."""
    folder = campaign.store.tree(f"campaigns/{campaign.name}/{stage}/steps/{step:06d}/state")
    file = folder / "actor-00000.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def test_a_supervised_stage_whose_last_state_is_damaged_ends_in_the_same_weights_all_the_same(
    campaign: SmallCampaign, base: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Resumed at its record before, it computes bit for bit what the uninterrupted run computed."""
    config, store, last = campaign.config, campaign.store, base["step"] - 1
    assert config.base is not None
    made = (Path(store.url) / base["checkpoint"]).resolve().name
    _damage(campaign, "base", last)
    job = Job("base", campaign.name, 0, config, {}, store, tmp_path)
    with caplog.at_level(logging.INFO, "longshell"):
        tokenizer = store.tree(base["checkpoint"])
        result = supervised.train(job, config.base, start=None, tokenizer_from=tokenizer)
    (refused,) = result.pop("refused_states")
    assert (refused["step"], refused["continued_at"]) == (last, supervised.RECORD_EVERY)
    assert "actor-00000.safetensors" in refused["cause"]
    assert f"step {last} was taken again: its figures are those of its record" in caplog.text
    assert (Path(store.url) / result["checkpoint"]).resolve().name == made
    assert result == {name: base[name] for name in result}


def _driver(campaign: SmallCampaign) -> psutil.Process | None:
    """The Python process of the running leg."""
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "components.jobs.rl" in command and any(campaign.name in part for part in command):
            return process
    return None


@contextmanager
def _uncommitted(store: LocalStore, key: str) -> Iterator[None]:
    """A writer of that key waits meanwhile: it finds the store's lock taken."""
    home = Path(store.url) / ".data" / key
    home.mkdir(parents=True)
    with (home / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _kill_after_two_commits(campaign: SmallCampaign, running: Future[Any], within_s: float = 400.0) -> dict[str, Any]:
    """Kills the driver of the running leg when trials of a batch have ended that is not in the store; gives what there
    was then."""
    deadline = time.monotonic() + within_s
    prefix = f"campaigns/{campaign.name}/rl"
    while not (campaign.store.exists(f"{prefix}/steps/000001/record.json") and _under_way(campaign)):
        assert not running.done(), running.exception()
        assert time.monotonic() < deadline, "no second commit"
        time.sleep(0.02)
    driver = _driver(campaign)
    assert driver is not None
    children = driver.children(recursive=True)
    driver.kill()
    driver.wait(60)
    store = Path(campaign.store.url)
    described = {key.rpartition("/")[2] for key in campaign.store.list(f"{prefix}/rollouts")}
    keys = [key for key in campaign.store.list(f"{prefix}/batches") if key.rpartition("/")[2] in described]
    steps = campaign.store.list(f"{prefix}/steps")
    return {
        "children": children,
        "last": max(int(key.split("/")[-2]) for key in steps if key.endswith("/record.json")),
        "records": {step: campaign.record(step) for step in (0, 1)},
        "batches": {key: (store / key).resolve().name for key in keys},
        "under way": _under_way(campaign),
    }


def _under_way(campaign: SmallCampaign) -> dict[int, set[str]]:
    """Trials that have ended in a step whose batch is not in the store, by that step."""
    found: dict[int, set[str]] = {}
    for place in Path(tempfile.gettempdir()).glob(f"longshell-*/{campaign.name}/rl/finished/*/[0-9]*/[!.]*"):
        found.setdefault(int(place.parent.name), set()).add(place.name)
    batches = f"campaigns/{campaign.name}/rl/batches"
    return {step: ended for step, ended in found.items() if not campaign.store.exists(f"{batches}/{step:06d}")}


@pytest.fixture(scope="module")
def leg(campaign: SmallCampaign, pool: dict[str, Any], sft: dict[str, Any]) -> dict[str, Any]:
    """A leg whose driver was killed with SIGKILL, after its second commit; whose last state was damaged then, and that
    was run again. It cannot end before it is killed: it does not get its last batch into the store."""
    inputs = {"pool": pool["pool"], "checkpoint": sft["checkpoint"], "state": None, "critic": None, "first_step": 0}
    with ThreadPoolExecutor(1) as beside:
        with _uncommitted(campaign.store, f"campaigns/{campaign.name}/rl/batches/000003"):
            running = beside.submit(campaign.run, "rl", inputs, 1)
            before = _kill_after_two_commits(campaign, running)
        with pytest.raises(JobFailed) as killed:
            running.result()
    _damage(campaign, "rl", before["last"])
    result = campaign.run("rl", inputs, index=1)
    return {"result": result, "failure": killed.value.failure, **before}


def test_a_killed_leg_leaves_no_process_behind(leg: dict[str, Any]) -> None:
    assert leg["failure"] is Failure.INFRASTRUCTURE
    _, alive = psutil.wait_procs(leg["children"], timeout=60)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_a_killed_leg_continues_at_its_last_whole_state_and_records_no_step_twice(
    campaign: SmallCampaign, leg: dict[str, Any]
) -> None:
    last = leg["last"]
    assert {step: campaign.record(step) for step in (0, 1)} == leg["records"]
    assert any(f"continuing at step {last}" in line for line in campaign.lines)
    (refused,) = leg["result"]["refused_states"]
    assert (refused["step"], refused["continued_at"]) == (last, last)
    assert leg["result"]["step"] == 4
    assert [campaign.record(step)["step"] for step in range(4)] == [0, 1, 2, 3]


def test_what_the_rollout_actor_says_is_in_the_jobs_log_with_its_level_and_its_step(
    campaign: SmallCampaign, leg: dict[str, Any]
) -> None:
    said = [line for line in campaign.lines if "INFO trials admitted 4" in line]
    assert {line.rpartition(" ")[2] for line in said} >= {f"[step={step}]" for step in range(leg["last"] + 1, 4)}


def test_a_step_that_is_taken_again_computes_what_the_uninterrupted_leg_computed(
    campaign: SmallCampaign, leg: dict[str, Any]
) -> None:
    """Losses, norms, gaps and explained variance, bit for bit: weights, moments, snapshot and cursor are those."""
    (told,) = [line for line in campaign.lines if "was taken again" in line]
    assert f"step {leg['last']} was taken again: its figures are those of its record" in told


def test_no_trial_that_had_ended_is_run_again(campaign: SmallCampaign, leg: dict[str, Any]) -> None:
    """As in `test_faults.py`, here with a real kill."""
    assert list(leg["under way"]) == [3]
    for step, ended in leg["under way"].items():
        batch = load_batch(campaign.store.tree(f"campaigns/{campaign.name}/rl/batches/{step:06d}"))
        assert ended <= {row.trial_id for row in batch.ledger.rows}
        assert campaign.record(step)["metrics"]["rollout/reused"] >= len(ended)


def test_no_batch_of_a_committed_step_is_generated_again(campaign: SmallCampaign, leg: dict[str, Any]) -> None:
    store = Path(campaign.store.url)
    assert len(leg["batches"]) >= 2
    assert {key: (store / key).resolve().name for key in leg["batches"]} == leg["batches"]


def test_every_launched_trial_is_accounted_for_and_nothing_drifts(campaign: SmallCampaign, leg: dict[str, Any]) -> None:
    for step in range(4):
        metrics = campaign.record(step)["metrics"]
        outcomes = ("admitted", "cancelled", "carried", "continued", "infra_faults")
        ended = sum(metrics[f"rollout/{outcome}"] for outcome in outcomes)
        assert metrics["rollout/launched"] + metrics["rollout/resumed"] == ended
        assert metrics["rollout/cancelled"] == 0
        assert metrics["tito/drift"] == 0
        assert metrics["tito/reencoded_context"] == 0
        assert metrics["gap/engine_max"] < 1e-3
        assert "critic/explained_variance" in metrics
        assert ("ppo/loss" in metrics) == (step >= 1)


def test_a_chunk_has_one_version_and_only_what_was_carried_is_older_than_the_step(
    campaign: SmallCampaign, leg: dict[str, Any]
) -> None:
    for step in range(4):
        batch = load_batch(campaign.store.tree(f"campaigns/{campaign.name}/rl/batches/{step:06d}"))
        new = {row.trial_id for row in batch.ledger.rows if row.origin in (Origin.DRAWN, Origin.RELAUNCHED)}
        drawn = [sample.weight_version for sample in batch.samples if sample.trial_id in new]
        assert set(drawn) <= {max(step - 1, 0)}
        assert all(sample.weight_version <= max(step - 1, 0) for sample in batch.samples)
        assert len(batch.trials) == campaign.config.rollout.batch


def test_what_a_step_passes_over_is_in_the_next_one_also_across_a_kill(
    campaign: SmallCampaign, leg: dict[str, Any]
) -> None:
    owed: list[str] = []
    for step in range(4):
        produced = campaign.store.get_json(f"campaigns/{campaign.name}/rl/rollouts/{step:06d}")
        batch = load_batch(campaign.store.tree(f"campaigns/{campaign.name}/rl/batches/{step:06d}"))
        came_back = [row.task_id for row in batch.ledger.rows if row.origin in (Origin.RESUMED, Origin.RETURNED)]
        still_owed = [trial["task_id"] for trial in produced["unfinished"]]
        assert set(owed) <= {*came_back, *still_owed}
        owed = still_owed
    assert owed, "five were launched for four places"


@pytest.fixture(scope="module")
def score(campaign: SmallCampaign, pool: dict[str, Any], leg: dict[str, Any]) -> dict[str, Any]:
    inputs = {"pool": pool["pool"], "checkpoint": leg["result"]["checkpoint"], "trials": 6, "label": "leg-1"}
    return campaign.run("evaluate", inputs, index=3)


@pytest.fixture(scope="module")
def report(campaign: SmallCampaign, score: dict[str, Any]) -> dict[str, Any]:
    results = {"sft": {**score, "step": 0}, "leg-1": {**score, "step": 4}}
    return campaign.run("diagnose", {"results": results, "through": None, "before": 2})


def test_the_legs_checkpoint_is_evaluated(campaign: SmallCampaign, score: dict[str, Any]) -> None:
    assert score["n"] == 6
    assert 0 <= score["pass_rate"] <= 1
    assert len(load_batch(campaign.store.tree(score["trials"])).trials) == 6


def test_a_campaign_is_diagnosed_from_its_scores_and_since_the_leg_before(
    campaign: SmallCampaign, report: dict[str, Any]
) -> None:
    text = campaign.store.get_bytes(report["report"]).decode()
    assert "Verdict" in text
    assert "(sft) →" in text, "the score after RL is held against the one before"
    assert "leg-1" in text
    assert "## Since the leg before" in text
    whole = campaign.store.get_bytes(report["page"]).decode()
    assert whole.count("data:image/png;base64,") == len(report["figures"])
    assert all(campaign.store.get_bytes(key).startswith(b"\x89PNG") for key in report["figures"])


def test_the_report_leads_to_the_pages_of_trials_with_what_the_trainer_said_of_each_token(
    campaign: SmallCampaign, report: dict[str, Any]
) -> None:
    text = campaign.store.get_bytes(report["report"]).decode()
    assert 1 <= len(report["trajectories"]) <= 6
    for told in report["trajectories"]:
        trial, page = told["row"]["trial_id"], campaign.store.get_bytes(told["page"]).decode()
        assert told["page"] == report["report"].replace("report.md", f"trajectories/{trial}.html")
        assert f"`{trial}` [page](trajectories/{trial}.html)" in text
        found = find(campaign.store, trial)
        seen = view(found, decoder(campaign.store, found.campaign))
        pieces = [piece for turn in seen.turns for piece in turn.pieces]
        assert sum(len(piece.ids) for piece in pieces) == told["row"]["sampled"]
        gaps = [piece.gap for piece in pieces if piece.gap is not None and len(piece.ids) == 1]
        assert len(gaps) > 0.9 * len(pieces)
        assert max(gaps) < 0.5, "the trainer's log-probs are those of the same tokens"
        assert page.count('title="id ') == len(pieces)
    rows = campaign.store.get_json(f"campaigns/{campaign.name}/rl/trials/000001")
    gap = sum(row["gap"] * row["sampled"] for row in rows) / sum(row["sampled"] for row in rows)
    assert gap == pytest.approx(campaign.record(1)["metrics"]["gap/engine_token_mean"], rel=1e-3)


@pytest.mark.nightly
def test_a_stage_whose_input_is_no_checkpoint_is_refused_and_not_retried(
    campaign: SmallCampaign, pool: dict[str, Any]
) -> None:
    inputs = {"pool": pool["pool"], "checkpoint": pool["pool"], "trials": 2, "label": "wrong"}
    with pytest.raises(JobFailed, match=r"tokenizer|config\.json") as caught:
        campaign.run("evaluate", inputs, index=9)
    assert caught.value.failure is Failure.REFUSED
