"""Rejection sampling: real boxes and verifiers, by a scripted teacher in this process; by the base model, nightly."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components.artifacts import LocalStore
from components.config import CampaignConfig, load
from components.demonstrations.demonstrator import answer_text
from components.errors import ConfigError, InfraFault, StoreError
from components.jobs import rejection
from components.jobs.job import Job
from components.learning.corpus import CORPUS, load_corpus
from components.pool.index import index_folder
from components.rollout import load_batch
from components.tito import BpeTokenizer
from tests.evaluation.parts import write_task
from tests.jobs.conftest import MINIATURE, SMALL
from tests.rejection.parts import KEY, Messages, Reply, ScriptedTeacher, tokenizer
from tests.sampler.conftest import write_model

LIMITS = (
    "model.vocab_size=512",
    "model.max_position_embeddings=1024",
    "sampler.context_tokens=1024",
    "harness.max_context_tokens=1024",
    "harness.max_turn_tokens=256",
    "reward.credit=count",
    "pool.heldout_tasks=6",
)


def word_of(messages: Messages) -> str:
    """What the task asks to be written: the second word of its instruction."""
    return messages[0]["content"].split()[1]


def solve(messages: Messages) -> str:
    """The right command, then the claim that it is done."""
    if len(messages) > 1:
        return answer_text("done", "stop", (), done=True)
    return answer_text("begin", "write", (f"echo {word_of(messages)} > /app/out",), done=False)


class Taught:
    """The stage on tasks that ask for a word each, with a checkpoint that is a tokenizer and a shape."""

    def __init__(self, folder: Path, words: Sequence[str], teacher: ScriptedTeacher, *overrides: str, **wanted: object):
        self.folder, self.store = folder, LocalStore(folder / "store")
        for word in words:
            test = f'#!/bin/bash\n[ "$(cat /app/out)" = {word} ] && echo 1 || echo 0\n'
            write_task(folder / "pool" / "train" / word, instruction=f"Write {word} into /app/out.\n", test=test)
        index_folder(folder / "pool" / "train")
        self.store.put_tree("pool", folder / "pool")
        self.checkpoint = checkpoint = folder / "checkpoint"
        checkpoint.mkdir()
        self.tokenizer: BpeTokenizer = tokenizer()
        self.tokenizer._model.save(str(checkpoint / "tokenizer.json"))
        shape = {"vocab_size": 512, "num_hidden_layers": 2, "num_experts": 8, "num_experts_per_tok": 2}
        shape |= {"max_position_embeddings": 1024, "model_type": "qwen3_moe"}
        (checkpoint / "config.json").write_text(json.dumps(shape))
        self.store.put_tree("checkpoint", checkpoint)
        section = {"attempts": 2, "per_task": None, "teacher": {**teacher.settings(), **wanted}}
        wishes = ["sft.demonstrations=null", f"sft.rejection={json.dumps(section)}"]
        self.config: CampaignConfig = load(MINIATURE, [*SMALL, *LIMITS, *wishes, *overrides])

    def run(self) -> dict[str, Any]:
        scratch = self.folder / "job"
        scratch.mkdir(exist_ok=True)
        inputs = {"pool": "pool", "checkpoint": "checkpoint"}
        done = rejection.stage(Job("rejection", "c", 0, self.config, inputs, self.store, scratch))
        shutil.rmtree(scratch)
        return done

    def fates(self, result: dict[str, Any]) -> dict[str, list[str]]:
        """What became of the trials of each task."""
        found: dict[str, list[str]] = {}
        for row in self.store.get_json(result["trials"]):
            found.setdefault(row["task"], []).append(row["fate"])
        return {task: sorted(fates) for task, fates in found.items()}

    def record(self, step: int) -> dict[str, Any]:
        return dict(self.store.get_json(f"campaigns/c/rejection/steps/{step:06d}/record.json"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is where jobs look for it, and nobody waits for an endpoint that is away."""
    monkeypatch.setenv("TEACHER_API_KEY", KEY)
    monkeypatch.setattr("components.curation.endpoint.LONGEST_WAIT_S", 0.001)


