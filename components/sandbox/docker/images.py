"""The images that boxes start from: a task's own, built once per content of its environment folder, or one by name.

Invariant: what an image's tag names is its content, so a tag that exists needs no build; builds of one key that are
asked for at once are one build. What goes wrong in here is the image's fault, and names the line of its Dockerfile.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from components.errors import FaultCause, InfraFault
from components.sandbox.docker.engine import Engine, is_missing, lines
from components.sandbox.docker.tools import LABEL
from components.sandbox.image import ImageSpec, instructions, read_tree

REPOSITORY, STATES, SNAPSHOTS = "longshell/task", "longshell/state", "longshell/snapshot"
STEP = re.compile(r"Step (\d+)/\d+ : (.*)")
TOLD_CHARS = 500


class Image(NamedTuple):
    """An image of the engine: its identity and the variables it sets."""

    id: str
    env: dict[str, str]


def folder_digest(folder: Path) -> str:
    """Names the content of a folder."""
    state = hashlib.sha256()
    for path, entry in sorted(read_tree(folder, "/").items()):
        state.update(repr((path, entry.kind, entry.mode, len(entry.content))).encode() + entry.content)
    return state.hexdigest()[:24]


class Images:
    """The images of one engine.

    Args:
        default: what tasks without an image start from.
        network: the engine's network for what builds run.
    """

    def __init__(self, engine: Engine, default: str, network: str) -> None:
        self._network = network
        self._engine = engine
        self._default = default
        self._making: dict[str, asyncio.Task[Image]] = {}

    async def of_task(self, image: ImageSpec | None, timeout_s: float) -> Image:
        """The image of a task; InfraFault(IMAGE) when it cannot be had."""
        if image is None or image.context is None:
            name = self._default if image is None else image.base
            return await self.once(name, lambda: self._named(name))
        context = image.context
        tag = f"{REPOSITORY}:{await asyncio.to_thread(folder_digest, context)}"
        return await self.once(tag, lambda: self._built(tag, context, timeout_s))

    async def state(self, key: str, make: Callable[[str, str], Awaitable[None]]) -> Image:
        """A started state, which `make` commits under the repository and tag that it is given when there is none."""
        tag = f"{STATES}:{key}"

        async def have() -> Image:
            found = await self._find(tag)
            if found is None:
                await make(STATES, key)
                found = await self._find(tag)
            if found is None:
                raise InfraFault(FaultCause.IMAGE, f"{tag} was committed and is not there")
            return found

        return await self.once(tag, have)

    async def snapshot(self, name: str) -> Image:
        """A saved box; InfraFault when there is none of this name."""
        found = await self._find(_saved(name))
        if found is None:
            raise InfraFault(FaultCause.SANDBOX, f"there is no snapshot {name} in the engine at {self._engine.host}")
        return found

    async def forget(self, name: str) -> None:
        """Remove a saved box, where there is one."""
        try:
            await self._engine.call(name, lambda api: api.remove_image(_saved(name)))
        except InfraFault as fault:
            if not is_missing(fault):
                raise

    async def once(self, key: str, have: Callable[[], Awaitable[Image]]) -> Image:
        """The image of a key: whoever asks while it is made waits for the same."""
        making = self._making.get(key)
        if making is None:
            making = self._making[key] = asyncio.ensure_future(have())
            making.add_done_callback(lambda _: self._making.pop(key, None))
            making.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(making)

    async def _find(self, name: str) -> Image | None:
        try:
            told = await self._engine.call(name, lambda api: api.inspect_image(name))
        except InfraFault as fault:
            if is_missing(fault):
                return None
            raise
        volumes = sorted(told["Config"].get("Volumes") or ())
        if volumes:
            problem = (
                f"{name} has VOLUME {' '.join(volumes)}: what is written there would be in no view and no snapshot"
            )
            raise InfraFault(FaultCause.IMAGE, problem)
        pairs = (entry.partition("=") for entry in told["Config"].get("Env") or ())
        return Image(told["Id"], {variable: value for variable, _, value in pairs})

    async def _named(self, name: str) -> Image:
        found = await self._find(name)
        if found is not None:
            return found
        problems = await self._engine.call(
            name, lambda api: [step["error"] for step in lines(api.pull(name, stream=True)) if "error" in step],
            FaultCause.IMAGE,
        )  # fmt: skip
        found = await self._find(name)
        if found is None:
            raise InfraFault(
                FaultCause.IMAGE, f"the engine has no image {name} and none came of pulling it: {problems}"
            )
        return found

    async def _built(self, tag: str, context: Path, timeout_s: float) -> Image:
        found = await self._find(tag)
        if found is not None:
            return found
        await self._engine.call(tag, lambda api: self._build(api, tag, context, timeout_s), FaultCause.IMAGE)
        found = await self._find(tag)
        if found is None:
            raise InfraFault(FaultCause.IMAGE, f"{context}: the engine built no {tag}")
        return found

    def _build(self, api: Any, tag: str, context: Path, timeout_s: float) -> None:
        """Follow a build to its end; the first thing that goes wrong is told with its line."""
        step, command, output = 0, "", ""
        options = {"tag": tag, "rm": True, "forcerm": True, "labels": {LABEL: "task"}, "timeout": int(timeout_s)}
        options["network_mode"] = self._network
        for message in lines(api.build(path=os.fspath(context), **options)):
            said = message.get("stream", "")
            begun = STEP.match(said)
            if begun:
                step, command, output = int(begun[1]), begun[2], ""
            else:
                output = (output + said)[-TOLD_CHARS:]
            if "error" in message:
                code = message.get("errorDetail", {}).get("code")
                ending = f"exited {code}" if code else message["error"]
                raise InfraFault(
                    FaultCause.IMAGE, f"{_line(context, step)}: {command[:200]} {ending}: {output.strip()}"
                )


def _saved(name: str) -> str:
    return f"{SNAPSHOTS}:{name.removeprefix('snapshot-')}"


def _line(context: Path, step: int) -> str:
    found = list(instructions((context / "Dockerfile").read_text()))
    return f"Dockerfile line {found[step - 1].line}" if 0 < step <= len(found) else "Dockerfile"
