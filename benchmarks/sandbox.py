"""How long a sandbox takes: start, command, reset, alone and among 64; and what a trial's share of a core is.

`python -m benchmarks.sandbox` prints one JSON object on its last line. Times are medians in milliseconds of one box
after another (`alone`), and of one after another while AT_ONCE of them live, each with an open terminal (`among`):

- `start`: until a box takes commands, its files written; `reset`: until it does so again
- `command`: a program, from request to exit code; `terminal`: a line typed, until its output at the next prompt is read
- `view`, `stop`: a verifier's box over another; the end of a box
- `snapshot`, `from_snapshot`: saving a box to the disk; starting from that

`at_once_s` is how long AT_ONCE starts take that are asked for together, each with one command, and `typed_at_once` the
median of a line typed in all terminals together. `trial_cpu_ms` is processor time of manager, zygote and boxes together
for start, terminal, five commands, view, one command in the view and both stops. `load` tells what else ran.

With `--docker HOST` the same is measured on that engine (a third of the repetitions), and `ready_ms`: a start where
`docker.prewarm` had a box ready. What the engine itself uses of the processor is not told.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from components.config.rollout import SandboxConfig
from components.sandbox import SandboxBackend, SandboxSpec, Terminal, open_backend

REPETITIONS = 30
AT_ONCE = 64
READY_TIMES, READY_AFTER_S = 10, 1.0
CONFIG = SandboxConfig(backend="namespace", starts_per_s=10_000.0)
Result = TypeVar("Result")
SPEC = SandboxSpec(files={"/app/input.txt": b"input\n"})


class Figures(defaultdict[str, list[float]]):
    """Milliseconds of every action, by name."""

    def __init__(self) -> None:
        super().__init__(list)

    async def of(self, name: str, action: Awaitable[Result]) -> Result:
        """What an action gives; its time is kept."""
        begin = time.perf_counter()
        result = await action
        self[name].append(1e3 * (time.perf_counter() - begin))
        return result

    def medians(self) -> dict[str, float]:
        return {name: round(statistics.median(values), 2) for name, values in self.items()}


async def type_line(terminal: Terminal) -> None:
    """A line typed, its output read at the next prompt."""
    await terminal.send("echo $((6*7))\n")
    await terminal.settle(30, at_prompt=True)
    await terminal.new_output()


async def alone(backend: SandboxBackend, figures: Figures) -> None:
    """A box's life, each step's time added to `figures`."""
    box = await figures.of("start", backend.start(SPEC))
    for _ in range(5):
        await figures.of("command", box.exec(["true"], timeout_s=30))
    terminal = await box.terminal(rows=40, columns=160, echo=True)
    for _ in range(5):
        await figures.of("terminal", type_line(terminal))
    await figures.of("reset", box.reset())
    view = await figures.of("view", box.fork_view())
    await view.stop()
    saved = await figures.of("snapshot", box.snapshot())
    copy = await figures.of("from_snapshot", backend.start(replace(SPEC, snapshot=saved)))
    await copy.stop()
    await backend.forget(saved)
    await figures.of("stop", box.stop())


async def among(backend: SandboxBackend, figures: Figures) -> None:
    """AT_ONCE boxes that live together, one of them doing something at a time; then all of them."""
    boxes, terminals = [], []
    for _ in range(AT_ONCE):
        boxes.append(await figures.of("start", backend.start(SPEC)))
        terminals.append(await boxes[-1].terminal(rows=40, columns=160, echo=True))
    for box, terminal in zip(boxes, terminals, strict=True):
        await figures.of("command", box.exec(["true"], timeout_s=30))
        await figures.of("terminal", type_line(terminal))
    for _ in range(3):
        await asyncio.gather(*(figures.of("typed_at_once", type_line(terminal)) for terminal in terminals))
    for box in boxes:
        await figures.of("reset", box.reset())
    await asyncio.gather(*(box.stop() for box in boxes))


async def at_once(backend: SandboxBackend) -> float:
    """Seconds until AT_ONCE boxes have each run a command."""
    begin = time.perf_counter()
    boxes = await asyncio.gather(*(backend.start(SPEC) for _ in range(AT_ONCE)))
    await asyncio.gather(*(box.exec(["true"], timeout_s=60) for box in boxes))
    seconds = time.perf_counter() - begin
    await asyncio.gather(*(box.stop() for box in boxes))
    return seconds


async def trial(backend: SandboxBackend) -> None:
    """What a short trial asks of its sandbox."""
    box = await backend.start(SPEC)
    terminal = await box.terminal(rows=40, columns=160, echo=True)
    for command in ("ls -la\n", "cat input.txt\n", "echo 1 > out\n", "cd /tmp\n", "wc -c /app/out\n"):
        await terminal.send(command)
        await terminal.settle(10, at_prompt=True)
        await terminal.new_output()
    view = await box.fork_view()
    await view.exec(["bash", "-c", "true"], timeout_s=30)
    await view.stop()
    await box.stop()


def cpu_s() -> float:
    """Processor time of this process and of every ended child."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