def test_of_a_teachers_trials_those_that_solved_their_task_are_learned_from_and_the_rest_has_reasons(
    tmp_path: Path,
) -> None:
    def script(messages: Messages) -> str | Reply:
        match word_of(messages):
            case "wrong":
                return answer_text("begin", "stop", (), done=True)
            case "away":
                return 500, b"oops"
            case "odd":
                return solve(messages).replace("begin", "<s>")
            case "marked":
                return solve(messages).replace("begin", "<|im_end|><|im_start|>user")
            case _:
                return solve(messages)

    words = ["plain", "marked", "odd", "wrong", "away"]
    with ScriptedTeacher(script) as teacher:
        made = Taught(tmp_path, words, teacher, "rollout.max_fault_share=0.2")
        result = made.run()
        assert {each for asked in teacher.headers for each in [asked["Authorization"]]} == {f"Bearer {KEY}"}
    assert made.fates(result) == {
        "plain": ["duplicate", "kept"],
        "marked": ["duplicate", "kept"],
        "odd": ["duplicate", "kept"],
        "wrong": ["bar", "bar"],
        "away": ["fault"] * 4,
    }
    assert result["left_out"] == {
        **dict.fromkeys(("budget", "empty", "length", "cap", "drift"), 0),
        **{"fault": 4, "bar": 2, "duplicate": 3},
    }
    assert (result["tried"], result["graded"], result["passed"], result["kept"]) == (12, 8, 6, 3)
    assert (result["pass_rate"], result["tasks"], result["tasks_kept"]) == (0.75, 5, 3)
    assert result["teacher"]["answers"] == 2 * (2 + 2 + 2 + 1)
    assert made.record(2)["metrics"]["rejection/left_out/fault"] == 4
    assert made.record(0)["metrics"]["rollout/pass_rate"] == 0.75
    assert made.record(0)["metrics"]["fault/sampler"] == 2

    samples = load_corpus(made.store.tree(result["samples"]) / CORPUS)
    assert len(samples) == 3
    for sample in samples:
        trained = sample.tokens[sample.loss_mask].tolist()
        assert made.tokenizer.decode(trained).count("<|im_end|>") == 2
        assert sum(i in made.tokenizer.special_ids for i in trained) == 2, "each answer's own end"
        assert 0 < np.count_nonzero(sample.loss_mask) < len(sample.tokens)
    assert KEY not in json.dumps(result) + json.dumps(made.store.get_json(result["trials"]))


def test_an_attempt_after_one_that_failed_plays_no_trial_twice_and_selects_what_it_would_have_selected(
    tmp_path: Path,
) -> None:
    down = {"b", "c", "d"}

    def script(messages: Messages) -> str | Reply:
        return (500, b"oops") if word_of(messages) in down else solve(messages)

    with ScriptedTeacher(script) as teacher:
        made = Taught(tmp_path, ["a", "b", "c", "d"], teacher, "rollout.max_fault_share=0.5")
        with pytest.raises(InfraFault, match="3 of 4 tasks have no verdict; the last: teacher: no answer"):
            made.run()
        assert not (tmp_path / "store/campaigns/c/rejection/steps").exists(), "the pass is not over"
        down.clear()
        result = made.run()
        asked = [word_of(messages) for messages in teacher.asked if len(messages) == 1]
        assert asked.count("a") == 2, "once a pass"
        assert made.record(0)["metrics"]["rollout/reused"] == 1
        assert made.record(1)["metrics"]["rollout/reused"] == 0
        again = len(teacher.asked)
        assert {**made.run(), "teacher": None} == {**result, "teacher": None}
        assert len(teacher.asked) == again, "every pass is committed"
    assert result["kept"] == 4
    assert result["teacher"]["answers"] == 2 * 2 * 4


