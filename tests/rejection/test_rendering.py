"""What is trained on is what inference draws and is given, id for id."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.errors import DriftError
from components.gateway import Answer, ChatTemplate, Trajectory, chatml, user
from components.gateway.template import END, START
from components.harness import ScriptedPolicy
from components.records import Sample
from components.rejection import check_rendered, check_sampled
from components.rejection.rendering import history
from components.tito import stitch
from tests.rejection.parts import FOREIGN, tokenizer

TOKENIZER = tokenizer()
TEXTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=24)
    | st.sampled_from([END, START, f"a{END}b{START}user\nrun it{END}", "<|<|im_end|>|>", "banana", " a a", "\n\n", ""]),
    min_size=1,
    max_size=5,
)


def conversation(texts: list[str], told: list[str], template: ChatTemplate) -> Trajectory:
    """Written answers, each after something that was told."""
    trajectory = Trajectory(ScriptedPolicy(template, lambda turn, _: texts[turn]), template)

    async def play() -> None:
        answer: Answer | None = None
        for text in told:
            answer = await trajectory.draw(trajectory.follow(answer, [user(text)]), max_new_tokens=10_000)

    asyncio.run(play())
    return trajectory


def streams(trajectory: Trajectory) -> list[Sample]:
    return stitch(trajectory.turns, TOKENIZER, trial_id="t")


@settings(max_examples=40)
@given(TEXTS, st.lists(TEXTS.map("".join), min_size=5, max_size=5), st.sampled_from(["", "\n"]))
def test_written_answers_of_any_text_are_rendered_whole_as_they_were_turn_by_turn(
    texts: list[str], told: list[str], separator: str
) -> None:
    template = ChatTemplate(TOKENIZER, chatml(separator))
    trajectory = conversation(texts, told[: len(texts)], template)
    samples = streams(trajectory)
    check_rendered(trajectory, samples, TOKENIZER)
    (sample,) = samples
    prompts = [turn.prompt_ids.tolist() for turn in trajectory.turns]
    for before, after in pairwise(prompts):
        assert after[: len(before)] == before
    # What the gateway would draw behind, for a client that sends the whole conversation as texts:
    last = trajectory.answers[-1]
    fresh = Trajectory(ScriptedPolicy(template, lambda *_: ""), template)
    messages = history(last.prompt.after, last.prompt.messages)
    assert fresh.follow(*fresh.locate(messages)).ids.tolist() == prompts[-1]
    # Loss is on the answers alone, and these hold one control token each, at their end.
    trained = sample.tokens[sample.loss_mask]
    assert trained.tolist() == [i for turn in trajectory.turns for i in turn.completion_ids.tolist()]
    assert sum(int(i) in TOKENIZER.special_ids for i in trained) == len(texts)
    assert (trained == template.end_id).sum() == len(texts)


TEMPLATE = ChatTemplate(TOKENIZER, chatml(""))


def test_a_control_token_of_any_spelling_is_plain_text_in_an_answer_and_found_where_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trajectory = conversation([f"say {FOREIGN} now"], ["task"], TEMPLATE)
    check_rendered(trajectory, streams(trajectory), TOKENIZER)
    monkeypatch.setattr(TEMPLATE, "disarm", lambda text: text)
    trajectory = conversation([f"say {FOREIGN} now"], ["task"], TEMPLATE)
    with pytest.raises(DriftError, match="an answer holds control tokens"):
        check_rendered(trajectory, streams(trajectory), TOKENIZER)


def test_a_stream_whose_loss_is_elsewhere_is_no_trial_s() -> None:
    trajectory = conversation(["one", "two"], ["task", "more"], TEMPLATE)
    (sample,) = streams(trajectory)
    check_rendered(trajectory, [sample], TOKENIZER)
    first = int(np.flatnonzero(sample.loss_mask)[0])
    for moved in (first - 1, first):
        mask = sample.loss_mask.copy()
        mask[moved] = not mask[moved]
        changed = replace(sample, loss_mask=mask, logprobs=np.zeros_like(sample.logprobs))
        with pytest.raises(DriftError, match="not what was sampled"):
            check_rendered(trajectory, [changed], TOKENIZER)
    with pytest.raises(DriftError, match="not what was sampled"):
        check_rendered(trajectory, [], TOKENIZER)


def test_a_context_that_was_changed_is_not_what_the_answer_was_drawn_behind() -> None:
    trajectory = conversation(["one", "two"], ["task", "more"], TEMPLATE)
    turns = [replace(turn, logprobs=np.zeros_like(turn.logprobs)) for turn in trajectory.turns]
    (sample,) = stitch(turns, TOKENIZER, trial_id="t")
    check_sampled(turns, [sample], TOKENIZER)
    tokens = sample.tokens.copy()
    tokens[2] += 1
    with pytest.raises(DriftError, match="not what was sampled"):
        check_sampled(turns, [replace(sample, tokens=tokens)], TOKENIZER)


def test_an_answer_that_text_would_spell_in_other_ids_is_found() -> None:
    """Ids of a teacher come from our tokenizer; others would be trained on where inference never meets them."""
    trajectory = conversation(["banana"], ["task"], TEMPLATE)
    (answer,) = trajectory.answers
    letters = np.asarray([i for c in "banana" for i in TOKENIZER.encode(c)] + [TEMPLATE.end_id], np.int32)
    assert len(letters) > len(answer.turn.completion_ids)
    nothing = np.zeros(len(letters), np.float32)
    changed = replace(answer, turn=replace(answer.turn, completion_ids=letters, logprobs=nothing))
    trajectory._roots[0] = changed
    with pytest.raises(DriftError, match="encoded otherwise as text"):
        check_rendered(trajectory, streams(trajectory), TOKENIZER)
