"""Sandbox hosts of a leg: one beside it, or one on every node of the Ray cluster.

Invariant: a node's host is started, and its place held, by an actor on that node. The actor ends with the job that owns
it, and lets go of the place; the host, which is nobody's child, waits for the next attempt's. Boxes and what goes into
them travel over the hosts' connections, so nodes share no folders. A node whose host is lost costs the trials that it
held, as infrastructure, and the leg goes on with the others.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from components.config import CampaignConfig, SandboxConfig
from components.errors import FaultCause, InfraFault
from components.jobs.actors import NODE_PLACE
from components.jobs.job import log
from components.sandbox.host import Address, HostBackend, Hosts, Place, claim, open_host, open_place, required

HERE = "here"
PLACED_S = 120.0
"""What a node takes to start an actor, and the last owner there to be gone, at most; one that takes longer is left out.
"""
LEAVE_S = 5.0


async def open_hosts(config: CampaignConfig, state: Path) -> Hosts:
    """The hosts of a leg; those that an earlier attempt left, with their boxes, where they live.

    Args:
        state: scratch that the legs of a stage share. A node's host has its own there, under the same name.

    Raises:
        ConfigError: no sandbox can be had.
        InfraFault: an earlier owner lives, or no node has a host.
    """
    linger_s, per_node = config.rollout.reattach_s, config.rollout.per_node
    if per_node is None:
        return Hosts({HERE: await open_host(config.sandbox, state, linger_s)}, None)
    names = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    opening = [_open_on(node, config.sandbox, state, linger_s) for node in names]
    opened = dict(zip(names, await asyncio.gather(*opening, return_exceptions=True), strict=True))
    hosts = {node: host for node, host in opened.items() if isinstance(host, HostBackend)}
    failed = {node: error for node, error in opened.items() if isinstance(error, BaseException)}
    for node, error in failed.items():
        log.warning("node %s (%s) has no sandboxes: %s", node[:8], names[node], error)
    if not hosts:
        raise next(iter(failed.values()), InfraFault(FaultCause.SANDBOX, "the cluster has no node"))
    log.info("sandboxes on %d nodes, at most %d each", len(hosts), per_node)
    return Hosts(hosts, per_node)


class NodePlace:
    """The place of a host, held on its own node. Made an actor by `open_hosts`."""

    def __init__(self, config: Mapping[str, Any], state: str, linger_s: float) -> None:
        self._config = SandboxConfig.model_validate(config)
        self._state = Path(state)
        self._linger_s = linger_s
        self._place: Place | None = None

    async def hold(self) -> Address | None:
        """Holds the place. The address of the host that was started there last; None where none was."""
        self._place = await open_place(self._state, machine=str(ray.util.get_node_ip_address()))
        return self._place.address

    async def start(self) -> Address:
        """A new host."""
        assert self._place is not None, "the place is held"
        return await self._place.start(self._config, self._state, self._linger_s)

    async def leave(self) -> None:
        """Removes what is left on the node of a host that was closed."""
        await asyncio.to_thread(shutil.rmtree, self._state, ignore_errors=True)


async def _open_on(node: str, config: SandboxConfig, state: Path, linger_s: float) -> HostBackend:
    """The host of a node."""
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    actor = ray.remote(**NODE_PLACE, scheduling_strategy=here)(NodePlace).remote(
        config.model_dump(mode="json"), str(state / f"node-{node[:12]}"), linger_s
    )

    async def released() -> None:
        try:
            async with asyncio.timeout(LEAVE_S):
                await _value(actor.leave.remote())
        except (ray.exceptions.RayError, TimeoutError) as error:
            log.warning("node %s was not cleaned up: %s", node[:12], type(error).__name__)
        ray.kill(actor)

    try:
        async with asyncio.timeout(PLACED_S):
            left = await _value(actor.hold.remote())
        if left is not None and (host := await claim(left, config, released)) is not None:
            return host
        begun = await _value(actor.start.remote())
        return required(await claim(begun, config, released), begun)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except (ray.exceptions.RayError, TimeoutError) as error:
        raise InfraFault(FaultCause.SANDBOX, f"no actor on the node: {type(error).__name__}") from error


async def _value(reference: Any) -> Any:
    return await reference
