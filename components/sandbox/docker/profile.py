"""What a container may do: limits, capabilities and system calls.

The calls that every box of this project refuses are refused here by the engine already, by the same table. Those that
the box's own filter is asked about (the clock's) are left to it and to the missing capability: of two filters the
engine's would answer first, and nobody would be told.
"""

from __future__ import annotations

import json
from typing import Any

from docker.types import Mount, Ulimit

from components.sandbox.contract import SandboxSpec
from components.sandbox.zygote import kernel, relay, seccomp

OWN_MEMORY_MB = 24
OWN_TASKS = 4
"""Of the box's first process: what its programs were promised is theirs."""
OPEN_FILES = 4096
TOOLS = "/.longshell"
CAPABILITIES = (*kernel.KEPT_CAPABILITIES, *relay.OWN_CAPABILITIES)
REFUSED, ABSENT = 1, 38
"""EPERM and ENOSYS."""


def seccomp_profile() -> dict[str, Any]:
    """The deny list as an engine reads it."""
    names = {name for table in seccomp.DENIED.values() for name in table} | set(seccomp.DENIED_EVERYWHERE)
    rules: list[dict[str, Any]] = [
        {"names": sorted(names - set(seccomp.TOLD)), "action": "SCMP_ACT_ERRNO", "errnoRet": REFUSED},
        {"names": sorted(seccomp.ABSENT), "action": "SCMP_ACT_ERRNO", "errnoRet": ABSENT},
    ]
    for bit in (1 << place for place in range(64)):
        if seccomp.NEW_NAMESPACES & bit:
            rules.append(_refused_if("clone", {"op": "SCMP_CMP_MASKED_EQ", "value": bit, "valueTwo": bit}))
    last = max(seccomp.FAMILIES)
    for family in range(last):
        if family not in seccomp.FAMILIES:
            rules.append(_refused_if("socket", {"op": "SCMP_CMP_EQ", "value": family}))
    rules.append(_refused_if("socket", {"op": "SCMP_CMP_GT", "value": last}))
    architectures = ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"]
    return {"defaultAction": "SCMP_ACT_ALLOW", "architectures": architectures, "syscalls": rules}


def _refused_if(name: str, condition: dict[str, Any]) -> dict[str, Any]:
    rule = {"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": REFUSED}
    return {**rule, "args": [{"index": 0, **condition}]}


PROFILE = json.dumps(seccomp_profile())


def host_config(api: Any, spec: SandboxSpec, tools_volume: str, *, quota: bool) -> Any:
    """What the engine is told of a box's limits. `quota`: whether its storage can keep to a size."""
    memory = (spec.memory_mb + OWN_MEMORY_MB) << 20
    disk = spec.disk_mb << 20
    limits = {"nofile": OPEN_FILES, "core": 0, "fsize": disk}
    return api.create_host_config(
        network_mode="none",  # a box with a proxy has no other way out either
        cap_drop=["ALL"],
        cap_add=list(CAPABILITIES),
        security_opt=["no-new-privileges:true", f"seccomp={PROFILE}"],
        mem_limit=memory,
        memswap_limit=memory,
        pids_limit=spec.pids + OWN_TASKS,
        nano_cpus=int(spec.cpus * 1e9),
        shm_size=64 << 20,
        ulimits=[Ulimit(name=name, soft=value, hard=value) for name, value in limits.items()],
        storage_opt={"size": f"{spec.disk_mb}m"} if quota else None,
        log_config={"type": "none", "config": {}},
        mounts=[Mount(TOOLS, tools_volume, type="volume", read_only=True, no_copy=True)],
    )
