"""The images that boxes start from: a task's own, built once per content of its environment folder, or one by name.

Invariant: what an image's tag names is its content, so a tag that exists needs no build; builds of one key that are
asked for at once are one build. What goes wrong in here is the image's fault, and names the line of its Dockerfile.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from docker.errors import APIError, NotFound

from components.errors import FaultCause, InfraFault
from components.sandbox.docker.engine import Engine, is_missing
from components.sandbox.docker.tools import LABEL
from components.sandbox.image import ImageSpec, instructions, read_tree
from components.sandbox.store import RECENT_S

log = logging.getLogger(__name__)

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
        most_bytes: what built images may take before the longest unused are removed.
    """

    def __init__(self, engine: Engine, default: str, network: str, most_bytes: int) -> None:
        self._network = network
        self._most_bytes = most_bytes
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
            found = await self._use(tag)
            if found is None:
                await make(STATES, key)
                await self.collect()
                found = await self._use(tag)
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

    async def _use(self, tag: str) -> Image | None:
        """A built image, which is not collected for a while: the engine notes when a tag was given last."""
        found = await self._find(tag)
        if found is not None:
            await self._engine.call(tag, lambda api: api.tag(found.id, *tag.split(":")))
        return found

    async def collect(self) -> None:
        """Remove built images, the longest unused first, until the others fit.

        An engine removes none that a box is made of, in whatever process; what was asked for lately stays, too. What it
        refuses, and what another was faster with, is left.
        """
        try:
            removed = await self._engine.call("collection of images", self._collect)
        except InfraFault as fault:  # what was not removed is tried again after the next build
            log.warning("images were not collected: %s", fault.detail)
            return
        if removed:
            log.info("removed %d image(s) of the engine, the longest unused: %s", len(removed), ", ".join(removed))

    def _collect(self, api: Any) -> list[str]:
        kept = [found for image in api.images() if (found := _inspected(api, image["Id"])) is not None]
        now = _moment(api.info()["SystemTime"])
        removed: list[str] = []
        excess = sum(_room(image, kept) for image in kept if _built_tags(image)) - self._most_bytes
        for image in sorted(kept, key=_used):
            if excess <= 0 or not _built_tags(image) or now - _used(image) < RECENT_S:
                continue
            gone = [tag for tag in _built_tags(image) if _removed(api, tag)]
            removed += gone
            excess -= _room(image, kept) if gone else 0
        return removed

    async def _named(self, name: str) -> Image:
        found = await self._find(name)
        if found is not None:
            return found
        problems = await self._engine.call(
            name, lambda api: [step["error"] for step in api.pull(name, stream=True, decode=True) if "error" in step],
            FaultCause.IMAGE,
        )  # fmt: skip
        found = await self._find(name)
        if found is None:
            raise InfraFault(
                FaultCause.IMAGE, f"the engine has no image {name} and none came of pulling it: {problems}"
            )
        return found

    async def _built(self, tag: str, context: Path, timeout_s: float) -> Image:
        found = await self._use(tag)
        if found is not None:
            return found
        await self._engine.call(tag, lambda _: self._build_within(tag, context, timeout_s), FaultCause.IMAGE)
        await self.collect()
        found = await self._use(tag)
        if found is None:
            raise InfraFault(FaultCause.IMAGE, f"{context}: the engine built no {tag}")
        return found

    def _build_within(self, tag: str, context: Path, timeout_s: float) -> None:
        """A build as a whole has this time, whether it is silent or tells something all the while."""
        at = "Dockerfile"
        try:
            with self._engine.bounded(timeout_s) as api:
                for step in self._build(api, tag, context):
                    at = step
        except TimeoutError as error:
            raise InfraFault(FaultCause.IMAGE, f"{at} was ended: the build took {error}") from error

    def _build(self, api: Any, tag: str, context: Path) -> Iterator[str]:
        """Follow a build to its end, step by step; the first thing that goes wrong is told with its line."""
        at, output = "Dockerfile", ""
        options = {"tag": tag, "rm": True, "forcerm": True, "labels": {LABEL: "task"}, "decode": True}
        for message in api.build(path=os.fspath(context), network_mode=self._network, **options):
            said = message.get("stream", "")
            begun = STEP.match(said)
            if begun:
                at, output = f"{_line(context, int(begun[1]))}: {begun[2][:200]}", ""
            else:
                output = (output + said)[-TOLD_CHARS:]
            if "error" in message:
                code = message.get("errorDetail", {}).get("code")
                ending = f"exited {code}" if code else message["error"]
                raise InfraFault(FaultCause.IMAGE, f"{at} {ending}: {output.strip()}")
            yield at


def _inspected(api: Any, image: str) -> dict[str, Any] | None:
    try:
        return dict(api.inspect_image(image))
    except NotFound:  # removed meanwhile
        return None


def _removed(api: Any, tag: str) -> bool:
    try:
        api.remove_image(tag)
    except APIError as error:
        if error.status_code not in (404, 409):  # removed by another; a box is made of it
            raise
        return False
    return True


def _built_tags(image: Mapping[str, Any]) -> list[str]:
    """The names by which a built image is removed; none where somebody has given it another."""
    tags = image["RepoTags"] or []
    return tags if all(tag.startswith((f"{REPOSITORY}:", f"{STATES}:")) for tag in tags) else []


def _room(image: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> int:
    """Bytes of what an image does not share with the largest that it was made of."""
    layers = image["RootFS"].get("Layers") or []
    below = [
        other["Size"]
        for other in others
        if (shared := other["RootFS"].get("Layers") or []) != layers and shared == layers[: len(shared)]
    ]
    return int(image["Size"] - max(below, default=0))


def _used(image: Mapping[str, Any]) -> float:
    return max(_moment(image["Metadata"]["LastTagTime"]), _moment(image["Created"]))


def _moment(text: str) -> float:
    """Seconds since the epoch of what an engine calls a time; it calls none the year 1."""
    moment = datetime.fromisoformat(text)
    return moment.timestamp() if moment.year > 1 else 0.0


def _saved(name: str) -> str:
    return f"{SNAPSHOTS}:{name.removeprefix('snapshot-')}"


def _line(context: Path, step: int) -> str:
    found = list(instructions((context / "Dockerfile").read_text()))
    return f"Dockerfile line {found[step - 1].line}" if 0 < step <= len(found) else "Dockerfile"
