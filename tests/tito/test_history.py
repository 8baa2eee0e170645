"""The append-only history: what a harness that never re-encodes sends and keeps."""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from components.errors import RecordError
from components.tito import TokenHistory, audit, stitch

from .test_stitch import Letters


@dataclass(frozen=True)
class Generation:
    output_ids: np.ndarray
    logprobs: np.ndarray
    routing: np.ndarray | None
    routing_start: int = 0
    finish_reason: str = "stop"
    weight_version: int = 0


def generate(rng, prompt, size, *, start=0, version=0, layers=2):
    """A sampler whose experts are a function of position, token and version, as a prefix cache would return them."""
    ids = rng.integers(97, 123, size).astype(np.int32)
    whole = np.concatenate([prompt, ids])[:-1].astype(np.int64)[:, None, None]
    place = np.arange(len(whole))[:, None, None] + np.arange(layers * 2).reshape(layers, 2)
    rows = ((whole * 7 + place + version) % 8).astype(np.uint8)
    return Generation(ids, -rng.random(size).astype(np.float32), rows[start:], start, "stop", version)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), turns=st.integers(1, 12), change=st.integers(0, 12))
def test_a_trajectory_of_the_history_is_strict_exactly_conditioned_and_fully_routed(seed, turns, change):
    rng = np.random.default_rng(seed)
    history, played = TokenHistory([112, 58]), []
    for index in range(turns):
        version = int(index >= change)
        prompt = history.prompt_ids
        drawn = generate(rng, prompt, rng.integers(1, 600), start=history.routing_start(version), version=version)
        turn, history = history.with_turn(drawn)
        played.append(turn)
        whole = generate(np.random.default_rng(0), prompt, 1, version=version).routing
        np.testing.assert_array_equal(played[-1].routing[: len(whole)], whole)
        history = history.with_context([10] * int(rng.integers(1, 300)))
    samples = stitch(played, Letters())
    report = audit(played, samples, Letters())
    assert report.clean
    assert report.reencoded_context == 0
    assert len(samples) == len({turn.weight_version for turn in played})
    assert sum(s.boundaries["strict"] for s in samples) == turns - len(samples)
    assert history.prompt_ids.tolist()[: len(samples[-1].tokens)] == samples[-1].tokens.tolist()
    for sample in samples:
        want = generate(np.random.default_rng(0), sample.tokens, 1, version=sample.weight_version).routing[:-1]
        np.testing.assert_array_equal(sample.routing, want)


def test_prompts_share_memory_and_cannot_be_changed():
    history = TokenHistory(range(50))
    first = history.prompt_ids
    assert np.shares_memory(first, history.with_context([1, 2]).prompt_ids)
    assert len(first) == 50
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 9


def test_branches_of_one_history_leave_each_other_and_their_trunk_as_they_are():
    rng, trunk = np.random.default_rng(0), TokenHistory([1, 2, 3])
    _, trunk = trunk.with_turn(generate(rng, trunk.prompt_ids, 4))
    before = trunk.prompt_ids.tolist()
    branches = [trunk.with_context([number] * 5) for number in range(3)]
    ended = [branch.with_turn(generate(rng, branch.prompt_ids, 6, start=6)) for branch in branches]
    assert trunk.prompt_ids.tolist() == before
    assert trunk.routing_start(0) == 6
    for number, (turn, after) in enumerate(ended):
        assert turn.prompt_ids.tolist() == before + [number] * 5
        assert after.prompt_ids.tolist() == [*turn.prompt_ids, *turn.completion_ids]
        whole = generate(np.random.default_rng(0), after.prompt_ids, 1).routing
        np.testing.assert_array_equal(turn.routing, whole[:-1])


@pytest.mark.parametrize(("start", "version"), [(5, 0), (7, 0), (6, 1)])
def test_rows_that_leave_a_hole_or_mix_weights_are_refused_and_nothing_is_recorded(start, version):
    rng, history = np.random.default_rng(0), TokenHistory([1, 2, 3])
    _, history = history.with_turn(generate(rng, history.prompt_ids, 4))
    drawn = generate(rng, history.prompt_ids, 5, start=start, version=version)
    if start == 5:
        drawn = Generation(drawn.output_ids, drawn.logprobs, drawn.routing[1:], 5)
    before = history.prompt_ids.tolist()
    with pytest.raises(RecordError, match="do not continue"):
        history.with_turn(drawn)
    assert history.prompt_ids.tolist() == before
    assert history.routing_start(0) == 6


def test_a_generation_without_a_log_prob_for_every_id_is_refused():
    history = TokenHistory([1])
    with pytest.raises(RecordError, match="2 sampled ids and 1 log-probs"):
        history.with_turn(Generation(np.array([1, 2]), np.array([-0.1]), None))
    assert len(history) == 1


def test_rows_of_another_shape_are_refused():
    rng, history = np.random.default_rng(0), TokenHistory([1, 2])
    _, history = history.with_turn(generate(rng, history.prompt_ids, 2))
    with pytest.raises(RecordError, match="appended to"):
        history.with_turn(generate(rng, history.prompt_ids, 2, start=3, layers=3))
