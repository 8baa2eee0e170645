"""Calls that block and cannot be interrupted, beside an event loop.

Invariant: neither a cancelled task nor the end of the process waits for one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    """Runs a call that blocks in a thread of its own. When the awaiting task is cancelled, the thread is left alone."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_it: Callable[[], None]) -> None:
        if not future.done():
            set_it()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # handed to the awaiting task
            failure = error
            tell(lambda: future.set_exception(failure))
        else:
            tell(lambda: future.set_result(result))

    def tell(set_it: Callable[[], None]) -> None:
        try:
            loop.call_soon_threadsafe(settle, set_it)
        except RuntimeError:
            return  # the loop is closed, nobody waits

    threading.Thread(target=run, daemon=True).start()
    return await future
