"""The recorder without HTTP: what is drawn is kept, and what goes on from it is conditioned on it exactly."""

import asyncio
import random
import time

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from components.errors import FaultCause, InfraFault
from components.gateway import Message, ToolCall, read_answer, user
from components.gateway import trajectory as recorder
from components.gateway.template import END
from components.records import Sampling
from components.tito import Stitcher, audit, stitch
from tests.gateway.parts import StubSampler, trajectory_of
from tests.harness.parts import SPECIALS, ByteTokenizer

TOKENIZER = ByteTokenizer()
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}


async def say(trajectory, messages, *, limit=50, tools=()):
    """One request of an agent that sends its whole conversation. Returns the answer."""
    prompt = trajectory.follow(*trajectory.locate(messages, tools), tools)
    return await trajectory.draw(prompt, max_new_tokens=limit)


def echo(answer):
    return Message("assistant", answer.message.content, answer.message.calls)


def streams(trajectory):
    samples = stitch(trajectory.turns, TOKENIZER)
    report = audit(trajectory.turns, samples, TOKENIZER)
    assert report.clean
    return samples, report


async def test_a_conversation_that_only_grows_is_one_stream_of_the_ids_as_drawn():
    sampler = StubSampler("one", "two", "three")
    trajectory, talk = trajectory_of(sampler), [user("go")]
    for number in range(3):
        talk += [echo(await say(trajectory, talk)), user(f"saw {number}")]
    samples, report = streams(trajectory)
    (sample,) = samples
    assert report.reencoded_context == 0
    assert sample.boundaries["strict"] == 2
    assert sample.routing.ravel().tolist() == list(range(len(sample.tokens) - 1))
    assert sample.loss_mask.sum() == len("one") + len("two") + len("three") + 3
    first, second, third = (call["routing_start"] for _, call in sampler.calls)
    assert first == 0
    assert second == len(trajectory.turns[0].prompt_ids) + len("one")
    assert third == len(trajectory.turns[1].prompt_ids) + len("two")


async def test_without_capture_no_routing_is_asked_for():
    sampler = StubSampler()
    answer = await say(trajectory_of(sampler, capture=False), [user("go")])
    assert answer.turn.routing is None
    assert sampler.calls[0][1]["routing_start"] is None
    assert sampler.calls[0][1]["stop_token_ids"] == (SPECIALS[END],)


async def test_an_answer_cut_by_length_is_recorded_and_closed_by_context():
    trajectory = trajectory_of(StubSampler("a long answer"))
    answer = await say(trajectory, [user("go")], limit=6)
    assert (answer.turn.finish_reason, answer.text) == ("length", "a long")
    await say(trajectory, [user("go"), echo(answer), user("on")])
    samples, report = streams(trajectory)
    assert report.reencoded_context == 0
    end = len(trajectory.turns[0].prompt_ids) + 6
    assert samples[0].tokens[end] == SPECIALS[END]
    assert not samples[0].loss_mask[end]


@pytest.mark.parametrize("change", [str.strip, lambda text: text + "\n", lambda text: "\n" + text])
async def test_an_echo_whose_white_space_changed_still_has_the_ids_as_drawn(change):
    trajectory = trajectory_of(StubSampler(" so \n"))
    answer = await say(trajectory, [user("go")])
    await say(trajectory, [user("go"), Message("assistant", change(answer.message.content)), user("on")])
    assert len(streams(trajectory)[0]) == 1


async def test_reasoning_that_is_not_sent_back_stays_in_the_stream():
    trajectory = trajectory_of(StubSampler("<think>\nhm\n</think>\n\nyes", "no"), reasoning=True)
    answer = await say(trajectory, [user("go")])
    assert (answer.message.reasoning, answer.message.content) == ("hm", "yes")
    await say(trajectory, [user("go"), Message("assistant", "yes"), user("on")])
    samples, report = streams(trajectory)
    assert len(samples) == 1
    assert report.reencoded_context == 0
    assert "<think>\nhm\n</think>\n\nyes" in TOKENIZER.decode(samples[0].tokens)


