"""The manager's side of a terminal in a box: what its line tells, as text.

The shell's prompts end in a private OSC sequence, so "back at the prompt, all output read" is an event in the stream,
not a guess. The sequence's key is known to programs of the box; it paces the harness and decides nothing else.
Invariant: memory is bounded whatever the programs write, and so is the share of a core that reading them takes.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from components.errors import InfraFault
from components.sandbox.line import Line
from components.sandbox.pane import Pane
from components.sandbox.screen import (
    TAIL_BYTES,
    addresses_cursor,
    plain,
    render,
    split_incomplete,
    without_alternate,
)
from components.sandbox.zygote.headtail import HeadTail

KEPT_BYTES = 1 << 18
FLOOD_BYTES = 16 << 20
"""So much unseen is more than is wanted for now."""
QUIET_S = 0.04
"""Silence that counts as settled where lines typed and prompts shown do not match (a program read some of them)."""
SEND_PATIENCE_S = 5.0
"""A program that does not read its terminal must not hold the caller: what it does not take in this time is dropped."""
PARTIAL_BYTES = 63
DRAWN_AT_ONCE_BYTES = 1 << 14
"""Drawing takes a second a megabyte: more than this is drawn beside the event loop."""
INTERRUPTS = "\x03\x1a\x1c"


def shell_environment(key: str, prompt: str) -> dict[str, str]:
    """What makes bash mark its prompts. Its first prompt takes the variables out of its programs' environment."""
    mark = "\\[\x1b]777;{key};{kind}\x07\\]"
    return {
        "PS1": prompt.replace("\\", "\\\\") + mark.format(key=key, kind="1"),
        "PS2": "> " + mark.format(key=key, kind="2"),
        "PROMPT_COMMAND": "export -n PS1 PS2; unset PROMPT_COMMAND",
        "TERM": "xterm-256color",
    }


class PtyTerminal:
    """One shell; see the protocol `Terminal`."""

    def __init__(
        self, line: Line, exited: asyncio.Future[Any], key: str, *, rows: int, columns: int, echo: bool
    ) -> None:
        self._line = line
        self._rows, self._columns, self._echo = rows, columns, echo
        self._event = re.compile(rb"\x1b\]777;%s;[12]\x07|\x1b\[\?(?:1049|1047|47)([hl])" % key.encode())
        self._recent = HeadTail(KEPT_BYTES)
        self._pane: Pane | None = None
        self._tail = bytearray()
        self._carry = b""
        self._partial = b""
        self._unseen = 0
        self._alternate = self._was_alternate = False
        self._prompted = False
        self._unanswered = 0
        self._half_line = False
        self._last_activity = 0.0
        self._idle_since: float | None = None
        self._wake: asyncio.Future[None] | None = None
        self._fault: InfraFault | None = None
        self._open = True
        self._loop = asyncio.get_running_loop()
        line.open(self._take, self._hang_up)
        exited.add_done_callback(self._shell_ended)

    @property
    def alive(self) -> bool:
        return self._open

    def _take(self, data: bytes) -> bool:
        self._recent.add(data)
        self._unseen += len(data)
        self._last_activity = self._loop.time()
        self._tail += data
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]
        if b"\x1b" in data or self._carry:
            self._scan(data)
        return self._unseen > FLOOD_BYTES

    def _scan(self, data: bytes) -> None:
        scanned = self._carry + data
        end = 0
        for event in self._event.finditer(scanned):
            end = event.end()
            if event[1]:
                self._alternate = event[1] == b"h"
            else:
                self._at_mark()
        start = scanned.rfind(b"\x1b", max(end, len(scanned) - PARTIAL_BYTES))
        self._carry = scanned[start:] if start >= 0 else b""

    def _at_mark(self) -> None:
        self._prompted = True
        self._half_line = False
        self._unanswered = max(0, self._unanswered - 1)
        self._line.prompted(silent=not self._echo)
        self._wake_up()

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _shell_ended(self, exited: asyncio.Future[Any]) -> None:
        error = None if exited.cancelled() else exited.exception()
        if isinstance(error, InfraFault):
            self._fault = error
        if self._open and error is None:
            self._line.drain()
        self._hang_up()

    def _hang_up(self) -> None:
        if not self._open:
            return
        self._open = False
        self._line.close()
        self._wake_up()

    def _check(self) -> None:
        if self._fault is not None:
            raise type(self._fault)(self._fault.cause, self._fault.detail)

    async def send(self, keystrokes: str) -> None:
        self._check()
        if not self._open or not keystrokes:
            return
        last_interrupt = max(keystrokes.rfind(key) for key in INTERRUPTS)
        lines = keystrokes.count("\n", last_interrupt + 1) + keystrokes.count("\r", last_interrupt + 1)
        if last_interrupt >= 0:
            self._unanswered = lines
        else:
            self._unanswered += lines
        if lines or not keystrokes.isprintable():
            self._prompted = False
        else:
            self._half_line = True
        self._last_activity = self._loop.time()
        await self._line.write(keystrokes.encode(errors="surrogateescape"), SEND_PATIENCE_S)

    async def _at_prompt(self) -> bool:
        if not self._prompted:
            return False
        if self._unanswered == 0 and not self._half_line:
            return True
        return await self._idle_for(QUIET_S)

    async def _idle_for(self, seconds: float) -> bool:
        """Whether the shell has had nothing to read and nothing in front of it, in silence, for so long.

        Seen over an interval because the tty's state is fresh where its output may still be on its way to us.
        """
        if not await self._line.is_idle():
            self._idle_since = None
            return False
        now = self._loop.time()
        if self._idle_since is None or self._last_activity >= self._idle_since:
            self._idle_since = now
        return now - self._idle_since >= seconds

    async def settle(self, duration_s: float, *, at_prompt: bool) -> bool:
        deadline = self._loop.time() + duration_s
        while True:
            self._check()
            if not self._open:
                return False
            if at_prompt and await self._at_prompt():
                self._unanswered = 0
                return True
            left = deadline - self._loop.time()
            if left <= 0:
                return False
            await self._sleep(min(left, QUIET_S) if at_prompt and self._prompted else left)

    async def _sleep(self, seconds: float) -> None:
        """Until the next prompt or end, at most `seconds`."""
        self._wake = self._loop.create_future()
        timer = self._loop.call_later(seconds, self._wake_up)
        try:
            await self._wake
        finally:
            timer.cancel()
            self._wake = None

    async def new_output(self) -> str:
        self._check()
        self._unseen = 0
        self._pane = None
        complete, self._partial = split_incomplete(self._partial + self._recent.take())
        began_inside, self._was_alternate = self._was_alternate, self._alternate
        if self._alternate:
            return await self.screen()
        text = without_alternate(complete.decode(errors="replace"), began_inside=began_inside)
        if addresses_cursor(text):
            return await self.screen()
        return plain(text)

    async def capture(self) -> tuple[str, ...]:
        self._check()
        self._unseen = 0
        data = self._recent.take()
        pane = self._pane = self._pane or Pane(self._rows, self._columns)
        if len(data) > DRAWN_AT_ONCE_BYTES:
            await asyncio.to_thread(pane.feed, data)
        else:
            pane.feed(data)
        pane.show_alternate(self._alternate)
        return pane.lines()

    async def screen(self) -> str:
        return render(bytes(self._tail), self._rows, self._columns)

    async def close(self) -> None:
        self._hang_up()
