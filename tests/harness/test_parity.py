"""Golden parity: the messages that our loop sends in Harbor's words are those that Harbor's Terminus-2 sends.

Both follow the same script at a real terminal of their own: Terminus-2 in a tmux, with the script behind an OpenAI
server; ours in a sandbox. Every request of both is compared, message by message.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components.config import HarnessConfig
from components.gateway import Prompt
from components.harness import Progress, Written, wording_for
from components.harness.loop import AgentLoop, Clock
from components.records import Sampling
from components.sandbox import SandboxBackend, SandboxSpec
from tests.harness import harbor_installed
from tests.harness.parts import SPECIALS, ByteTokenizer, trajectory

pytestmark = pytest.mark.nightly

INSTRUCTION = "Make {braces} work.\nSecond line.\n"
Messages = list[tuple[str, str]]
WORKER = Path(__file__).with_name("terminus_worker.py")


@dataclass(frozen=True)
class Scenario:
    """What the model says, and the limits in both sides' own tokens."""

    says: tuple[str, ...]
    cut: frozenset[int] = frozenset()
    context: int = 1_000_000
    threshold: int = 0
    max_output: int = 500_000
    compaction: dict[str, int] | None = None
    max_context_tokens: int = 1_000_000
    calls: int | None = None

    @property
    def expected_calls(self) -> int:
        return len(self.says) if self.calls is None else self.calls


def say(*keystrokes: str, done: bool = False, wait: float = 0.4, **fields: Any) -> str:
    commands = [{"keystrokes": keys, "duration": wait} for keys in keystrokes]
    whole = {"analysis": "a", "plan": "p", "commands": commands, "task_complete": done} | fields
    return json.dumps({name: value for name, value in whole.items() if value is not ...})


DONE = say(done=True)
LONG_ANALYSIS = "word " * 12_000
CUT = '{"analysis": "a", "plan": "never ends'
SCENARIOS = {
    "normal": Scenario((say("echo hi\n"), say("pwd >/dev/null\n", "echo $((6*7))\n"), say(), DONE, DONE)),
    "parse errors": Scenario(
        (
            "I will list the files.",
            '{"analysis": "a", "plan": "p", "commands": [{"keystrokes": "ls\\n"',
            '{"analysis": "a", "plan": "p", "commands": [}',
            say("ls\n", plan=...),
            say(commands="ls"),
            say(commands=[{"duration": 1}]),
            say(commands=[{"keystrokes": 3}]),
            "[1]",
            "Look: " + say("ls\n", analysis=...),
            DONE,
            DONE,
        )
    ),
    "warnings": Scenario(
        (
            "Sure. " + say("echo 1\n") + " That is it.",
            say(commands=[{"keystrokes": "echo 2\n"}, {"keystrokes": "echo 3\n", "duration": "x", "why": 1}]),
            say(commands=[{"keystrokes": "echo ", "duration": 0.2}, {"keystrokes": "4\n", "duration": 0.4}]),
            say("echo 5\n")[:-1],
            json.dumps({"plan": "p", "analysis": 3, "commands": [], "task_complete": 1}),
            DONE,
        )
    ),
    "double completion": Scenario(
        (say("echo 1\n", done=True), "no JSON", say("echo 2\n"), DONE, say(commands=[3], done="yes"))
    ),
    "long output": Scenario(
        (
            say("for i in $(seq 200); do printf '%0150d\\n' $i; done\n"),
            say("seq 1 1500; echo end\n", done=True),
            say("printf 'é%.0s' $(seq 6000); echo\n"),
            DONE,
            DONE,
        )
    ),
    "2,000-line scroll": Scenario(
        (
            *(say(f"seq 1 {count}\n") for count in (1000, 900, 150, 30, 30, 2500, 40, 40, 40)),
            DONE,
            DONE,
        )
    ),
    "compaction": Scenario(
        (
            say("echo one\n"),
            say("echo two\n", analysis=LONG_ANALYSIS),
            "I did {one} and two.",
            "1. Why?\n2. What?",
            "Because. {That}.",
            say("echo three\n"),
            DONE,
            DONE,
        ),
        context=16_000,
        threshold=8_000,
        max_context_tokens=120_000,
        compaction={
            "proactive_threshold_tokens": 70_000,
            "summary_max_tokens": 2_000,
            "questions_max_tokens": 2_000,
            "answers_max_tokens": 2_000,
            "margin_tokens": 20_000,
        },
    ),
    "length stop": Scenario(
        (say("echo 1\n"), CUT, say("echo 2\n"), DONE, DONE), cut=frozenset({1}), max_output=len(CUT)
    ),
    "keys": Scenario(
        (say("cat\n"), say("typed\n"), say("C-d"), say("sleep 50\n"), say("C-c"), say("echo C-c\n"), DONE, DONE)
    ),
    "line editing": Scenario(
        (
            say("for i in 1 2; do\necho $i\ndone\n"),
            say("cat > f <<'EOF'\none\ttwo\nEOF\ncat f\n"),
            say("echo edited\n"),
            say("Up"),
            say("BSpace"),
            say("s\n"),
            say(f"echo {'x' * 6000} | wc -c\n"),
            say("sleep 0.6\necho type-ahead\n", wait=1.0),
            say("echo 'open\n"),
            say("C-c"),
            DONE,
            DONE,
        )
    ),
    "clearing and full screens": Scenario(
        (
            say("seq 1 60\n"),
            say("printf '\\033[H\\033[2J'\n"),
            say("seq 1 500 | less\n", wait=0.8),
            say("q"),
            say("echo after\n"),
            DONE,
            DONE,
        )
    ),
}


