"""The evaluation job on a suite, by either harness, with a tiny model of random weights. Without Ray; nightly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from components.artifacts import LocalStore
from components.config import load
from components.jobs.evaluate import stage
from components.jobs.job import Job
from components.rollout import load_batch
from tests.evaluation.parts import write_task
from tests.gateway.conftest import VOCABULARY, write_tokenizer
from tests.harness.harbor_installed import installed
from tests.sampler.conftest import write_model
from tests.sandbox.conftest import needs_root

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900), needs_root]
CONFIG = Path(__file__).parents[2] / "configs" / "miniature.yaml"
TASKS = tuple(f"write-{number}" for number in range(6))
PADDED = 264
"""Rows of the embedding; a configuration takes no fewer than 260."""
CONTEXT = 16_384
"""Terminus-2's first message is five thousand bytes, each a token of this model; its second call has the screen too."""


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """A store with a checkpoint whose every answer is noise."""
    shape = {"vocab_size": PADDED, "eos_token_id": VOCABULARY - 1, "initializer_range": 0.02}
    folder = write_model(tmp_path / "checkpoint", seed=0, max_position_embeddings=CONTEXT, **shape)
    write_tokenizer(folder)
    store = LocalStore(tmp_path / "store")
    store.put_tree("checkpoint", folder)
    return store


def evaluated(store: LocalStore, folder: Path, *overrides: str) -> dict[str, Any]:
    limits = (
        f"model.vocab_size={PADDED}",
        f"model.max_position_embeddings={CONTEXT}",
        f"harness.max_context_tokens={CONTEXT}",
        f"sampler.context_tokens={CONTEXT}",
        f"trainer.micro_batch_tokens={CONTEXT}",
        "sampler.slots=6",
        "harness.max_turns=2",
        "harness.max_turn_tokens=2000",
        "rollout.agent_timeout_s=300",
        f"evaluation.suites=[{{name: local, path: {folder / 'suite'}, benchmark: lhtb}}]",
    )
    config = load(CONFIG, [*limits, *overrides])
    inputs = {"suite": "local", "label": "2026-11-30-base", "checkpoint": "checkpoint"}
    (folder / "scratch").mkdir(exist_ok=True)
    return stage(Job("evaluate", "c-s1", 1_000, config, inputs, store, folder / "scratch"))


@pytest.mark.parametrize("harness", ["native", "harbor"])
def test_a_suite_is_run_whole_by_either_harness_and_its_numbers_say_by_which(
    tmp_path: Path, store: LocalStore, harness: str
) -> None:
    for number, name in enumerate(TASKS):
        write_task(tmp_path / "suite" / name, category=("text", "files")[number % 2], agent_s=300)
    write_task(tmp_path / "suite" / "hidden", test=None)
    venv = [f"evaluation.harbor.venv={installed()}"] if harness == "harbor" else []
    result = evaluated(store, tmp_path, f"evaluation.harness={harness}", *venv)

    trials = load_batch(store.tree(result["trials"])).trials
    assert {trial.task.task_id for trial in trials} == set(TASKS), result["score"]
    score = result["score"]
    assert (score["trials"], score["faults"]) == (6, 0)
    assert score["resolved"] == 0, "noise solves nothing"
    assert score["verifier_reward"] == 0
    assert 1 <= score["turns_mean"] <= 2
    assert score["sampled_tokens_mean"] > 0
    assert set(score["by_category"]) == {"text", "files"}
    assert result["harness"].startswith(harness)
    assert result["metrics"][f"eval/local.miniature.{harness}/trials_of/all"] == 6
    assert result["headline"] == {"name": "verifier_reward", "value": 0}
    assert (result["coverage"]["unscorable"], result["coverage"]["expected"]) == (1, 46)
    assert result["trials"] == "campaigns/c-s1/evaluate/local/2026-11-30-base/trials"
    if harness == "harbor":
        kept = store.tree(result["harbor"])
        assert len(list(kept.glob("local-*/*/agent/trajectory.json"))) == 6