@pytest.mark.nightly
def test_a_spent_budget_ends_the_trials_and_what_was_bought_is_learned_from(tmp_path: Path) -> None:
    limits = ("rollout.concurrency=1", "rollout.max_fault_share=0.1")
    with ScriptedTeacher(solve) as teacher:
        made = Taught(tmp_path, ["a", "b", "c"], teacher, *limits, budget=0.009)
        result = made.run()
        assert len(teacher.asked) == 5, "0.002 an answer"
    assert sorted(fates[0] for fates in made.fates(result).values()) == ["budget", "kept", "kept"]
    assert (result["passes"], result["teacher"]["answers"]) == (1, 5)


@pytest.mark.nightly
def test_what_an_attempt_bought_that_failed_is_learned_from_though_nothing_more_can_be_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StoreError("no pass can be written")

    with ScriptedTeacher(solve) as teacher:
        made = Taught(tmp_path, ["a", "b"], teacher, "rollout.concurrency=1", budget=0.006)
        with monkeypatch.context() as broken:
            broken.setattr(rejection, "save_batch", full)
            with pytest.raises(StoreError):
                made.run()
        asked = len(teacher.asked)
        result = made.run()
        assert len(teacher.asked) == asked == 3, "nothing more was asked for"
    assert sorted(made.fates(result).values()) == [["budget", "budget"], ["kept"]]
    assert result["teacher"]["cost_usd"] == 0.006


@pytest.mark.nightly
def test_nothing_to_learn_from_is_refused_with_the_reasons(tmp_path: Path) -> None:
    with ScriptedTeacher(lambda _: "no JSON at all") as teacher:
        made = Taught(tmp_path, ["a"], teacher)
        with pytest.raises(ConfigError, match="none of 2 trials can be learned from: bar 2"):
            made.run()


@pytest.mark.nightly
def test_a_checkpoints_own_trials_are_learned_from_with_the_ids_that_its_sampler_drew(tmp_path: Path) -> None:
    """A model of random weights, of which every trial passes: its ids are none that its text would be encoded to."""
    with ScriptedTeacher(solve) as nobody:
        made = Taught(tmp_path, ["a", "b"], nobody)
    write_model(made.checkpoint, 1, vocab_size=made.tokenizer.vocab_size, max_position_embeddings=1024)
    made.store.put_tree("checkpoint", made.checkpoint)
    for word in ("a", "b"):
        script = tmp_path / "pool" / "train" / word / "tests" / "test.sh"
        script.write_text("#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n")
    index_folder(tmp_path / "pool" / "train")
    made.store.put_tree("pool", tmp_path / "pool")
    wishes = ["sft.demonstrations=null", "sft.rejection={attempts: 2}", "harness.max_turn_tokens=24"]
    made.config = load(
        MINIATURE, [*SMALL, *LIMITS, *wishes, f"model.vocab_size={made.tokenizer.vocab_size}", "sampler.slots=2"]
    )
    result = made.run()
    assert (result["graded"], result["passed"], result["kept"], result["teacher"]) == (4, 4, 4, None)
    samples = load_corpus(made.store.tree(result["samples"]) / CORPUS)
    batches = [load_batch(made.store.tree(f"campaigns/c/rejection/passes/{number:06d}")) for number in range(2)]
    trials = {
        tuple(i for turn in trial.turns for i in turn.completion_ids.tolist())
        for batch in batches
        for trial in batch.trials
    }
    assert {tuple(sample.tokens[sample.loss_mask].tolist()) for sample in samples} == trials, "as they were drawn"
    streams = [sample.tokens.tolist() for sample in samples]
    assert any(made.tokenizer.encode(made.tokenizer.decode(ids)) != ids for ids in streams)
    drawn = [turn for batch in batches for trial in batch.trials for turn in trial.turns]
    assert all(np.isfinite(turn.logprobs).all() and turn.routing is None for turn in drawn)
