"""What an exact continuation of a stage depends on: the keys that must be as they were when its state was committed.

Invariant: a key that can change what a step computes is decisive, unless it is named here with the reason why it is
not. How a trainer is laid out is not: every layout reads every other's state and computes the same up to rounding.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from components.config.campaign import CampaignConfig

_RL = ("seed", "model", "pool", "ppo", "reward", "rollout", "harness")
SECTIONS = {
    "base": ("seed", "model", "base"),
    "sft": ("seed", "model", "sft"),
    "warmup": _RL,
    "rl": _RL,
}
"""Sections that a stage reads. The others say where and how fast it runs (trainer, sampler, publish, sandbox), how far
(rl), and what is kept and measured of it (checkpoints, evaluation)."""
_DRAWN = ("sampler.dtype", "sampler.router_dtype", "sampler.context_tokens")
BESIDE = {"warmup": _DRAWN, "rl": _DRAWN}
"""Keys of the other sections that are decisive all the same: they change which tokens are drawn."""
FREE = (
    # Read only where there is no state yet, or by others.
    "model.path",
    "model.init_std",
    "model.max_position_embeddings",
    # When something is given up for lost, how much of it at once, how often again.
    "rollout.agent_timeout_s",
    "rollout.verifier_timeout_s",
    "rollout.remote_timeout_s",
    "rollout.concurrency",
    "rollout.starts_per_s",
    "rollout.per_node",
    "rollout.reattach_s",
    "rollout.max_attempts",
    "rollout.max_fault_share",
    "rollout.max_rejected_share",
    # Where Harbor lies on this machine, and how busy the machine may be.
    "harness.harbor",
    "harness.patience_s",
)
"""Keys of these sections that may change between a commit and its continuation."""


def decisive(config: CampaignConfig, stage: str) -> dict[str, Any]:
    """Every decisive key of a stage by its path, with its value as JSON has it."""
    document = config.model_dump(mode="json")
    found = {path: value for section in SECTIONS[stage] for path, value in _leaves(section, document[section])}
    beside = {path: value for section in document for path, value in _leaves(section, document[section])}
    found |= {path: beside[path] for path in BESIDE.get(stage, ())}
    return {path: value for path, value in found.items() if path not in FREE}


def decisive_digest(keys: Mapping[str, Any]) -> str:
    """Names what `decisive` gave: equal exactly when every key is."""
    return hashlib.sha256(json.dumps(keys, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Keys that are not as they were, each with both values."""
    absent = object()
    paths = [path for path in sorted(was.keys() | now.keys()) if was.get(path, absent) != now.get(path, absent)]
    return [f"{path} was {was.get(path, 'not there')}, is {now.get(path, 'not there')}" for path in paths]


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}", inner)
    else:
        yield path, value
