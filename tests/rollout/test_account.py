"""What a step made of its trials, and what the trainer said of every token."""

import numpy as np
import pytest

from components.errors import RecordError, StoreError
from components.rollout import TokenFigures, TrialRow, dump_figures, load_figures, trial_rows
from tests.rollout.parts import graded, reward, sample_of, tasks


def figures(sample, *, gap=0.25, gain=0.5, values=True):
    sampled = sample.logprobs[sample.loss_mask]
    told = np.full(len(sampled), gain, np.float32)
    return TokenFigures(sampled - np.float32(gap), sampled, told, told * 2 if values else None)


def step():
    trials = [graded(f"t{i}", task.ref, passed=i == 0) for i, task in enumerate(tasks(2))]
    return trials, [sample_of(trial) for trial in trials]


def test_the_trainers_figures_read_back_as_they_were_written():
    _, samples = step()
    said = [figures(samples[0]), figures(samples[1], values=False)]
    data = dump_figures(samples, said)
    for sample, before in zip(samples, said, strict=True):
        after = load_figures(data, sample.trial_id)[sample.chunk]
        for name in ("behaviour", "current", "advantages"):
            assert np.array_equal(getattr(after, name), getattr(before, name))
    assert load_figures(data, "t0")[0].values.tolist() == said[0].values.tolist()
    assert load_figures(data, "t1")[0].values is None
    assert load_figures(data, "t") == {}, "the beginning of a name is another name"
    with pytest.raises(StoreError, match="the trainer's figures of trial t0"):
        load_figures(data[:50], "t0")


def test_a_row_has_the_figures_of_all_chunks_of_its_trial_and_none_where_none_was_learned():
    trials, samples = step()
    trials[1].facts["tampering"] = ["planted x"]
    said = [figures(samples[0], gap=0.1), figures(samples[0], gap=0.3, gain=-0.5)]
    rows = [TrialRow(**row) for row in trial_rows(trials, [reward(0.2), reward(0.0, False)], [samples[0]] * 2, said)]
    assert [(row.trial_id, row.reward, row.resolved, row.turns, row.sampled) for row in rows] == [
        ("t0", 0.2, True, 2, 6),
        ("t1", 0.0, False, 2, 6),
    ]
    assert (rows[0].gap, rows[0].advantage) == (pytest.approx(0.2), pytest.approx(0.0))
    assert (rows[1].gap, rows[1].advantage) == (None, None)
    assert [row.assertions for row in rows] == [2, 1]
    assert [row.tampering for row in rows] == [None, 1], "nobody looked at the first"


def test_a_row_of_another_version_is_read_and_one_that_lacks_what_every_version_has_is_refused():
    trials, samples = step()
    told = trial_rows(trials, [reward(0.2), reward(0.0, False)], [samples[0]], [figures(samples[0], gap=0.1)])[0]
    assert TrialRow.from_json(told) == TrialRow(**told)
    older = {name: value for name, value in told.items() if name not in ("gap", "assertions")}
    assert TrialRow.from_json({**older, "of_later": 1}) == TrialRow(**(told | {"gap": None, "assertions": None}))
    with pytest.raises(RecordError, match="lacks trial_id, turns"):
        TrialRow.from_json({name: value for name, value in told.items() if name not in ("trial_id", "turns")})
    with pytest.raises(RecordError, match="is a list"):
        TrialRow.from_json([told])