class ScriptedModel:
    """An OpenAI server: `/NAME/v1` says what the scenario of that number says, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: dict[str, list[Messages]] = {name: [] for name in SCENARIOS}
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: Any) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                name = list(SCENARIOS)[int(self.path.split("/")[1])]
                requests = asked[name]
                requests.append([(message["role"], message["content"]) for message in body["messages"]])
                number = len(requests) - 1
                says = SCENARIOS[name].says
                text = says[number] if number < len(says) else DONE
                choice = {
                    "index": 0,
                    "message": {"role": "assistant", "content": text},
                    "finish_reason": "length" if number in SCENARIOS[name].cut else "stop",
                }
                usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
                answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "scripted"}
                data = json.dumps(answer | {"choices": [choice], "usage": usage}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def harbor() -> Path:
    return harbor_installed.installed()


@pytest.fixture(scope="module")
def expected(harbor: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[Messages]]]:
    """What Terminus-2 asks, by scenario."""
    if shutil.which("tmux") is None:
        pytest.skip("no tmux on this host, which Terminus-2 works in")
    folder = tmp_path_factory.mktemp("terminus")
    model = ScriptedModel()
    scenarios = [
        {
            "url": f"{model.url}/{number}/v1",
            "instruction": INSTRUCTION,
            "max_turns": 30,
            "context": each.context,
            "threshold": each.threshold,
            "max_output": each.max_output,
        }
        for number, each in enumerate(SCENARIOS.values())
    ]
    (folder / "scenarios.json").write_text(json.dumps(scenarios))
    try:
        done = subprocess.run(
            [harbor / "bin" / "python", WORKER, folder / "scenarios.json", folder / "boxes"],
            env={"PATH": os.environ["PATH"], "HOME": str(folder)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        yield model.asked
    finally:
        model.close()


class Follower:
    """Follows a scenario's script, and keeps the conversations that it was shown."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.asked: list[Messages] = []

    async def answer(self, prompt: Prompt, *, sampling: Sampling, max_new_tokens: int) -> Written:
        number = len(self.asked)
        self.asked.append(conversation(prompt))
        says = self._scenario.says
        ids = ByteTokenizer().encode(says[number] if number < len(says) else DONE)
        cut = number in self._scenario.cut
        kept_A = np.asarray(ids if cut else [*ids, SPECIALS["<|im_end|>"]], np.int32)
        return Written(kept_A, np.zeros(len(kept_A), np.float32), "length" if cut else "stop")


def conversation(prompt: Prompt) -> Messages:
    """All messages of a prompt, and the answers between them as they were drawn."""
    before: Messages = []
    if prompt.after is not None:
        before = [*conversation(prompt.after.prompt), ("assistant", prompt.after.text)]
    return before + [(message.role, message.content) for message in prompt.messages]


@pytest.mark.parametrize("name", SCENARIOS)
async def test_our_loop_sends_the_messages_that_terminus_2_sends(
    name: str, expected: dict[str, list[Messages]], harbor: Path, backend: SandboxBackend
) -> None:
    scenario = SCENARIOS[name]
    config = HarnessConfig(
        prompt_style="harbor",
        harbor=str(harbor),
        max_turns=30,
        max_context_tokens=scenario.max_context_tokens,
        max_turn_tokens=scenario.max_context_tokens - 1,
        max_parse_failures=30,
        return_at_prompt=False,
        compaction=scenario.compaction,
    )
    follower = Follower(scenario)
    wording = wording_for(config)
    box = await backend.start(SandboxSpec())
    try:
        terminal = await box.terminal(rows=config.rows, columns=config.columns, echo=True, prompt="$ ")
        running = AgentLoop(
            trajectory=trajectory(follower, wording.separator),
            terminal=terminal,
            wording=wording,
            config=config,
            progress=Progress(),
            clock=Clock(),
        )
        await running.run(INSTRUCTION)
        await terminal.close()
    finally:
        await box.stop()
    assert len(expected[name]) == scenario.expected_calls
    for number, (theirs, ours) in enumerate(zip(expected[name], follower.asked, strict=False)):
        assert ours == theirs, f"request {number}"
    assert len(follower.asked) == len(expected[name])
