"""A job's log as lines with levels, which end with the ids of what they are about: `INFO … [step=3 trial=…]`.

Jobs print; what arrives are chunks of text that end anywhere. `LineReader` cuts them into lines and gives each its
level: the first level word near its start, otherwise the level of the line before (a traceback belongs to its error).
What another process of the job logs is `Hearing` there, and `say` in the job's.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TextIO

_LEVEL_WORD = re.compile(r"^.{0,60}?\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
_LEVELS = logging.getLevelNamesMapping()
_FORMAT = "%(levelname)s %(message)s%(ids)s"
_HEARD_LINES = 1_000
"""Of those that nobody has taken: a job's log is for people."""
_ids: ContextVar[Mapping[str, str]] = ContextVar("ids")


@contextmanager
def about(**ids: object) -> Iterator[None]:
    """What is logged within, in this thread or asyncio task, is about these: `about(step=3)`, `about(trial=…)`."""
    token = _ids.set({**_ids.get({}), **{name: str(value) for name, value in ids.items()}})
    try:
        yield
    finally:
        _ids.reset(token)


def begin(stream: TextIO) -> None:
    """From now on everything that this process logs goes to `stream`, as lines for `LineReader`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(_FORMAT))
    handler.addFilter(_tell_ids)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _tell_ids(record: logging.LogRecord) -> bool:
    ids = _ids.get({})
    record.ids = f" [{' '.join(f'{name}={value}' for name, value in ids.items())}]" if ids else ""
    return True


@dataclass(frozen=True, slots=True)
class Said:
    """What was logged in another process, and what it was about."""

    level: int
    text: str
    ids: Mapping[str, str]


class Hearing(logging.Handler):
    """Keeps what this process logs until it is taken; of what nobody takes, the last lines."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._said: deque[Said] = deque(maxlen=_HEARD_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        self._said.append(Said(record.levelno, self.format(record), dict(_ids.get({}))))

    def take(self) -> list[Said]:
        """What was said since the last call."""
        return [self._said.popleft() for _ in range(len(self._said))]


def say(log: logging.Logger, lines: Sequence[Said]) -> None:
    """Logs what another process said, as being about what it was about there."""
    for line in lines:
        with about(**line.ids):
            log.log(line.level, "%s", line.text)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a job's log and its `logging` level."""

    level: int
    text: str


class LineReader:
    """Cuts a growing text into `LogLine`s. Text that was read before (a reconnected stream) is skipped."""

    def __init__(self) -> None:
        self.position = 0
        """Characters of the log consumed so far."""
        self._rest = ""
        self._level = logging.INFO

    def feed(self, text: str, start: int) -> Iterator[LogLine]:
        """Yields the lines that `text` completes; `start` is where in the log `text` begins."""
        fresh = text[max(0, self.position - start) :]
        self.position = max(self.position, start + len(text))
        *lines, self._rest = (self._rest + fresh).split("\n")
        yield from (self._line(line) for line in lines)

    def flush(self) -> Iterator[LogLine]:
        """Yields the last line of a log that does not end with a line break."""
        rest, self._rest = self._rest, ""
        if rest:
            yield self._line(rest)

    def _line(self, text: str) -> LogLine:
        text = text.rstrip("\r")
        if found := _LEVEL_WORD.match(text):
            self._level = _LEVELS[found.group(1)]
        elif text.startswith("Traceback (most recent call last)"):
            self._level = logging.ERROR
        return LogLine(self._level, text)