async def test_a_tool_call_serialised_anew_still_has_the_ids_as_drawn():
    drawn = 'Now.\n<tool_call>\n{"name": "look", "arguments": {"at": "é", "n": 1}}\n</tool_call>'
    trajectory = trajectory_of(StubSampler(drawn, "no"))
    answer = await say(trajectory, [user("go")], tools=[TOOL], limit=200)
    assert answer.message.content == "Now."
    (call,) = answer.message.calls
    assert (call.name, call.value) == ("look", {"at": "é", "n": 1})
    again = Message("assistant", "Now.", (ToolCall("look", '{"n":1,"at":"\\u00e9"}'),))
    await say(trajectory, [user("go"), again, Message("tool", "a wall"), Message("tool", "a door")], tools=[TOOL])
    samples, report = streams(trajectory)
    assert len(samples) == 1
    assert report.reencoded_context == 0
    assert TOKENIZER.decode(samples[0].tokens).count("<tool_response>") == 2


@pytest.mark.parametrize(
    "text", ["<tool_call>{</tool_call>", '<tool_call>{"arguments": {}}</tool_call>', "<tool_call>[1]</tool_call>"]
)
def test_a_tool_call_that_cannot_be_read_stays_text(text):
    assert read_answer(text, reasoning=False, tools=True) == Message("assistant", text)
    good = '<tool_call>{"name": "look"}</tool_call>'
    assert read_answer(good + text, reasoning=False, tools=True).calls == ()
    assert read_answer(good, reasoning=False, tools=False).content == good


@pytest.mark.parametrize(
    "text", ["<tool_call>" + "\n" * 4_096, "<tool_call>" * 20_000, "<tool_call></tool_call>" * 9_999]
)
def test_no_text_takes_long_to_be_read(text):
    # A call that was never closed took the cube of the white space in it, in the event loop: 0.9 s of CPU for 1,024.
    began = time.process_time()
    assert read_answer(text, reasoning=True, tools=True) == Message("assistant", text)
    assert time.process_time() - began < 2


DEEP = '{"name": "look", "arguments": ' + "[" * 99 + "]" * 99 + "}"


@pytest.mark.parametrize("text", ["[" * 100_000, DEEP, '{"name": "\\ud800"}', '{"name": "look", "arguments": NaN}'])
async def test_a_drawn_call_that_nothing_could_work_with_is_recorded_and_stays_text(text):
    # The parser's RecursionError ended the request after the answer was drawn: nothing was recorded.
    drawn = f"<tool_call>{text}</tool_call>"
    trajectory = trajectory_of(StubSampler(drawn))
    answer = await say(trajectory, [user("go")], tools=[TOOL], limit=200_000)
    assert (answer.message.content, answer.message.calls) == (drawn, ())
    assert len(trajectory.turns) == 1


async def test_other_tools_are_another_conversation():
    trajectory = trajectory_of(StubSampler())
    answer = await say(trajectory, [user("go")])
    talk = [user("go"), echo(answer), user("on")]
    await say(trajectory, talk, tools=[TOOL])
    assert len(streams(trajectory)[0]) == 2


async def test_an_edited_answer_opens_a_chunk_that_keeps_the_ids_before_the_edit():
    sampler = StubSampler("one", "two", "three")
    trajectory = trajectory_of(sampler)
    first = await say(trajectory, [user("go")])
    talk = [user("go"), echo(first), user("on")]
    await say(trajectory, talk)
    await say(trajectory, [*talk, Message("assistant", "TWO"), user("and")])
    samples, report = streams(trajectory)
    assert [sample.boundaries["split"] for sample in samples] == [0, 1]
    assert report.reencoded_context == 0
    kept = len(first.history)
    assert sampler.calls[2][0][:kept] == first.history.prompt_ids.tolist()
    assert sampler.calls[2][1]["routing_start"] == kept - 1


async def test_compaction_opens_a_chunk_of_its_own():
    trajectory = trajectory_of(StubSampler())
    first = await say(trajectory, [user("go")])
    await say(trajectory, [user("go"), echo(first), user("on")])
    await say(trajectory, [user("go"), user("what happened: nothing")])
    samples, _ = streams(trajectory)
    assert [sample.chunk for sample in samples] == [0, 1]
    assert sum(sample.loss_mask.sum() for sample in samples) == 9


