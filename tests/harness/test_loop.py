"""The loop at a terminal without a shell."""

from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from components.errors import InfraFault, StopReason
from tests.harness.parts import FakePolicy, FakeTerminal, answer, loop, terse


async def test_commands_are_typed_and_their_output_is_what_the_policy_sees_next():
    policy, terminal = FakePolicy(answer("ls", "pwd")), FakeTerminal()
    running = loop(policy, terminal)
    assert await running.run("do it\n") is StopReason.COMPLETED
    assert terminal.sent == ["ls\n", "pwd\n"]
    assert policy.observations == ["do it\n$ ", "<ls>\n$ <pwd>\n$ "]
    assert running.tally.commands == 2


async def test_every_prompt_is_the_stream_before_it_and_a_suffix():
    running = loop(FakePolicy(answer("ls"), answer("pwd"), "nonsense"))
    await running.run("do it")
    assert len(running.trajectory.turns) == 4
    for before, after in zip(running.trajectory.turns, running.trajectory.turns[1:], strict=False):
        stream = np.concatenate([before.prompt_ids, before.completion_ids])
        assert after.prompt_ids[: len(stream)].tolist() == stream.tolist()


async def test_no_request_exceeds_the_token_wall():
    policy = FakePolicy(*[answer("x" * 40) for _ in range(50)])
    running = loop(policy, max_context_tokens=600, max_turn_tokens=300)
    assert await running.run("do it") is StopReason.TOKEN_LIMIT
    for prompt, limit in zip(policy.prompts, policy.limits, strict=True):
        assert len(prompt) + limit <= 600
        assert limit >= 1


async def test_an_answer_cut_by_the_wall_executes_nothing_and_ends_the_trial():
    terminal = FakeTerminal()
    policy = FakePolicy(answer("y" * 500))
    running = loop(policy, terminal, max_context_tokens=300, max_turn_tokens=299)
    assert await running.run("do it") is StopReason.TOKEN_LIMIT
    assert terminal.sent == []
    assert len(running.trajectory.turns) == 1
    last = running.trajectory.turns[0]
    assert len(last.prompt_ids) + len(last.completion_ids) == 300


async def test_an_instruction_longer_than_the_wall_draws_nothing():
    running = loop(FakePolicy(), max_context_tokens=64, max_turn_tokens=32)
    assert await running.run("z" * 100) is StopReason.TOKEN_LIMIT
    assert running.trajectory.turns == ()


async def test_an_answer_cut_by_its_own_limit_is_told_so_and_closed_by_context():
    terminal = FakeTerminal()
    policy = FakePolicy(answer("y" * 400))
    running = loop(policy, terminal, max_turn_tokens=100)
    assert await running.run("do it") is StopReason.COMPLETED
    assert terminal.sent == []
    assert policy.observations[1] == "ERROR: it was cut at 100 tokens\n$ "
    assert running.trajectory.turns[0].finish_reason == "length"


async def test_an_unreadable_answer_executes_nothing_and_its_error_is_fed_back():
    policy, terminal = FakePolicy('{"analysis":"a","commands":[{"keystrokes":"ls\\n"}]}'), FakeTerminal()
    running = loop(policy, terminal)
    assert await running.run("do it") is StopReason.COMPLETED
    assert terminal.sent == []
    assert policy.observations[1] == "ERROR: missing field: plan\n$ "
    assert running.tally.parse_failures == 1


async def test_consecutive_failures_end_the_trial_and_a_good_answer_resets_the_count():
    running = loop(FakePolicy("a", "b", answer("ls"), "c", "d", "e"), max_parse_failures=3)
    assert await running.run("do it") is StopReason.PARSE_FAILURES
    assert len(running.trajectory.turns) == 6


async def test_warnings_stand_before_the_observation():
    policy = FakePolicy("hm " + answer("ls"))
    await loop(policy).run("do it")
    assert policy.observations[1] == "! text before the JSON object\n<ls>\n$ "


async def test_completion_is_asked_twice():
    policy = FakePolicy(answer("ls", done=True), answer(done=True))
    running = loop(policy, confirm_completion=True)
    assert await running.run("do it") is StopReason.COMPLETED
    assert policy.observations[1] == "<ls>\n$ \ndone? "
    assert running.tally.completion_claims == 2


