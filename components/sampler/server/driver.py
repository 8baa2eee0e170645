"""Runs the engine inside the event loop: submission, pausing, aborting, weight exchange.

One thread does everything: a step of the engine, then whatever the network brought, then the next step. On a shared
core this costs less than a second thread fighting for the interpreter, and no state needs a lock.

Invariant: every submitted request is either held back (paused, or weights are being exchanged) or in the engine, and
its future is resolved exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any, TypeVar

from components.errors import CheckpointError
from components.sampler.engine import Answer, Engine, Request, Weights, never_ran
from components.sampler.server.wire import BadRequest

T = TypeVar("T")


class PauseMode(StrEnum):
    """`abort` ends what runs; `in_place` freezes it with its cache."""

    ABORT = "abort"
    IN_PLACE = "in_place"


class WeightUpdateError(ValueError):
    """New weights were refused; the old ones are still served."""


class Driver:
    """Owns an engine and the futures of its requests."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.paused: PauseMode | None = None
        self._futures: dict[str, asyncio.Future[tuple[Answer, str]]] = {}
        self._held: dict[str, Request] = {}
        self._updating = False
        self._update_lock = asyncio.Lock()
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self) -> None:
        """Steps the engine for ever. An exception of the engine ends it, and with it the server."""
        while True:
            await self._work.wait()
            self._resolve(self.engine.step())
            self._refresh()
            # Twice: the first turn of the loop reads the sockets, the second runs the handlers they woke.
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def submit(self, request: Request) -> tuple[Answer, str]:
        """Runs a request to its end. Returns its answer and the weight version at that time.

        Raises:
            BadRequest: a request with this rid is alive.
        """
        if request.rid in self._futures:
            raise BadRequest(f"Duplicate request ID detected: {request.rid}")
        future: asyncio.Future[tuple[Answer, str]] = asyncio.get_running_loop().create_future()
        self._futures[request.rid] = future
        if self.paused or self._updating:
            self._held[request.rid] = request
        else:
            self.engine.add(request)
            self._refresh()
        try:
            return await future
        finally:
            if not future.done() or future.cancelled():  # the caller hung up
                self.abort(request.rid)
            self._futures.pop(request.rid, None)

    def abort(self, rid: str) -> None:
        """Ends a request by its exact rid; an unknown one is no error."""
        if rid in self._held:
            self._resolve([never_ran(self._held.pop(rid))])
        else:
            self._resolve(self.engine.abort(rid))
        self._refresh()

    def abort_all(self) -> None:
        """Ends every request, held ones too."""
        for rid in list(self._futures):
            self.abort(rid)

    def pause(self, mode: PauseMode) -> None:
        """Stops generating; new requests are held until `resume`."""
        self.paused = mode
        if mode is PauseMode.ABORT:
            self._resolve(self.engine.abort_all())
        self._refresh()

    def resume(self) -> None:
        """Goes on with frozen and held requests."""
        self.paused = None
        self._release()

    def flush(self) -> bool:
        """Forgets cached prefixes; False, and nothing done, while requests are alive in the engine."""
        if self.engine.busy:
            return False
        self.engine.flush()
        return True

    async def update(self, load: Callable[[], Weights], version: str | None, *, flush: bool, abort: bool) -> int:
        """Exchanges the weights between steps. Unpaused, waits until what runs has ended.

        Args:
            load: makes the new weights, in another thread.

        Returns:
            How many requests were held or frozen.

        Raises:
            WeightUpdateError: they cannot be loaded, or a flush is asked with frozen requests.
        """
        async with self._update_lock:
            if abort:
                self.abort_all()
            self._updating = True
            try:
                if not self.paused:
                    await self._idle.wait()
                if flush and self.engine.busy:
                    raise WeightUpdateError("the cache cannot be flushed while paused requests hold it")
                weights = await asyncio.to_thread(load)
                # The load yielded. A resume in between lets frozen requests run on, but none can have been added.
                self.engine.load(weights, self.engine.version if version is None else version)
                if flush:
                    self.engine.flush()
                return len(self._held) + self.engine.running + self.engine.waiting
            except CheckpointError as error:
                raise WeightUpdateError(str(error)) from error
            finally:
                self._updating = False
                self._release()

    def _release(self) -> None:
        if not self.paused and not self._updating:
            for request in self._held.values():
                self.engine.add(request)
            self._held.clear()
        self._refresh()

    def _resolve(self, answers: list[Answer]) -> None:
        for answer in answers:
            future = self._futures.get(answer.request.rid)
            if future is not None and not future.done():
                future.set_result((answer, self.engine.version))

    def _refresh(self) -> None:
        """Brings the two events in line with the state."""
        _set(self._work, self.engine.busy and self.paused is None)
        _set(self._idle, not self.engine.busy)


def _set(event: asyncio.Event, value: bool) -> None:
    if value:
        event.set()
    else:
        event.clear()


async def gather_all(calls: list[Coroutine[Any, Any, T]]) -> list[T]:
    """Awaits every call; when one fails, the others are cancelled, and so aborted."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