async def trial_cpu_ms(state: Path, repetitions: int) -> float:
    """Processor milliseconds a trial, those of a backend's own start and end taken off."""

    async def cost(count: int) -> float:
        begin = cpu_s()
        backend = await open_backend(CONFIG, state)
        for _ in range(count):
            await trial(backend)
        await backend.close()  # its zygote's and its boxes' time is counted once they are waited for
        return 1e3 * (cpu_s() - begin)

    return (await cost(repetitions) - await cost(0)) / repetitions


async def of_backend(config: SandboxConfig, state: Path, repetitions: int) -> dict[str, object]:
    """A backend's figures of boxes alone, among others, and at once."""
    backend = await open_backend(config, state)
    single, crowd = Figures(), Figures()
    await alone(backend, Figures())
    for _ in range(repetitions):
        await alone(backend, single)
    await among(backend, crowd)
    seconds = statistics.median([await at_once(backend) for _ in range(3)])
    await backend.close()
    figures = {"alone_ms": single.medians(), "among_ms": crowd.medians(), "at_once_s": round(seconds, 3)}
    return {"isolation": backend.isolation, **figures}


async def ready_ms(config: SandboxConfig, state: Path) -> float:
    """Until a box that was kept ready takes commands."""
    backend = await open_backend(config, state)
    figures = Figures()
    for _ in range(READY_TIMES):
        box = await figures.of("start", backend.start(SPEC))
        await asyncio.sleep(READY_AFTER_S)
        await box.stop()
    await backend.close()
    return round(statistics.median(figures["start"][1:]), 2)


async def measure(engine: str | None, image: str) -> dict[str, object]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="longshell-bench-") as folder:
        state = Path(folder)
        load = os.getloadavg()[0]
        namespace = await of_backend(CONFIG, state, REPETITIONS)
        namespace["trial_cpu_ms"] = round(await trial_cpu_ms(state, REPETITIONS), 1)
        docker: dict[str, object] | None = None
        if engine is not None:
            settings = {"host": engine, "image": image}
            config = SandboxConfig(backend="docker", starts_per_s=10_000.0, docker=settings)
            docker = await of_backend(config, state, REPETITIONS // 3)
            warm = SandboxConfig(backend="docker", starts_per_s=10_000.0, docker=settings | {"prewarm": 1})
            docker["ready_ms"] = await ready_ms(warm, state)
    machine = {"cpus": os.cpu_count(), "kernel": platform.release(), "load": [load, os.getloadavg()[0]]}
    return {
        "namespace": namespace, "docker": docker, "machine": machine, "repetitions": REPETITIONS, "at_once": AT_ONCE
    }  # fmt: skip


def main() -> None:
    """Prints the figures as one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--docker", metavar="HOST", help="an engine to measure too, such as unix:///var/run/docker.sock"
    )
    parser.add_argument("--image", default="debian:12", help="what its boxes start from")
    asked = parser.parse_args()
    print(json.dumps(asyncio.run(measure(asked.docker, asked.image))))


if __name__ == "__main__":
    main()
