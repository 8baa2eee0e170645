"""The auditor finds every way in which a stream can betray what was sampled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from components.tito import audit, stitch

from .test_stitch import Letters, turn

TURNS = [turn("p:", "fooA."), turn("p:fooA.x:", "bar.")]


def whole():
    return stitch(TURNS, Letters())[0]


def test_a_faithful_stream_is_clean_and_conditioned_exactly():
    report = audit(TURNS, [whole()], Letters())
    assert report.clean
    assert (report.drift, report.reencoded_context, report.placeholder_rows) == (0, 0, 0)
    assert report.positions == {"aligned": 9, "retokenized": 0, "placeholder": 0}


def test_a_re_encoding_under_loss_is_drift():
    other = turn("p:", "fooaa.")
    (sample,) = stitch([other], Letters())
    report = audit(TURNS, [sample], Letters())
    assert report.positions["retokenized"] == 6
    assert (report.drift, report.missing_turns) == (1, 2)
    assert not report.clean


@pytest.mark.parametrize("field", ["tokens", "logprobs"])
def test_a_token_or_log_prob_that_was_not_sampled_is_drift(field):
    sample = whole()
    changed = getattr(sample, field).copy()
    changed[3] += 1
    report = audit(TURNS, [replace(sample, **{field: changed})], Letters())
    assert report.positions == {"aligned": 4, "retokenized": 0, "placeholder": 5}
    assert report.drift == pytest.approx(5 / 9)
    assert report.missing_turns == 1


def test_a_sampled_token_of_other_weights_is_drift():
    assert audit(TURNS, [replace(whole(), weight_version=3)], Letters()).drift == 1


def test_a_mask_that_covers_an_observation_is_drift():
    sample = whole()
    mask, logprobs = sample.loss_mask.copy(), sample.logprobs
    mask[7] = True
    report = audit(TURNS, [replace(sample, loss_mask=mask, logprobs=logprobs)], Letters())
    assert report.drift == pytest.approx(1 / 10)
    assert not report.clean


def test_a_turn_trained_twice_or_never_is_reported():
    twice = audit(TURNS, [whole(), replace(whole(), chunk=1)], Letters())
    assert (twice.drift, twice.repeated_turns, twice.clean) == (0, 2, False)
    never = audit(TURNS, stitch(TURNS[:1], Letters()), Letters())
    assert (never.drift, never.missing_turns, never.clean) == (0, 1, False)


def test_tokens_conditioned_on_a_re_encoding_are_counted_though_they_are_not_drift():
    turns = [turn("p:", "fooA."), turn("p:fooaa.x:", "bar.")]
    report = audit(turns, stitch(turns, Letters()), Letters())
    assert report.clean
    assert report.reencoded_context == pytest.approx(4 / 9)
    assert (report.reencoded_tokens, report.loss_tokens) == (4, 9)


def test_without_loss_positions_there_is_no_drift_to_measure():
    assert np.isnan(audit([], [], Letters()).drift)
    assert audit([], [], Letters()).clean


def test_answers_that_touch_or_repeat_are_told_apart():
    turns = [turn("p:", "ab"), turn("p:ab", "ab"), turn("p:abab:", "ab"), turn("p:abab:ab;", "abc")]
    report = audit(turns, stitch(turns, Letters()), Letters())
    assert report.clean
    assert report.reencoded_context == 0
