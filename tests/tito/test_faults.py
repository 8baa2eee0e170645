"""Faults that token handling of other projects had, by project and number."""

from __future__ import annotations

import numpy as np
import pytest

from components.config import RewardConfig
from components.errors import RecordError, StopReason
from components.learning.admission import Admitted
from components.learning.batch import assemble
from components.records import AssertionOutcome, TaskRef, Trial, Turn, VerifierReport
from components.tito import TokenHistory, audit, stitch

from .test_history import Generation, generate
from .test_stitch import Letters, spell, turn


@pytest.mark.parametrize("listed", ["shared once", "shared twice"])
def test_a_node_shared_by_branches_is_not_trained_once_a_branch(listed):
    # prime-rl #2975, slime: the turns before a fork were trained in every leaf's sample.
    root, left, right = turn("p:", "root."), turn("p:root.l:", "one"), turn("p:root.r:", "two")
    turns = [root, left, right] if listed == "shared once" else [root, left, root, right]
    samples = stitch(turns, Letters())
    assert [spell(s) for s in samples] == ["p:[root.]l:[one]", "p:root.r:[two]"]
    assert audit(turns, samples, Letters()).clean


def test_missing_log_probs_do_not_become_zeros_under_loss():
    # slime v0.3.0, AReaL #1554, NeMo-RL #3297: two ids and one log-prob gave log-probs [0, 0] with mask [1, 1].
    with pytest.raises(RecordError, match="2 sampled ids and 1 log-probs"):
        Turn(np.zeros(3, np.int32), np.zeros(2, np.int32), np.zeros(1, np.float32), None, 0, "stop")
    with pytest.raises(RecordError, match="2 sampled ids and 0 log-probs"):
        TokenHistory([1]).with_turn(Generation(np.array([1, 2]), np.array([]), None))


def test_results_of_two_tools_rendered_as_one_block_are_not_trained_as_re_encoded():
    # verl #3960, rllm #272: two tool messages became one block, so the ids of the history were not those of the render.
    turns = [turn("p:", "call"), turn("p:call(a)", "call"), turn("p:call(ab)", "done")]
    samples = stitch(turns, Letters())
    assert [spell(s) for s in samples] == ["p:[call](a)[call]", "p:call(ab)[done]"]
    assert samples[1].tokens[: len(turns[2].prompt_ids)].tolist() == turns[2].prompt_ids.tolist()
    assert audit(turns, samples, Letters()).drift == 0


def test_thinking_that_the_history_drops_is_still_trained_as_it_was_sampled():
    # slime #2264, #2213: thinking that was cut from the history shifted the mask onto other tokens.
    turns = [turn("p:", "(hm)yes."), turn("p:yes.x:", "(so)no.")]
    samples = stitch(turns, Letters())
    assert [spell(s) for s in samples] == ["p:[(hm)yes.]", "p:yes.x:[(so)no.]"]
    assert audit(turns, samples, Letters()).clean


def test_a_re_encoded_answer_is_not_masked_whole_nor_replaced():
    # slime v0.3.0: after a difference inside an answer it kept the new prompt's ids and masked the whole answer.
    turns = [turn("p:", "b" * 20 + "A" + "c" * 20), turn("p:" + "b" * 20 + "aa" + "c" * 20 + "x:", "d")]
    (sample,) = stitch(turns, Letters())
    assert spell(sample) == f"p:[{'b' * 20}A{'c' * 20}]x:[d]"


def test_a_first_prompt_that_changed_does_not_discard_the_turns_before():
    # slime v0.3.0: when the first prompt changed, every earlier turn was dropped without a word.
    turns = [turn("p:", "a"), turn("p:ax:", "b"), turn("q:ax:by:", "c")]
    samples = stitch(turns, Letters())
    assert [spell(s) for s in samples] == ["p:[a]x:[b]", "q:ax:by:[c]"]
    assert audit(turns, samples, Letters()).missing_turns == 0


def test_every_chunk_of_a_trial_has_the_whole_reward_not_a_share_of_it():
    # slime v0.3.0 gave each of k segments reward / k.
    report = VerifierReport({"a": AssertionOutcome.PASSED, "b": AssertionOutcome.PASSED}, True, "test")
    task = TaskRef("pool", "task", "digest", "files", assertion_ids=("a", "b"), fail_to_pass=("a", "b"))
    turns = (turn("p:", "a"), turn("q:", "b"), turn("r:", "c"))
    trial = Trial("t", task, turns, StopReason.COMPLETED, report, None)
    samples = stitch(turns, Letters())
    streams = Admitted(tuple(samples), audit(turns, samples, Letters()))
    made = assemble([trial], [streams], RewardConfig(), num_experts=8)
    assert made.sample_rewards == (0.1, 0.1, 0.1)


def test_routing_rows_after_a_resume_are_concatenated_not_overwritten():
    # verl #7158: a partial rollout's rows were overwritten on resume, and the merge failed on arrays.
    rng, history = np.random.default_rng(0), TokenHistory([1, 2, 3])
    one, history = history.with_turn(generate(rng, history.prompt_ids, 4))
    kept = one.routing.copy()
    assert history.routing_start(0) == 6
    two, _ = history.with_turn(generate(rng, history.prompt_ids, 5, start=6))
    assert len(two.routing) == 3 + 4 + 5 - 1
    np.testing.assert_array_equal(two.routing[:6], kept)
    np.testing.assert_array_equal(one.routing, kept)


def test_a_long_trial_does_not_keep_every_prompt_anew():
    # Harbor: each turn stored its whole prompt, 15 million ids for 300 turns of a history of 50 thousand.
    rng, history, turns = np.random.default_rng(0), TokenHistory(range(100)), []
    for _ in range(200):
        drawn = generate(rng, history.prompt_ids, 30, start=history.routing_start(0))
        made, history = history.with_turn(drawn)
        turns.append(made)
        history = history.with_context([7] * 20)
    buffers = {id(made.prompt_ids.base): made.prompt_ids.base.nbytes for made in turns}
    assert sum(buffers.values()) < 4 * history.prompt_ids.nbytes
