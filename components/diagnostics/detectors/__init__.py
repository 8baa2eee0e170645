"""The detectors, a file a theme. Each is a pure function of a run's series; docs/diagnosis.md is held against them."""

from components.diagnostics.detectors import (
    context,
    critic,
    engines,
    heldout,
    machines,
    policy,
    scheduling,
    tokens,
    verification,
)

DETECTORS = (
    *tokens.DETECTORS,
    *engines.DETECTORS,
    *critic.DETECTORS,
    *policy.DETECTORS,
    *verification.DETECTORS,
    *context.DETECTORS,
    *scheduling.DETECTORS,
    *machines.DETECTORS,
    *heldout.DETECTORS,
)
"""All of them, in the order of the report."""

__all__ = ["DETECTORS"]
