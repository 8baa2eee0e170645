"""How many devices generate and how many train (paper Eq 22): T_step(n) = max(R/n, C/(G - n)), best at equality.

Invariant: no other split into whole samplers and whole trainer replicas has a shorter step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from components.errors import ConfigError


@dataclass(frozen=True)
class Split:
    """A split of G devices.

    Attributes:
        sampling: n, devices that generate.
        training: devices that train.
        generate: R/n, the time of generation.
        update: C/training, the time of the update.
        ideal: (R + C)/(n + training), the step if devices could be cut at will.
    """

    sampling: int
    training: int
    generate: float
    update: float
    ideal: float

    @property
    def step(self) -> float:
        """T_step: the longer of both, which overlap."""
        return max(self.generate, self.update)


def split(rollout: float, update: float, *, sampling: int, training: int) -> Split:
    """Eq 22 at a given split. `rollout` and `update` are R and C: device-time of one step, in one unit."""
    devices = sampling + training
    return Split(sampling, training, rollout / sampling, update / training, (rollout + update) / devices)


def balance(
    rollout: float,
    update: float,
    devices: int,
    *,
    sampling_unit: int = 1,
    training_unit: int = 1,
    admits: Callable[[int], bool] = lambda training: True,
) -> Split:
    """The split with the shortest step; of several, the one with the most devices that train.

    Args:
        rollout: R, device-time that generates one step's batch.
        update: C, device-time of one step's update, in the same unit.
        devices: G.
        sampling_unit: devices of one sampler.
        training_unit: devices that training comes in multiples of.
        admits: whether that many devices can hold a trainer (Eq 21).

    Raises:
        ConfigError: a figure is not positive, or no split is possible.
    """
    if min(rollout, update) <= 0 or min(devices, sampling_unit, training_unit) < 1:
        raise ConfigError(["device-time and devices must be positive"], "balance")
    splits = []
    for training in range(training_unit, devices, training_unit):
        sampling = (devices - training) // sampling_unit * sampling_unit
        if sampling and admits(training):
            splits.append(split(rollout, update, sampling=sampling, training=training))
    if not splits:
        need = f"samplers of {sampling_unit} beside a trainer of a multiple of {training_unit}"
        raise ConfigError([f"{devices} devices have no room for {need} that fits"], "balance")
    return min(splits, key=lambda found: (found.step, -found.training))