async def test_branches_drawn_at_once_are_listed_branch_by_branch_and_share_their_trunk():
    sampler = StubSampler("trunk")
    trajectory = trajectory_of(sampler)
    trunk = await say(trajectory, [user("go")])
    talks = [[user("go"), echo(trunk), user(name)] for name in "ab"]
    for number in range(3):
        sampler.texts = [f"a{number}", f"b{number}"]
        for talk, answer in zip(talks, await asyncio.gather(*(say(trajectory, talk) for talk in talks)), strict=True):
            talk += [echo(answer), user("on")]
    samples, report = streams(trajectory)
    assert len(trajectory.turns) == 7
    assert [sample.boundaries["strict"] for sample in samples] == [3, 2]
    assert report.reencoded_context == 0
    for sample in samples:
        assert sample.routing.ravel().tolist() == list(range(len(sample.tokens) - 1))


async def test_of_equal_answers_the_later_is_gone_on_from():
    trajectory = trajectory_of(StubSampler("same", "same"))
    await say(trajectory, [user("go")])
    later = await say(trajectory, [user("go")])
    found, new = trajectory.locate([user("go"), Message("assistant", "same"), user("on")])
    assert found is later
    assert list(new) == [user("on")]


async def test_an_answer_that_never_arrived_is_withdrawn_unless_it_was_gone_on_from():
    trajectory = trajectory_of(StubSampler())
    lost = await say(trajectory, [user("go")])
    trajectory.withdraw(lost)
    assert trajectory.turns == ()
    kept = await say(trajectory, [user("go")])
    await say(trajectory, [user("go"), echo(kept), user("on")])
    trajectory.withdraw(kept)
    assert len(trajectory.turns) == 2