async def test_a_parse_error_between_two_claims_does_not_reset_them_but_work_does():
    confirmed = loop(FakePolicy(answer(done=True), "oops", answer(done=True), answer("ls")), confirm_completion=True)
    assert await confirmed.run("do it") is StopReason.COMPLETED
    assert len(confirmed.trajectory.turns) == 3
    worked = loop(
        FakePolicy(answer(done=True), answer("ls"), answer(done=True), answer("pwd")), confirm_completion=True
    )
    assert await worked.run("do it") is StopReason.COMPLETED
    assert len(worked.trajectory.turns) == 6


async def test_the_turn_limit_executes_the_last_turn_and_ends():
    terminal = FakeTerminal()
    running = loop(FakePolicy(*[answer("ls")] * 9), terminal, max_turns=3)
    assert await running.run("do it") is StopReason.TURN_LIMIT
    assert terminal.sent == ["ls\n"] * 3
    assert running.tally.repeated_commands == 2


async def test_an_agent_that_ends_its_shell_gave_up():
    terminal = FakeTerminal()
    running = loop(FakePolicy(answer("exit", "ls")), terminal)
    assert await running.run("do it") is StopReason.GAVE_UP
    assert terminal.sent == ["exit\n"]


async def test_a_command_waits_its_duration_within_the_bounds():
    def waits(duration, **changes):
        return {"commands": [{"keystrokes": "a\n", "duration": duration}], **changes}

    terminal = FakeTerminal()
    await loop(FakePolicy(answer(**waits(500.0)), answer(**waits(0.1))), terminal, max_command_s=7, patience_s=2).run(
        "x"
    )
    assert terminal.waits[1:] == [(7, True), (2, True)]
    terminal = FakeTerminal()
    policy = FakePolicy(answer(**waits(0.1)))
    await loop(policy, terminal, max_command_s=7, patience_s=2, return_at_prompt=False).run("x")
    assert terminal.waits[1:] == [(0.1, False)]


async def test_long_output_is_limited_in_bytes():
    policy = FakePolicy(answer("ls"))
    await loop(policy, FakeTerminal(reply=lambda _: "é" * 500), observation_bytes=40).run("do it")
    assert policy.observations[1] == "é" * 10 + "\n...\n" + "é" * 10


async def test_a_broken_box_is_a_fault_and_the_turns_so_far_are_kept():
    running = loop(FakePolicy(answer("ls"), answer("break")))
    with pytest.raises(InfraFault, match="the box is gone"):
        await running.run("do it")
    assert len(running.trajectory.turns) == 2


async def test_logprobs_that_do_not_fit_the_ids_are_a_sampler_fault():
    class Short(FakePolicy):
        async def answer(self, *args, **kwargs):
            whole = await super().answer(*args, **kwargs)
            return replace(whole, logprobs=whole.logprobs[1:])

    with pytest.raises(InfraFault, match="sampler: turn has"):
        await loop(Short()).run("do it")


async def test_the_whole_contract_is_explained_in_the_longshell_style():
    policy = FakePolicy("?", "! " + answer("ls", done=True), answer(done=True))
    running = loop(policy, prompt_style="longshell", confirm_completion=True)
    assert await running.run("Make {braces} work.") is StopReason.COMPLETED
    first, rejected, confirm = policy.observations
    assert "Make {braces} work." in first
    assert '"keystrokes": "ls -la\\n"' in first
    assert "no JSON object in the answer" in rejected
    assert "None of it was executed" in rejected
    assert "text before the JSON object" in confirm
    assert '"task_complete": true once more' in confirm


async def test_new_output_is_found_in_the_history_and_the_screen_stands_where_it_is_not():
    policy = FakePolicy(answer("ls"), answer())
    terminal = FakeTerminal()
    running = loop(policy, terminal, prompt_style="longshell", new_output="history")
    assert await running.run("do it") is StopReason.COMPLETED
    opening, new, waited = policy.observations
    assert opening.endswith("Terminal:\nThe terminal's screen:\n$ ")
    assert new == "New output of the terminal:\n$ <ls>\n$ "
    assert waited == "New output of the terminal:\n$ "


def test_few_words_go_with_new_output_alone():
    with pytest.raises(ValidationError, match="set new_output to stream"):
        terse(new_output="history")
