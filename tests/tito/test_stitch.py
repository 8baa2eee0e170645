"""The four boundary cases one by one, then streams of random tokenizers and templates."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from components.errors import RecordError
from components.records import Turn
from components.routing import checksum
from components.tito import Stitcher, audit, boundaries, stitch
from components.tito.boundary import PROMPT_TAIL
from components.tito.stitch import _Prompts

from .toy import END, MODES, RandomBpe, ToyTokenizer, converse, make_turn


class Letters:
    """One id a letter; capitals are two letters in one id: "A" spells "aa"."""

    def encode(self, text):
        return [ord(c) for c in text]

    def decode(self, ids):
        return "".join(chr(i).lower() * 2 if chr(i).isupper() else chr(i) for i in ids)

    def encode_with_offsets(self, text):
        return self.encode(text), [(i, i + 1) for i in range(len(text))]


def turn(prompt, answer, **more):
    return make_turn(Letters().encode(prompt), Letters().encode(answer), **more)


def spell(sample):
    """The stream with its trained part in brackets."""
    out = "".join(map(chr, sample.tokens))
    edges = np.flatnonzero(np.diff(sample.loss_mask, prepend=False, append=False))
    for place, edge in reversed(list(enumerate(edges))):
        out = out[:edge] + "[]"[place % 2] + out[edge:]
    return out


def count(samples):
    return {case: sum(s.boundaries[case] for s in samples) for case in samples[0].boundaries}


def cases(samples):
    return [case for case, n in count(samples).items() for _ in range(n)]


def test_a_prompt_that_extends_the_turn_is_strict():
    samples = stitch([turn("p:", "foo."), turn("p:foo.x:", "bar.")], Letters(), trial_id="t")
    assert [spell(s) for s in samples] == ["p:[foo.]x:[bar.]"]
    assert cases(samples) == ["strict"]
    assert (samples[0].trial_id, samples[0].chunk) == ("t", 0)


def test_a_dropped_generation_prompt_is_normalized_and_stays_in_the_stream():
    samples = stitch([turn("p:<>", "foo."), turn("p:foo.x:<>", "bar.")], Letters())
    assert [spell(s) for s in samples] == ["p:<>[foo.]x:<>[bar.]"]
    assert cases(samples) == ["normalized"]


def test_a_retokenized_tail_is_not_emitted_twice():
    # Read literally, the paper's case 2 resumes before the re-rendered tail: "p:[fooA.]" would be followed by "aa.x:".
    samples = stitch([turn("p:", "fooA."), turn("p:fooaa.x:", "bar.")], Letters())
    assert [spell(s) for s in samples] == ["p:[fooA.]x:[bar.]"]
    assert cases(samples) == ["normalized"]


def test_white_space_that_the_template_strips_does_not_split():
    samples = stitch([turn("p:", "foo \n."), turn("p:foo.x:", "bar.")], Letters())
    assert [spell(s) for s in samples] == ["p:[foo \n.]x:[bar.]"]
    assert cases(samples) == ["normalized"]


def test_an_answer_in_other_tokens_is_retokenized_and_its_sampled_ids_are_trained():
    long = "A" + "b" * 30
    samples = stitch([turn("p:", long), turn("p:aa" + "b" * 30 + "x:", "c")], Letters())
    assert [spell(s) for s in samples] == [f"p:[{long}]x:[c]"]
    assert cases(samples) == ["retokenized"]


def test_a_merge_across_the_start_of_the_answer_is_retokenized():
    long = "a" + "b" * 30
    samples = stitch([turn("p:a", long), turn("p:A" + "b" * 30 + "x:", "c")], Letters())
    assert [spell(s) for s in samples] == [f"p:a[{long}]x:[c]"]


def test_rewritten_history_splits_and_both_chunks_keep_the_trial():
    samples = stitch([turn("p:", "foo."), turn("p:fuu.x:", "bar.")], Letters(), trial_id="t")
    assert [spell(s) for s in samples] == ["p:[foo.]", "p:fuu.x:[bar.]"]
    assert cases(samples) == ["split"]
    assert [(s.trial_id, s.chunk) for s in samples] == [("t", 0), ("t", 1)]


def test_an_edited_short_answer_is_not_taken_for_a_dropped_tail():
    samples = stitch([turn("pre: y? ", "y"), turn("pre: y? n. more: ", "z")], Letters())
    assert [spell(s) for s in samples] == ["pre: y? [y]", "pre: y? n. more: [z]"]


def test_white_space_that_became_part_of_a_token_of_the_glue_splits():
    # " \n" is one id here, so no cut stands between the answer's space and the glue's newline.
    class Merging(Letters):
        def decode(self, ids):
            return "".join(" \n" if i == ord("N") else chr(i) for i in ids)

    samples = stitch([turn("p:", "foo "), turn("p:fooNx:", "bar")], Merging())
    assert [spell(s) for s in samples] == ["p:[foo ]", "p:fooNx:[bar]"]
    stripped = stitch([turn("p:", "foo "), turn("p:foo;x:", "bar")], Merging())
    assert [spell(s) for s in stripped] == ["p:[foo ];x:[bar]"]


@pytest.mark.parametrize("prompt", ["p:", "p:x:"])
def test_a_blank_answer_is_not_taken_for_one_that_was_stripped(prompt):
    samples = stitch([turn("p:", " \n"), turn(prompt, "y")], Letters())
    assert [spell(s) for s in samples] == ["p:[ \n]", f"{prompt}[y]"]


def test_a_turn_whose_recorder_says_that_it_opens_a_branch_splits_whatever_its_ids_allow():
    follows = turn("p:foo.x:", "bar.")
    assert len(stitch([turn("p:", "foo."), follows], Letters())) == 1
    samples = stitch([turn("p:", "foo."), replace(follows, opens=True)], Letters())
    assert [spell(s) for s in samples] == ["p:[foo.]", "p:foo.x:[bar.]"]
    assert cases(samples) == ["split"]


def test_history_rewritten_beyond_the_grid_splits():
    samples = stitch([turn("p" + "q" * 200, "foo"), turn("r" + "q" * 200 + "foo:", "bar")], Letters())
    assert cases(samples) == ["split"]


def test_a_change_of_weights_opens_a_chunk_of_its_own_version():
    turns = [turn("p:", "a"), turn("p:ax:", "b", version=1), turn("p:ax:by:", "c", version=1)]
    samples = stitch(turns, Letters())
    assert [(spell(s), s.weight_version) for s in samples] == [("p:[a]", 0), ("p:ax:[b]y:[c]", 1)]


def test_the_boundaries_of_a_trial_are_those_that_its_streams_were_stitched_by():
    turns = [turn("p:", "a"), turn("p:ax:", "b"), turn("q:", "c"), turn("q:cy:", "d", version=1)]
    joints = boundaries(turns, Letters())
    assert [joint and (joint.case.value, joint.cut) for joint in joints] == [
        None,
        ("strict", 3),
        ("split", 0),
        ("split", 0),
    ]
    assert cases(stitch(turns, Letters())) == ["strict", "split", "split"]


def test_equal_answers_to_different_prompts_are_different_nodes():
    turns = [turn("p:", "y"), turn("p:yx:", "y")]
    samples = stitch(turns, Letters())
    assert [spell(s) for s in samples] == ["p:[y]x:[y]"]
    assert audit(turns, samples, Letters()).clean


def test_equal_answers_to_prompts_that_differ_far_from_their_ends_are_different_nodes():
    left, right = (head + "q" * (PROMPT_TAIL + 4) for head in "ab")
    turns = [turn(left, "y"), turn(right, "y"), turn(f"{right}yx", "z"), turn(left, "y"), turn(f"{left}yx", "z")]
    assert turns[0].logprobs == turns[1].logprobs
    samples = stitch(turns, Letters())
    assert [spell(s) for s in samples] == [f"{left}[y]", f"{right}[y]x[z]", f"{left}yx[z]"]
    assert audit(turns, samples, Letters()).clean


def test_an_empty_answer_adds_context_only():
    samples = stitch([turn("p:", ""), turn("p:x:", "a")], Letters())
    assert [spell(s) for s in samples] == ["p:x:[a]"]
    assert stitch([], Letters()) == []
    with pytest.raises(RecordError, match="nothing to condition on"):
        stitch([turn("", "ab")], Letters())


def test_routing_rows_follow_the_tokens_and_each_answer_keeps_the_rows_that_predicted_it():
    turns = [turn("p:", "foo."), turn("p:foo.x:", "bar.")]
    (sample,) = stitch(turns, Letters())
    assert len(sample.routing) == len(sample.tokens) - 1
    np.testing.assert_array_equal(sample.routing[:5], turns[0].routing)
    np.testing.assert_array_equal(sample.routing[5:], turns[1].routing[5:])
    assert sample.routing_checksum == checksum(np.concatenate([turns[0].routing, turns[1].routing[5:]]))


def test_a_gap_before_context_is_filled_from_the_row_before_it():
    turns = [turn("p:", "fooA"), turn("p:fooaax:", "bar.")]
    (sample,) = stitch(turns, Letters())
    assert not sample.loss_mask[6]
    np.testing.assert_array_equal(sample.routing[5], sample.routing[4])
    np.testing.assert_array_equal(sample.routing[6:], turns[1].routing[7:])
    report = audit(turns, [sample], Letters())
    assert (report.placeholder_rows, report.drift) == (1, 0)


def test_a_gap_that_predicts_a_sampled_token_is_an_error():
    with pytest.raises(RecordError, match="was not captured"):
        stitch([turn("p:", "fooA"), turn("p:fooaa", "bar.")], Letters())


def test_an_answer_that_follows_an_answer_strictly_has_its_row_and_is_no_gap():
    turns = [turn("p:", "foo"), turn("p:foo", "bar")]
    (sample,) = stitch(turns, Letters())
    assert spell(sample) == "p:[foobar]"
    np.testing.assert_array_equal(sample.routing[:4], turns[0].routing)
    np.testing.assert_array_equal(sample.routing[4:], turns[1].routing[4:])
    np.testing.assert_array_equal(sample.routing[4:], turns[1].routing[4:])
    assert audit(turns, [sample], Letters()).clean


def test_routing_on_some_turns_only_is_an_error():
    with pytest.raises(RecordError, match="routing on some turns"):
        stitch([turn("p:", "a"), turn("p:a:", "b", routing=False)], Letters())
    wide = turn("p:a:", "b")
    wide = make_turn(wide.prompt_ids, wide.completion_ids)
    object.__setattr__(wide, "routing", wide.routing.astype(np.uint16))
    with pytest.raises(RecordError, match="after"):
        stitch([turn("p:", "a"), wide], Letters())
    (bare,) = stitch([turn("p:", "a", routing=False)], Letters())
    assert bare.routing is None
    assert bare.routing_checksum is None


def test_ids_of_another_integer_type_are_stitched_alike():
    wide = [
        Turn(np.array([1, 2]), np.array([3]), np.zeros(1, np.float32), None, 0, "stop"),
        Turn(np.array([1, 2, 3, 4]), np.array([5]), np.zeros(1, np.float32), None, 0, "stop"),
    ]
    (sample,) = stitch(wide, Letters())
    assert sample.tokens.tolist() == [1, 2, 3, 4, 5]
    assert sample.tokens.dtype == np.int32


@cache
def tokenizer_of(kind, number):
    return kind(number)


@settings(deadline=None, max_examples=250)
@given(
    seed=st.integers(0, 10**6),
    turns=st.integers(1, 7),
    mode=st.sampled_from(MODES),
    kind=st.sampled_from([ToyTokenizer, RandomBpe]),
)
def test_streams_are_text_exact_and_train_exactly_what_was_sampled(seed, turns, mode, kind):
    rng, tokenizer = random.Random(seed), tokenizer_of(kind, seed % 31)
    played, glue = converse(tokenizer, rng, turns, mode)
    samples = stitch(played, tokenizer)
    first = 0
    for sample in samples:
        assert len(sample.routing) == len(sample.tokens) - 1
        starts = np.flatnonzero(np.diff(sample.loss_mask, prepend=False) & sample.loss_mask)
        text = tokenizer.decode(played[first].prompt_ids)
        for index, at in enumerate(starts, first):
            size, prompt = len(played[index].completion_ids), len(played[index].prompt_ids)
            np.testing.assert_array_equal(sample.tokens[at : at + size], played[index].completion_ids)
            np.testing.assert_array_equal(sample.logprobs[at : at + size], played[index].logprobs)
            np.testing.assert_array_equal(
                sample.routing[at - 1 : at + size - 1], played[index].routing[prompt - 1 : prompt + size - 1]
            )
            text += tokenizer.decode(played[index].completion_ids)
            text += glue[index] if index + 1 < first + len(starts) else ""
        assert tokenizer.decode(sample.tokens) == text
        first += len(starts)
        lengths = [len(turn.completion_ids) for turn in played[first - len(starts) : first]]
        assert sample.loss_mask.sum() == sum(lengths)
    assert first == turns
    assert len(cases(samples)) == turns - 1
    report = audit(played, samples, tokenizer)
    assert report.clean
    assert report.drift == 0


def test_re_encoded_histories_need_few_splits_and_use_every_case():
    seen = dict.fromkeys(("strict", "normalized", "retokenized", "split"), 0)
    for seed in range(25):
        rng, tokenizer = random.Random(seed), ToyTokenizer(seed)
        for mode in MODES:
            played, _ = converse(tokenizer, rng, 5, mode)
            for case in cases(stitch(played, tokenizer)):
                seen[case] += 1
            if mode == "reencode":
                assert "split" not in cases(stitch(played, tokenizer))
    assert all(seen.values())


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_the_incremental_stitcher_gives_the_same_samples_at_every_turn(seed):
    rng, tokenizer = random.Random(seed), ToyTokenizer(seed % 97)
    played, _ = converse(tokenizer, rng, 5, rng.choice(MODES))
    stitcher = Stitcher(tokenizer)
    for so_far, item in enumerate(played, 1):
        stitcher.append(item)
        for got, want in zip(stitcher.samples(), stitch(played[:so_far], tokenizer), strict=True):
            for name in ("tokens", "loss_mask", "logprobs", "routing"):
                np.testing.assert_array_equal(getattr(got, name), getattr(want, name))
            assert (got.chunk, got.boundaries) == (want.chunk, want.boundaries)


def test_the_stream_keeps_what_was_sampled_when_the_caller_reuses_its_arrays():
    one = turn("p:", "foo")
    stitcher = Stitcher(Letters())
    stitcher.append(one)
    one.completion_ids[:] = END
    assert spell(stitcher.samples()[0]) == "p:[foo]"


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_a_prompt_has_one_hash_whatever_came_before_it(seed):
    rng = np.random.default_rng(seed)
    prompts, known = _Prompts(), []
    for _ in range(6):
        last = known[-1] if known else np.zeros(0, np.int32)
        keeps = max(len(last) - int(rng.integers(0, PROMPT_TAIL + 1)), 0)
        known.append(np.concatenate([last[:keeps], rng.integers(0, 9, int(rng.integers(1, 700))).astype(np.int32)]))
        assert prompts.hash(known[-1], follows=len(known) > 1) == _Prompts().hash(known[-1], follows=False)
    assert len({_Prompts().hash(each, follows=False) for each in known}) == len({each.tobytes() for each in known})
