"""Eq 22."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.errors import ConfigError
from components.planner import balance, split

work = st.floats(1, 1e6)


@given(work, work, st.integers(2, 300), st.integers(1, 8), st.integers(1, 8))
def test_no_split_into_whole_units_is_faster(
    rollout: float, update: float, devices: int, sampling_unit: int, training_unit: int
) -> None:
    if devices < sampling_unit + training_unit:
        with pytest.raises(ConfigError, match="no room"):
            balance(rollout, update, devices, sampling_unit=sampling_unit, training_unit=training_unit)
        return
    found = balance(rollout, update, devices, sampling_unit=sampling_unit, training_unit=training_unit)
    assert found.sampling % sampling_unit == found.training % training_unit == 0
    assert found.sampling + found.training <= devices
    for n in range(sampling_unit, devices, sampling_unit):
        training = (devices - n) // training_unit * training_unit
        if training:
            assert found.step <= max(rollout / n, update / training) * (1 + 1e-12)


@given(work, work, st.integers(2, 300))
def test_no_split_beats_devices_that_could_be_cut_at_will(rollout: float, update: float, devices: int) -> None:
    found = balance(rollout, update, devices)
    assert found.ideal == pytest.approx((rollout + update) / devices)
    assert found.step >= found.ideal * (1 - 1e-12)


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 5))
def test_the_step_is_shortest_where_both_sides_take_equally_long(rollout: int, update: int, unit: int) -> None:
    found = balance(3.0 * rollout * unit, 3.0 * update * unit, (rollout + update) * unit)
    assert (found.sampling, found.training) == (rollout * unit, update * unit)
    assert found.generate == found.update == found.step == 3.0


def test_the_papers_step_of_57_minutes_is_41_of_training_over_16_of_generation() -> None:
    half = split(16 * 64, 41 * 64, sampling=64, training=64)
    assert (half.generate, half.update, half.step) == (16, 41, 41)
    assert half.generate + half.update == 57  # without overlap
    assert half.ideal == 28.5
    better = balance(16 * 64, 41 * 64, 128, sampling_unit=8, training_unit=32)
    assert (better.sampling, better.training, better.step) == (32, 96, 32)


def test_a_split_whose_trainer_does_not_fit_is_passed_over() -> None:
    found = balance(1_024, 2_624, 128, sampling_unit=8, training_unit=32, admits=lambda training: training == 64)
    assert (found.sampling, found.training) == (64, 64)
    with pytest.raises(ConfigError, match="no room"):
        balance(1_024, 2_624, 128, admits=lambda training: False)


@pytest.mark.parametrize(("rollout", "update", "devices"), [(0, 1, 4), (1, -1, 4), (1, 1, 0)])
def test_nothing_is_no_work(rollout: float, update: float, devices: int) -> None:
    with pytest.raises(ConfigError, match="positive"):
        balance(rollout, update, devices)
