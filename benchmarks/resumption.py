"""What it costs that trials can go on after their process was killed: boxes in a host, and journals.

Trials of a scripted agent in real boxes, three ways in turn, so that all see the same machine: boxes of this process,
boxes of a host, and those with a journal. Processor time is that of this process and of the host, per turn; what the
boxes use is in none of them. The journal's own cost is told apart for a turn that brings `--megabytes` of routing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from tokenizers import Tokenizer as Model
from tokenizers import decoders, models, pre_tokenizers

from benchmarks.machine import describe
from components.config import HarnessConfig, SandboxConfig
from components.gateway import ChatTemplate, Policy, Prompt, Trajectory, chatml
from components.gateway.template import END, START
from components.harness import AgentLoop, Clock, Progress, RunningTime, Written, wording_for
from components.records import Sampling
from components.rollout import Continuation, Interrupted, Journals
from components.rollout.journal import Event, Journal
from components.sandbox import SandboxBackend, SandboxSpec, open_backend
from components.sandbox.host import Hosts, LoggedBackend, open_host
from components.tito import BpeTokenizer

TURNS = 10
TRIALS = 24
AT_ONCE = 8
CONFIG = HarnessConfig(max_turns=TURNS, max_context_tokens=65_536)
SPEC = SandboxSpec(memory_mb=64, disk_mb=8)
SAID = json.dumps(
    {
        "analysis": "a",
        "plan": "p",
        "commands": [{"keystrokes": "ls /; echo $RANDOM\n", "duration": 1.0}],
        "task_complete": False,
    }
)
Way = Callable[[int], tuple[SandboxBackend, Continuation | None]]


class Same:
    """A policy that always says the same."""

    def __init__(self, template: ChatTemplate) -> None:
        self._ids = np.asarray(template.answer_ids(SAID), np.int32)

    async def answer(self, prompt: Prompt, *, sampling: Sampling, max_new_tokens: int) -> Written:
        return Written(self._ids, np.zeros(len(self._ids), np.float32), "stop")


def bytes_only() -> BpeTokenizer:
    """One id a byte, and the markers of the template."""
    alphabet = {symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    model = Model(models.BPE(vocab=alphabet, merges=[]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.decoder = decoders.ByteLevel()
    model.add_special_tokens([START, END])
    return BpeTokenizer(model)


async def trial(backend: SandboxBackend, past: Continuation | None, template: ChatTemplate) -> None:
    """The agent's part of a trial."""
    box = await backend.start(SPEC)
    terminal = await box.terminal(rows=CONFIG.rows, columns=CONFIG.columns, echo=CONFIG.echo)
    policy: Policy = Same(template)
    trajectory = Trajectory(policy if past is None else past.answering(policy), template)
    parts: dict[str, Any] = {"trajectory": trajectory, "terminal": terminal, "wording": wording_for(CONFIG)}
    await AgentLoop(**parts, config=CONFIG, progress=Progress(), clock=Clock()).run("do it")
    await box.stop()


async def seconds(way: Way, template: ChatTemplate, processes: list[psutil.Process]) -> tuple[float, float]:
    """Wall and processor milliseconds a turn."""

    def used() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    places = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with places:
            await trial(*way(number), template)

    began, before = time.perf_counter(), used()
    await asyncio.gather(*(one(number) for number in range(TRIALS)))
    each = 1_000 / TRIALS / TURNS
    return (time.perf_counter() - began) * each, (used() - before) * each


async def measure(folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Medians over rounds, by way."""
    template = ChatTemplate(bytes_only(), chatml("\n"))
    plain = await open_backend(SandboxConfig(), folder / "plain")
    host = await open_host(SandboxConfig(), folder / "hosted", 0)
    hosts, kept = Hosts({"here": host}, None), Interrupted(Journals(folder / "journals"))
    every = psutil.process_iter(["cmdline"])
    ours = [
        psutil.Process(),
        *(each for each in every if str(folder / "hosted" / "host") in (each.info["cmdline"] or [])),
    ]

    def journaled(number: int) -> tuple[SandboxBackend, Continuation | None]:
        past = kept.open(f"t{number}-{time.monotonic_ns()}", 1, RunningTime())
        return LoggedBackend(hosts, past), past

    ways: dict[str, Way] = {
        "this process": lambda _: (plain, None),
        "a host": lambda _: (hosts, None),
        "a host, journaled": journaled,
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(await seconds(way, template, ours))
    await plain.close()
    await hosts.close()
    return {
        name: {
            "wall_ms": round(statistics.median(wall for wall, _ in each), 2),
            "cpu_ms": round(statistics.median(cpu for _, cpu in each), 2),
        }
        for name, each in found.items()
    }


def routed(folder: Path, megabytes: int) -> float:
    """Milliseconds that a journal takes for a turn with so much routing."""
    journal, blob = Journal(folder / "routed", {}, [], 0), os.urandom(megabytes << 20)
    began = time.perf_counter()
    journal.note(Event("answer", 0.0, {}, blob))
    journal.close()
    return round((time.perf_counter() - began) * 1_000, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=8, help="of routing in a turn: 8 are 21,800 tokens of 384 B")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="longshell-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        ways = asyncio.run(measure(folder, arguments.rounds))
        journal = {"megabytes": arguments.megabytes, "ms": routed(folder, arguments.megabytes)}
    print(json.dumps({"a_turn": ways, "journal_of_routing": journal, "machine": describe()}))


if __name__ == "__main__":
    main()
