"""What a terminal shows, from the bytes a program wrote: pure functions.

Ordinary output becomes plain text; a full-screen program's output only makes sense rendered, which is done by pyte
over a bounded tail (pyte is slow enough that an unbounded one would be a denial of service).
"""

from __future__ import annotations

import inspect
import re
import unicodedata
from collections.abc import Callable
from typing import Any

import pyte
from wcwidth import wcwidth

TAIL_BYTES = 1 << 15
LONGEST_SEQUENCE = 256
"""An unfinished control sequence longer than this is text."""

SEQUENCE = re.compile(
    r"\x1b\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)"  # OSC: titles, our prompt marks
    r"|\x1b[PX^_][^\x1b]{0,4096}\x1b\\"  # DCS, SOS, PM, APC
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # CSI
    r"|\x1b[ -/]+[0-~]"  # character sets and the like
    r"|\x1b[0-~]"
)
UNFINISHED = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?|[PX^_][^\x1b]*\x1b?|[ -/]*)?\Z")
ALTERNATE = re.compile(r"\x1b\[\?(?:1049|1047|47)([hl])")
ADDRESSING = re.compile(r"\x1b\[\d*(?:;\d*)?[Hf]|\x1b\[\d*[Ad]|\x1bM")
CLEAR = re.compile(rb"\x1b\[[23]J|\x1bc|\x1b\[\?(?:1049|1047|47)[hl]")
UNPRINTABLE = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f]")
UNDRAWN = re.compile(r"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f-\x9f]")


def drawable(text: str) -> str:
    """Without what terminals do not show and pyte stops at: it would leave out the rest of the run."""
    text = UNDRAWN.sub("", text)
    if text.isascii():
        return text
    return "".join(char for char in text if wcwidth(char) > 0 or char < " " or unicodedata.combining(char))


def split_incomplete(data: bytes) -> tuple[bytes, bytes]:
    """Cut off a trailing unfinished control sequence or UTF-8 character, to be joined with what comes next."""
    end = len(data)
    found = UNFINISHED.search(data, max(0, end - LONGEST_SEQUENCE))
    if found is not None:
        end = found.start()
    for back in range(1, min(4, end) + 1):
        byte = data[end - back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        if needed > back:
            end -= back
        break
    return data[:end], data[end:]


def without_alternate(text: str, *, began_inside: bool) -> str:
    """Drop what was drawn on the alternate screen (an editor that was opened and closed)."""
    kept: list[str] = []
    inside = began_inside
    position = 0
    for switch in ALTERNATE.finditer(text):
        if not inside:
            kept.append(text[position : switch.start()])
        inside = switch[1] == "h"
        position = switch.end()
    if not inside:
        kept.append(text[position:])
    return "".join(kept)


def addresses_cursor(text: str) -> bool:
    """Whether the text was laid out by cursor positions rather than written line by line."""
    return ADDRESSING.search(text) is not None


def plain(text: str) -> str:
    """Text as it reads on paper: no control sequences, lines as the last carriage return left them."""
    text = SEQUENCE.sub("", text).replace("\r\n", "\n")
    if "\r" in text or "\b" in text:
        text = "\n".join(_overwritten(line) for line in text.split("\n"))
    return UNPRINTABLE.sub("", text)


def _overwritten(line: str) -> str:
    """One line after its carriage returns and backspaces."""
    if "\r" not in line and "\b" not in line:
        return line
    cells: list[str] = []
    column = 0
    for part in re.findall(r"[\r\b]|[^\r\b]+", line):
        if part == "\r":
            column = 0
        elif part == "\b":
            column = max(0, column - 1)
        else:
            cells[column : column + len(part)] = part
            column += len(part)
    return "".join(cells)


def _tolerant(name: str) -> Callable[..., None]:
    """A handler that ignores private variants it does not know and parameters it does not take."""
    original = getattr(pyte.Screen, name)
    parameters = inspect.signature(original).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters.values())
    takes_private = any(name == "private" or p.kind is inspect.Parameter.VAR_KEYWORD for name, p in parameters.items())
    arity = len(parameters) - 1

    def handler(self: pyte.Screen, *values: int, **options: Any) -> None:
        if options and not takes_private:
            return
        original(self, *(values if takes_any else values[:arity]), **options)

    return handler


TolerantScreen: Any = type(
    "TolerantScreen", (pyte.Screen,), {name: _tolerant(name) for name in set(pyte.Stream.csi.values())}
)
"""pyte's screen, which crashes on sequences that vim sends (`CSI > 4 ; 2 m`)."""


def recent(data: bytes) -> bytes:
    """The part of a raw tail that still shows: from the last clearing of the screen on."""
    start = 0
    for clear in CLEAR.finditer(data):
        start = clear.start()
    return data[start:]


def _shown(display: pyte.Screen, row: int, columns: int) -> str:
    """One line. The second half of a wide character is empty, and a blank where the first was written over."""
    shown, wide = [], False
    for column in range(columns):
        data = display.buffer[row][column].data
        shown.append(data or ("" if wide else " "))
        wide = bool(data) and wcwidth(data[0]) == 2
    return "".join(shown)


def render(data: bytes, rows: int, columns: int) -> str:
    """The screen after a raw tail, without blank lines at its end."""
    text = recent(data[-TAIL_BYTES:]).decode(errors="replace")
    if not addresses_cursor(text):
        text = "\n".join(text.split("\n")[-rows:])  # no earlier line can show
    display = TolerantScreen(columns, rows)
    pyte.Stream(display).feed(drawable(text))
    lines = [_shown(display, row, columns).rstrip() for row in range(rows)]
    while lines and not lines[-1]:
        lines.pop()
    return "\n".join(lines)