FAULTS = {
    "aborted": ({"finish_reason": "abort"}, FaultCause.SAMPLER),
    "without routing": ({"routing": None}, FaultCause.CAPTURE_MISSING),
    "empty": ({"output_ids": np.zeros(0, np.int32), "logprobs": np.zeros(0, np.float32)}, FaultCause.SAMPLER),
    "short of log-probs": ({"logprobs": np.zeros(1, np.float32)}, FaultCause.SAMPLER),
    "of fewer rows": ({"routing": np.zeros((3, 1, 1), np.uint16)}, FaultCause.SAMPLER),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_what_is_not_whole_is_a_fault_and_nothing_of_it_is_recorded(name):
    changes, cause = FAULTS[name]
    sampler = StubSampler("one", **changes)
    trajectory = trajectory_of(sampler)
    with pytest.raises(InfraFault) as raised:
        await say(trajectory, [user("go")])
    assert raised.value.cause is cause
    assert trajectory.turns == ()
    sampler.changes = {}
    await say(trajectory, [user("go")])
    assert len(streams(trajectory)[0]) == 1


async def test_weights_that_change_within_a_trajectory_are_a_sampler_fault():
    sampler = StubSampler()
    trajectory = trajectory_of(sampler)
    answer = await say(trajectory, [user("go")])
    sampler.changes = {"weight_version": 5}
    with pytest.raises(InfraFault, match="drawn under weights 5, not 4"):
        await say(trajectory, [user("go"), echo(answer), user("on")])


async def test_a_trajectory_that_goes_on_under_new_weights_opens_a_chunk_whose_whole_prompt_is_captured_anew():
    version, sampler = 4, StubSampler()
    trajectory = trajectory_of(sampler, version=lambda: version)
    talk = [user("go")]
    for turn in range(4):
        if turn == 2:
            version = 5
            sampler.changes = {"weight_version": 5}
        answer = await say(trajectory, talk)
        talk += [echo(answer), user("on")]
    starts = [call["routing_start"] for _, call in sampler.calls]
    assert starts[0] == starts[2] == 0
    assert min(starts[1], starts[3]) > 0
    samples, report = streams(trajectory)
    assert [sample.weight_version for sample in samples] == [4, 5]
    assert [len(sample.routing) for sample in samples] == [len(sample.tokens) - 1 for sample in samples]
    assert (report.clean, report.reencoded_context) == (True, 0)
    sampler.changes = {}
    with pytest.raises(InfraFault, match="drawn under weights 4, not 5"):
        await say(trajectory, talk)


async def test_a_cancelled_draw_records_nothing_and_its_conversation_can_be_taken_up_again():
    sampler = StubSampler("one", "two")
    trajectory = trajectory_of(sampler)
    answer = await say(trajectory, [user("go")])
    talk = [user("go"), echo(answer), user("on")]
    sampler.held.clear()
    drawing = asyncio.create_task(say(trajectory, talk))
    await asyncio.sleep(0)
    drawing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await drawing
    assert (len(trajectory.turns), sampler.cancelled) == (1, 1)
    sampler.held.set()
    await say(trajectory, talk)
    samples, report = streams(trajectory)
    assert (len(samples), report.reencoded_context) == (1, 0)


async def test_a_request_may_sample_in_its_own_way_and_its_turn_says_so():
    sampler = StubSampler()
    trajectory = trajectory_of(sampler, sampling=Sampling(0.5))
    plain = await trajectory.draw(trajectory.follow(None, [user("a")]), max_new_tokens=9)
    own = await trajectory.draw(trajectory.follow(None, [user("a")]), max_new_tokens=9, sampling=Sampling(2.0, 0.9))
    assert (plain.turn.sampling, own.turn.sampling) == (Sampling(0.5), Sampling(2.0, 0.9))
    assert [call["sampling"].temperature for _, call in sampler.calls] == [0.5, 2.0]


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), requests=st.integers(1, 12))
async def test_whatever_an_agent_makes_of_its_conversation_nothing_sampled_drifts(seed, requests):
    """Agents that append, branch, edit, compact, retry and drop: every answer is trained once, on the ids it saw."""
    rng = random.Random(seed)

    def word():
        return "".join(rng.choices(["a", " ", "\n", "é", "<|im_end|>", "{"], k=rng.randint(0, 4)))

    trajectory = trajectory_of(StubSampler(*(word() for _ in range(requests))))
    talks = [[user("go")]]
    for _ in range(requests):
        talk = list(rng.choice(talks))
        match rng.choice(["append", "append", "append", "edit", "cut", "summarise"]):
            case "edit":
                place = rng.randrange(len(talk))
                talk[place] = Message(talk[place].role, word())
            case "cut":
                talk = talk[: rng.randint(0, len(talk) // 2) * 2 + 1]
            case "summarise":
                talk = [talk[0], user(word())]
        answer = await say(trajectory, talk, limit=rng.randint(1, 8))
        talks.append([*talk, echo(answer), user(word())])
    _, report = streams(trajectory)
    # The stub draws the same ids with the same log-probs again: such a retry is the same node.
    nodes = {(turn.prompt_ids.tobytes(), turn.completion_ids.tobytes()) for turn in trajectory.turns}
    assert report.loss_tokens == sum(len(answer) // 4 for _, answer in nodes)
    assert report.reencoded_context == 0


async def test_streams_asked_for_while_a_trial_runs_are_those_of_all_its_turns_and_stitch_only_what_is_new(monkeypatch):
    appended = []

    class Watched(Stitcher):
        def append(self, turn):
            appended.append(len(turn.prompt_ids))
            super().append(turn)

    monkeypatch.setattr(recorder, "Stitcher", Watched)
    trajectory, talk = trajectory_of(StubSampler(*"abcdef")), [user("go")]

    def asked():
        appended.clear()
        made, whole = trajectory.samples("t"), stitch(trajectory.turns, TOKENIZER, trial_id="t")
        assert [(s.tokens.tolist(), s.loss_mask.tolist(), s.chunk, s.boundaries) for s in made] == [
            (s.tokens.tolist(), s.loss_mask.tolist(), s.chunk, s.boundaries) for s in whole
        ]
        return len(appended)

    assert asked() == 0
    for number in range(3):
        talk += [echo(await say(trajectory, talk)), user(f"saw {number}")]
        assert asked() == 1, "one new turn"
    assert asked() == 0
    branch = await say(trajectory, [*talk[:2], user("otherwise")])
    assert asked() == 1, "a branch is listed last where its trunk has ended"
    await say(trajectory, talk)
    assert asked() == 5, "what belongs before a branch begins the streams anew"
    trajectory.withdraw(branch)
    assert asked() == 4
