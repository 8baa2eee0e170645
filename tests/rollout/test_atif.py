"""Trials as ATIF documents, held against the format's rules, and against Harbor's own models where it is installed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from components.artifacts import LocalStore
from components.config import SandboxConfig
from components.errors import RecordError, StopReason
from components.gateway import ChatTemplate, Trajectory, chatml
from components.harness import ScriptedPolicy, run_trial
from components.records import Reward, Trial, Turn
from components.rollout import Ledger, Origin, Outcome, save_batch
from components.rollout.atif import EXIT_REFUSED, REWRITTEN, main, to_atif, write_atif
from components.sandbox import SandboxSpec
from components.tito import BpeTokenizer
from tests.harness import harbor_installed
from tests.harness.parts import BUDGET, REF, ByteTokenizer, FakePolicy, PlainTask, answer, terse, trajectory
from tests.harness.test_trial import FakeBackend
from tests.rollout.parts import faulted, report

STEP = {
    "step_id",
    "source",
    "message",
    "tool_calls",
    "observation",
    "metrics",
    "is_copied_context",
    "llm_call_count",
    "extra",
}
METRICS = {"prompt_tokens", "completion_tokens", "completion_token_ids", "logprobs", "extra"}
REWARD = Reward(0.05, 1, 2, False)


async def trial(policy, **changes) -> Trial:
    return await run_trial(
        PlainTask(Path("/nowhere"), SandboxSpec()),
        trial_id="t1",
        backend=FakeBackend(),
        trajectory=policy if isinstance(policy, Trajectory) else trajectory(policy),
        config=terse(**changes),
        sandbox=SandboxConfig(),
        agent_timeout_s=5,
        verifier_timeout_s=5,
    )


async def compacted() -> Trial:
    says = (*[answer("x" * 120)] * 3, "did x", "why?", "because", "not JSON", answer("ls", "pwd"))
    return await trial(FakePolicy(*says), max_context_tokens=1200, compaction=BUDGET)


async def cut() -> Trial:
    return await trial(FakePolicy(answer("y" * 400)), max_turn_tokens=100)


TRIALS = {"plain": lambda: trial(FakePolicy(answer("ls"))), "compacted": compacted, "cut": cut}


def check(document: dict[str, Any]) -> None:
    """The format's rules, as far as our documents use it. It forbids fields that it does not know."""
    assert set(document) == {
        *("schema_version", "session_id", "trajectory_id", "agent", "steps", "final_metrics", "extra")
    }
    assert set(document["agent"]) == {"name", "version", "model_name"}
    assert [step["step_id"] for step in document["steps"]] == list(range(1, len(document["steps"]) + 1))
    for step in document["steps"]:
        assert set(step) <= STEP
        assert isinstance(step["message"], str)
        assert step["source"] in ("system", "user", "agent")
        assert step["source"] == "agent" or not {"tool_calls", "metrics"} & set(step)
        assert set(step.get("metrics", {})) <= METRICS
        calls = {call["tool_call_id"] for call in step.get("tool_calls", [])}
        for result in step.get("observation", {"results": []})["results"]:
            assert set(result) <= {"source_call_id", "content"}
            assert result.get("source_call_id") in {None, *calls}
    json.dumps(document, allow_nan=False)


@pytest.mark.parametrize("name", TRIALS)
async def test_a_document_keeps_the_formats_rules_and_every_answer_is_one_step(name: str) -> None:
    done = await TRIALS[name]()
    document = to_atif(done, ByteTokenizer(), model="tiny", reward=REWARD)
    check(document)
    drawn = [
        step["metrics"]["completion_token_ids"]
        for step in document["steps"]
        if step["source"] == "agent" and not step.get("is_copied_context")
    ]
    assert drawn == [turn.completion_ids.tolist() for turn in done.turns]


async def test_a_step_has_its_answer_its_commands_and_what_came_of_them() -> None:
    done = await trial(FakePolicy("hm " + answer("ls"), answer("a", "b"), answer(done=True)))
    document = to_atif(done, ByteTokenizer(), model="tiny", reward=REWARD)
    first, one, two, last = document["steps"]
    assert (first["source"], first["message"]) == ("user", "write a word\n$ ")
    assert one["message"] == "hm " + answer("ls")
    assert one["tool_calls"] == [
        {
            "tool_call_id": "call_2_1",
            "function_name": "bash_command",
            "arguments": {"keystrokes": "ls\n", "duration": 0.1},
        }
    ]
    expected = "! text before the JSON object\n<ls>\n$ "
    assert one["observation"] == {"results": [{"source_call_id": "call_2_1", "content": expected}]}
    assert two["observation"] == {"results": [{"content": "<a>\n$ <b>\n$ "}]}  # of two commands
    assert [call["function_name"] for call in last["tool_calls"]] == ["mark_task_complete"]
    assert "observation" not in last
    assert last["metrics"]["logprobs"] == [-0.5] * len(done.turns[-1].completion_ids)
    assert document["extra"] == {"task": "task-1", "stop": StopReason.COMPLETED, "outcome": True, "reward": 0.05}
    assert document["final_metrics"]["total_steps"] == 4


