"""Histories that are rewritten where the wall comes near: their calls, their budget, their failures, their streams."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from components.config import CompactionConfig, HarnessConfig
from components.errors import StopReason
from components.tito import audit, stitch
from tests.harness.parts import BUDGET, ByteTokenizer, FakePolicy, FakeTerminal, answer, loop, terse

LONG = answer("x" * 120)  # 195 bytes, and as many of output
WALL = 1200


def compacting(policy, terminal=None, *, wall=WALL, budget=None, **changes):
    return loop(policy, terminal, max_context_tokens=wall, compaction=BUDGET | (budget or {}), **changes)


def asked(policy):
    """What each prompt holds, as text."""
    return [ByteTokenizer().decode(prompt.tolist()) for prompt in policy.prompts]


async def test_three_calls_rewrite_the_history_and_the_trial_goes_on_from_it():
    policy = FakePolicy(LONG, LONG, LONG, "did x", "why?", "because")
    running = compacting(policy, FakeTerminal(shown="SCREEN"))
    assert await running.run("do it") is StopReason.COMPLETED
    assert (running.tally.compactions_attempted, running.tally.compactions_succeeded) == (1, 1)
    first, *_, before, summary, questions, answers, after = asked(policy)
    assert summary.startswith(before)
    assert summary.endswith("summary? <|im_end|><|im_start|>assistant\n")
    briefing = "do it\ndid x\nSCREEN\nquestions? "
    assert questions == f"<|im_start|>user\n{briefing}<|im_end|><|im_start|>assistant\n"
    assert answers.startswith(summary + "did x")
    assert "why?\nanswers? " in answers
    opening = first.removesuffix("<|im_start|>assistant\n")
    assert after == (
        f"{opening}<|im_start|>user\n{briefing}<|im_end|><|im_start|>assistant\nwhy?<|im_end|>"
        "<|im_start|>user\nbecause\n$ <|im_end|><|im_start|>assistant\n"
    )


async def test_a_rewritten_history_is_a_chunk_of_its_own_without_drift_or_reencoded_context():
    policy = FakePolicy(*[LONG] * 3, "did x", "why?", "because", *[LONG] * 3, "did more", "what?", "that", LONG)
    running = compacting(policy)
    assert await running.run("do it") is StopReason.COMPLETED
    assert running.tally.compactions_succeeded == 2
    turns, tokenizer = running.trajectory.turns, ByteTokenizer()
    samples = stitch(turns, tokenizer, trial_id="t")
    report = audit(turns, samples, tokenizer)
    assert report.clean
    assert (report.drift, report.reencoded_context) == (0, 0)
    assert len(turns) == len(policy.prompts)
    # the trial, questions, the trial again, questions, the trial again
    assert [int(sample.loss_mask.sum()) for sample in samples][1::2] == [len("why?") + 1, len("what?") + 1]
    assert len(samples) == 5
    assert sum(int(sample.loss_mask.sum()) for sample in samples) == sum(len(turn.completion_ids) for turn in turns)


async def test_the_three_calls_count_as_turns():
    running = compacting(FakePolicy(*[LONG] * 3, "did x", "why?", "because", *[LONG] * 9), max_turns=8)
    assert await running.run("do it") is StopReason.TURN_LIMIT
    assert len(running.trajectory.turns) == 8
    assert running.tally.commands == 5


async def test_the_first_answer_leaves_the_budget_free_too_and_without_it_none_is_drawn():
    policy = FakePolicy(answer("x" * 500), "did x", "why?", "because")
    running = compacting(policy, max_turn_tokens=1000)
    assert await running.run("z" * 300) is StopReason.COMPLETED
    assert len(policy.prompts[0]) + policy.limits[0] == WALL - 200
    assert running.tally.compactions_succeeded == 1
    policy = FakePolicy()
    assert await compacting(policy).run("z" * 1000) is StopReason.TOKEN_LIMIT
    assert policy.prompts == []


async def test_a_history_is_not_rewritten_where_no_turn_would_be_left_to_use_it():
    policy = FakePolicy(*[LONG] * 9)
    running = compacting(policy, max_turns=6)
    assert await running.run("do it") is StopReason.TOKEN_LIMIT
    assert running.tally.compactions_attempted == 0
    assert len(running.trajectory.turns) > 3
    assert max(len(prompt) + limit for prompt, limit in zip(policy.prompts, policy.limits, strict=True)) == WALL


async def test_a_rewritten_history_that_leaves_no_room_ends_the_trial():
    policy = FakePolicy(*[LONG] * 3, "did x", "why?", "because")
    running = compacting(policy, FakeTerminal(shown="#" * 950))
    assert await running.run("do it") is StopReason.COMPACTION_FAILED
    assert "no room to go on" in running.compaction_failure


async def test_without_compaction_the_wall_is_where_it_was():
    policy = FakePolicy(*[LONG] * 9)
    running = loop(policy, max_context_tokens=WALL)
    assert await running.run("do it") is StopReason.TOKEN_LIMIT
    assert len(policy.prompts[-1]) + policy.limits[-1] == WALL


@given(st.lists(st.integers(0, 400), max_size=12), st.integers(0, 300), st.integers(640, 1500))
@settings(max_examples=40, deadline=None)
def test_no_request_ever_exceeds_the_wall_and_a_summary_always_has_its_budget(sizes, output, wall):
    class Summing(FakePolicy):
        """Writes at will in the terminal, and briefly when it is asked for a summary."""

        async def answer(self, prompt, *, sampling, max_new_tokens):
            if prompt.messages[-1].content.endswith("? "):
                self.texts.insert(0, "brief")
            written = await super().answer(prompt, sampling=sampling, max_new_tokens=max_new_tokens)
            return replace(written, logprobs=written.logprobs - np.float32(len(self.prompts)))

    policy = Summing(*[answer("x" * size) for size in sizes])
    running = compacting(policy, FakeTerminal(reply=lambda _: "o" * output), wall=wall, max_turns=60)
    asyncio.run(running.run("do it"))
    for prompt, limit in zip(policy.prompts, policy.limits, strict=True):
        assert len(prompt) + limit <= wall
    summaries = [limit for limit, said in zip(policy.limits, policy.observations, strict=True) if said == "summary? "]
    assert set(summaries) <= {BUDGET["summary_max_tokens"]}
    stitched = stitch(running.trajectory.turns, ByteTokenizer())
    assert audit(running.trajectory.turns, stitched, ByteTokenizer()).clean


async def test_the_longshell_style_tells_the_whole_contract_of_a_compaction():
    policy = FakePolicy(*[LONG] * 20, routing=True)
    config = HarnessConfig(
        max_context_tokens=9000,
        max_turn_tokens=500,
        compaction=CompactionConfig(
            proactive_threshold_tokens=5000,
            summary_max_tokens=500,
            questions_max_tokens=500,
            answers_max_tokens=500,
            margin_tokens=1500,
        ),
    )
    running = loop(policy, FakeTerminal(shown="{screen}"), config)
    assert await running.run("Make {braces} work.") is not None
    assert running.tally.compactions_succeeded
    at = next(number for number, said in enumerate(policy.observations) if "taken out of your sight" in said)
    assert "Make {braces} work." in policy.observations[at + 1]
    assert "<xxx" in policy.observations[at + 1]
    assert "Answer every question" in policy.observations[at + 2]
    assert "Go on with the task from here" in policy.observations[at + 3]
    assert np.all(np.diff([len(prompt) for prompt in policy.prompts[: at + 1]]) > 0)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"proactive_threshold_tokens": 199}, "less than summary"),
        ({"summary_max_tokens": 41}, "less than summary"),
        ({"proactive_threshold_tokens": 3800}, "free of max_context_tokens"),
    ],
)
def test_a_budget_that_cannot_hold_is_a_configuration_error(changes, problem):
    with pytest.raises(ValidationError, match=problem):
        terse(compaction=BUDGET | changes)


def test_a_compaction_needs_more_turns_than_it_takes():
    with pytest.raises(ValidationError, match="takes 3 turns"):
        terse(compaction=BUDGET, max_turns=3)


def test_an_unknown_key_of_the_budget_is_refused():
    with pytest.raises(ValidationError, match="summary_tokens"):
        terse(compaction={"summary_tokens": 3})
