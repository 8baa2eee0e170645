"""What Ray is asked for: the resources of every actor that a job makes. Pure, so that it can be told beforehand.

A job's driver asks for nothing and runs on the head node; its trainer's processes are its own children.
"""

from __future__ import annotations

from typing import Any

from components.config import SamplerConfig

ROLLOUTS: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0}
"""The rollout actor of a leg, on its driver's node, whose folders both use. It waits for sockets."""
NODE_PLACE: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0}
"""What holds the sandboxes of a node, one on each node (`rollout.per_node`)."""


def replica(config: SamplerConfig) -> dict[str, Any]:
    """A sampler (`sampler.placement: ray`): wherever its GPUs are."""
    return {"num_cpus": 0, "num_gpus": 0 if config.sglang is None else config.sglang.tp, "max_restarts": 0}