async def test_a_rewritten_history_begins_with_what_it_repeats_marked_as_copied() -> None:
    done = await compacted()
    assert done.facts["compactions_succeeded"] == 1
    steps = to_atif(done, ByteTokenizer(), model="tiny")["steps"]
    starts = [number for number, step in enumerate(steps) if step["message"] == REWRITTEN]
    assert len(starts) == 2
    questions, goes_on = (steps[start + 1 :] for start in starts)
    assert [step["source"] for step in questions[:2]] == ["user", "agent"]
    assert [(step["source"], "is_copied_context" in step) for step in goes_on[:5]] == [
        *(("user", True), ("user", True), ("agent", True), ("user", False), ("agent", False))
    ]
    assert "metrics" not in goes_on[2]


async def test_what_was_not_measured_is_left_out() -> None:
    written = trajectory(None)
    policy = ScriptedPolicy(written.template, lambda turn, seen: answer(done=True))
    steps = to_atif(await trial(policy), ByteTokenizer(), model="tiny")["steps"]
    assert "logprobs" not in steps[1]["metrics"]


def test_a_text_of_another_template_stands_as_it_is() -> None:
    ids = np.frombuffer(b"Q: why? A:", np.uint8).astype(np.int32)
    turn = Turn(ids, np.frombuffer(b" so", np.uint8).astype(np.int32), np.zeros(3, np.float32), None, 1, "stop")
    done = Trial("t", REF, [turn], StopReason.COMPLETED, report(True), None)
    steps = to_atif(done, ByteTokenizer(), model="tiny")["steps"]
    assert [(step["source"], step["message"]) for step in steps] == [("user", "Q: why? A:"), ("agent", " so")]


def test_a_trial_without_a_turn_is_no_trajectory() -> None:
    done = faulted("t", REF)
    with pytest.raises(RecordError, match="no turn"):
        to_atif(Trial("t", REF, [], None, None, done.fault), ByteTokenizer(), model="tiny")


def byte_tokenizer(folder: Path) -> BpeTokenizer:
    """Bytes and two markers, as a model folder carries them."""
    alphabet = {char: number for number, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(alphabet, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(marker, special=True) for marker in ("<|im_start|>", "<|im_end|>")])
    folder.mkdir()
    (folder / "tokenizer.json").write_text(made.to_str())
    return BpeTokenizer.load(folder)


async def test_the_trials_of_a_kept_batch_are_written_one_file_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = ChatTemplate(byte_tokenizer(tmp_path / "model"), chatml(""))
    policy = ScriptedPolicy(template, lambda turn, seen: answer("ls", done=turn == 1))
    done = await trial(Trajectory(policy, template))
    unborn = Trial("t2", REF, [], None, None, faulted("t2", REF).fault)
    ledger = Ledger(0)
    for each, outcome in ((done, Outcome.ADMITTED), (unborn, Outcome.INFRA_FAULT)):
        ledger.launch(each.trial_id, each.task, 1, origin=Origin.DRAWN)
        ledger.end(each.trial_id, outcome, fault=None if each.fault is None else each.fault.cause)
    save_batch(tmp_path / "batch", [done, unborn], [], [REWARD, REWARD], ledger)
    assert main([str(tmp_path / name) for name in ("nobatch", "model", "out")]) == EXIT_REFUSED
    assert f"{tmp_path}/nobatch cannot be read" in capsys.readouterr().err
    assert main([str(tmp_path / name) for name in ("batch", "nomodel", "out")]) == EXIT_REFUSED
    assert f"{tmp_path}/nomodel" in capsys.readouterr().err
    assert main([str(tmp_path / name) for name in ("batch", "model", "batch/batch.json")]) == EXIT_REFUSED
    assert not (tmp_path / "out").exists()
    (path,) = write_atif(tmp_path / "batch", tmp_path / "model", tmp_path / "out", name="named")
    assert path == tmp_path / "out" / "t1.json"
    document = json.loads(path.read_text())
    check(document)
    assert document["agent"]["model_name"] == "named"
    assert [step["message"] for step in document["steps"]] == [
        "write a word\n$ ",
        answer("ls"),
        answer("ls", done=True),
    ]
    assert not list(path.parent.glob(".*"))
    LocalStore(tmp_path / "store").put_tree("sft/kept", tmp_path / "model")
    assert main([str(tmp_path / name) for name in ("batch", "store/sft/kept", "out")]) == 0
    assert json.loads(path.read_text())["agent"]["model_name"] == "kept", "not the digest that the store names it by"


@pytest.mark.nightly
async def test_harbors_own_models_accept_every_document(tmp_path: Path) -> None:
    python = harbor_installed.installed() / "bin" / "python"
    for name, make in TRIALS.items():
        document = to_atif(await make(), ByteTokenizer(), model="tiny", reward=REWARD)
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    code = (
        "import pathlib, sys; from harbor.models.trajectories import Trajectory\n"
        "for path in pathlib.Path(sys.argv[1]).glob('*.json'): Trajectory.model_validate_json(path.read_text())"
    )
    done = subprocess.run([python, "-c", code, tmp_path], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
