"""A terminal's screen with what has scrolled off it, as tmux keeps and captures a pane.

Invariants: at most HISTORY_LINES have scrolled off; a long line counts once for each row it takes; the alternate screen
of a full-screen program stands in place of the screen, and nothing of it scrolls off.

tmux, as it was seen to behave (3.3a): a full history loses a tenth at once, from its beginning; what a program clears
from its screen's start scrolls off; rows are captured without the blanks at their ends.
"""

from __future__ import annotations

import codecs
import copy
from typing import Any

import pyte

from components.sandbox.screen import TolerantScreen, drawable

HISTORY_LINES = 2_000
"""tmux's default, and so Terminus-2's: it asks for more only after its pane has been made."""
ALTERNATE_MODES = {47, 1047, 1049}
WHOLE, SAVED_LINES = 2, 3
"""Of `erase in display`."""


class Pane:
    """Fed with a program's bytes in any pieces."""

    def __init__(self, rows: int, columns: int) -> None:
        self._grid = _Grid(columns, rows)
        self._stream = pyte.Stream(self._grid)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, data: bytes) -> None:
        """What was written next."""
        self._stream.feed(drawable(self._decoder.decode(data)))

    def show_alternate(self, shown: bool) -> None:
        """Sets which screen is shown, where the switch may have been among bytes that were not kept."""
        if shown:
            self._grid.enter()
        else:
            self._grid.leave()

    def lines(self) -> tuple[str, ...]:
        """What has scrolled off, then every row of the screen."""
        return (*self._grid.scrolled, *(self._grid.row(y) for y in range(self._grid.lines)))


class _Grid(TolerantScreen):  # type: ignore[misc]  # pyte's screen, made tolerant at run time
    """pyte's screen, whose rows go where tmux's go."""

    def __init__(self, columns: int, rows: int) -> None:
        self.scrolled: list[str] = []
        self._behind: tuple[dict[int, Any], Any] | None = None
        self._made = False
        super().__init__(columns, rows)
        self._made = True

    def row(self, y: int) -> str:
        """One row without the blanks at its end."""
        cells = self.buffer[y]
        # The second cell of a wide character holds no text.
        return "".join(cells[x].data for x in range(max(cells, default=-1) + 1)).rstrip(" ")

    def reset(self) -> None:
        if self._made:
            self.leave()
            self._clear_off()
        super().reset()

    def index(self) -> None:
        top, bottom = self.margins or (0, self.lines - 1)
        if self.cursor.y == bottom:
            self._scroll_off(top)
        super().index()

    def erase_in_display(self, how: int = 0, *rest: int, **options: Any) -> None:
        cleared_from_start = how == 0 and (self.cursor.x, self.cursor.y) == (0, 0)
        if how == WHOLE or cleared_from_start:
            self._clear_off()
        if how == SAVED_LINES:
            self.scrolled.clear()
            return
        super().erase_in_display(how, *rest, **options)

    def set_mode(self, *modes: int, **options: Any) -> None:
        super().set_mode(*modes, **options)
        if options and ALTERNATE_MODES.intersection(modes):
            self.enter()

    def reset_mode(self, *modes: int, **options: Any) -> None:
        super().reset_mode(*modes, **options)
        if options and ALTERNATE_MODES.intersection(modes):
            self.leave()

    def enter(self) -> None:
        """Shows an empty alternate screen."""
        if self._behind is None:
            self._behind = dict(self.buffer), copy.copy(self.cursor)
            self.buffer.clear()

    def leave(self) -> None:
        """Shows the screen that was there before."""
        if self._behind is not None:
            rows, self.cursor = self._behind
            self._behind = None
            self.buffer.clear()
            self.buffer.update(rows)

    def _clear_off(self) -> None:
        used = [y for y in range(self.lines) if self.row(y)]
        for y in range(max(used, default=-1) + 1):
            self._scroll_off(y)

    def _scroll_off(self, y: int) -> None:
        if self._behind is not None:
            return
        if len(self.scrolled) >= HISTORY_LINES:
            del self.scrolled[: HISTORY_LINES // 10]
        self.scrolled.append(self.row(y))
