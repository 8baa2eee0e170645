"""A byte tokenizer, a terminal without a shell and a box without isolation, for tests of the loop alone."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from components.config import HarnessConfig
from components.errors import FaultCause, InfraFault
from components.gateway import ChatTemplate, Prompt, Trajectory, chatml
from components.gateway.template import END, START
from components.harness import Progress, Written, wording_for
from components.harness.loop import AgentLoop, Clock
from components.records import Sampling, TaskRef

REF = TaskRef("pool", "task-1", "d", "files")
SPECIALS = {START: 256, END: 257}


class ByteTokenizer:
    """One id a byte, one id a marker."""

    special_ids = frozenset(SPECIALS.values())
    longest_token = len(START)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in re.split(f"({re.escape(START)}|{re.escape(END)})", text):
            ids.extend([SPECIALS[piece]] if piece in SPECIALS else piece.encode())
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        names = {number: name for name, number in SPECIALS.items()}
        return b"".join(names[i].encode() if i in names else bytes([i]) for i in ids).decode("utf-8", "replace")

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        spans, at = [], 0
        for piece in re.split(f"({re.escape(START)}|{re.escape(END)})", text):
            if piece in SPECIALS:
                spans.append((at, at + len(piece)))
            else:
                spans += [(at + i, at + i + 1) for i, char in enumerate(piece) for _ in char.encode()]
            at += len(piece)
        return self.encode(text), spans


def answer(*commands: str, done: bool = False, **extra: Any) -> str:
    """The text of a well-formed answer."""
    typed = [{"keystrokes": f"{command}\n", "duration": 0.1} for command in commands]
    return json.dumps({"analysis": "a", "plan": "p", "commands": typed, "task_complete": done} | extra)


@dataclass
class FakeTerminal:
    """Echoes what it is sent as its output; `exit` ends it; `hang` makes settle wait for ever."""

    sent: list[str] = field(default_factory=list)
    waits: list[tuple[float, bool]] = field(default_factory=list)
    reply: Callable[[str], str] = lambda keystrokes: f"<{keystrokes.strip()}>\n$ "
    alive: bool = True
    closed: bool = False
    shown: str = "screen"
    _pending: str = "$ "
    _lines: str = ""
    _hanging: bool = False

    async def send(self, keystrokes: str) -> None:
        self.sent.append(keystrokes)
        self.alive = keystrokes != "exit\n"
        self._hanging = keystrokes == "hang\n"
        if keystrokes == "break\n":
            raise InfraFault(FaultCause.SANDBOX, "the box is gone")
        self._pending += self.reply(keystrokes)

    async def settle(self, duration_s: float, *, at_prompt: bool) -> bool:
        self.waits.append((duration_s, at_prompt))
        await asyncio.sleep(3600 if self._hanging else 0)
        return True

    async def new_output(self) -> str:
        out, self._pending = self._pending, ""
        return out

    async def capture(self) -> tuple[str, ...]:
        self._lines += self._pending
        self._pending = ""
        return tuple([*self._lines.split("\n"), *[""] * 40][:40])

    async def screen(self) -> str:
        return self.shown

    async def close(self) -> None:
        self.closed = True


class FakePolicy:
    """Says the given texts one after another, then completes. Log-probs and routing are made of the positions."""

    def __init__(self, *texts: str, routing: bool = False, cut: bool = False) -> None:
        self.texts = list(texts)
        self.prompts: list[np.ndarray] = []
        self.limits: list[int] = []
        self.observations: list[str] = []
        self._routing = routing
        self._cut = cut

    async def answer(self, prompt: Prompt, *, sampling: Sampling, max_new_tokens: int) -> Written:
        self.prompts.append(prompt.ids)
        self.limits.append(max_new_tokens)
        self.observations.append(prompt.messages[-1].content)
        text = self.texts.pop(0) if self.texts else answer(done=True)
        whole = [*ByteTokenizer().encode(text), SPECIALS[END]]
        ids = np.asarray(whole[:max_new_tokens], np.int32)
        rows = len(prompt) + len(ids) - 1
        routing = np.zeros((rows, 1, 1), np.uint8) if self._routing else None
        finish = "length" if len(ids) < len(whole) else "stop"
        return Written(ids, np.full(len(ids), -0.5, np.float32), finish, routing, 0, 3)


def trajectory(policy: Any, separator: str = "") -> Trajectory:
    """A trajectory in bytes."""
    return Trajectory(policy, ChatTemplate(ByteTokenizer(), chatml(separator)))


@dataclass(frozen=True)
class PlainTask:
    """A task made of a tests folder and a box specification."""

    tests_dir: Path
    spec: Any = None
    instruction: str = "write a word\n"
    ref: TaskRef = REF
    agent_timeout_s: float | None = None
    verifier_timeout_s: float = 600.0
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    verifier_installs: bool = False

    def sandbox_spec(self, config: Any) -> Any:
        return self.spec


BUDGET = {
    "proactive_threshold_tokens": 200,
    "summary_max_tokens": 40,
    "questions_max_tokens": 40,
    "answers_max_tokens": 40,
    "margin_tokens": 80,
}
"""Of compactions in bytes. The words of a request take some 40."""


def terse(**changes: Any) -> HarnessConfig:
    settings = {
        "prompt_style": "terse",
        "new_output": "stream",
        "max_context_tokens": 4000,
        "max_turn_tokens": 500,
        "confirm_completion": False,
    }
    return HarnessConfig(**(settings | changes))


def loop(
    policy: FakePolicy, terminal: FakeTerminal | None = None, config: HarnessConfig | None = None, **changes: Any
) -> AgentLoop:
    """The agent's loop at a terminal without a shell; terse, with `changes` of that, unless it is given a `config`."""
    config = config or terse(**changes)
    wording = wording_for(config)
    return AgentLoop(
        trajectory=trajectory(policy, wording.separator),
        terminal=terminal or FakeTerminal(),
        wording=wording,
        config=config,
        progress=Progress(),
        clock=Clock(),
    )
