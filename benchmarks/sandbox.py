"""How long a sandbox takes: start, one command, reset, 64 at once; and what a trial's share of a core is.

`python -m benchmarks.sandbox` prints one JSON object on its last line. Times are medians in milliseconds;
`trial_cpu_ms` is processor time of manager, zygote and boxes together for start, terminal, five commands, view, one
command in the view and both stops.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from components.config.rollout import SandboxConfig
from components.sandbox import SandboxBackend, SandboxSpec, open_backend

REPETITIONS = 30
AT_ONCE = 64
SPEC = SandboxSpec(files={"/app/input.txt": b"input\n"})


async def timed(action: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds of one action."""
    begin = time.perf_counter()
    await action()
    return 1e3 * (time.perf_counter() - begin)


async def one_box(backend: SandboxBackend, figures: dict[str, list[float]]) -> None:
    """A box's life, each step's time added to `figures`."""
    begin = time.perf_counter()
    box = await backend.start(SPEC)
    figures["start_ms"].append(1e3 * (time.perf_counter() - begin))
    for _ in range(5):
        figures["command_ms"].append(await timed(lambda: box.exec(["true"], timeout_s=30)))
    figures["reset_ms"].append(await timed(box.reset))
    begin = time.perf_counter()
    view = await box.fork_view()
    figures["view_ms"].append(1e3 * (time.perf_counter() - begin))
    await view.stop()
    figures["stop_ms"].append(await timed(box.stop))


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
        backend = await open_backend(SandboxConfig(backend="namespace"), state)
        for _ in range(count):
            await trial(backend)
        await backend.close()  # its zygote's and its boxes' time is counted once they are waited for
        return 1e3 * (cpu_s() - begin)

    return (await cost(repetitions) - await cost(0)) / repetitions


async def measure() -> dict[str, object]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="longshell-bench-") as folder:
        state = Path(folder)
        backend = await open_backend(SandboxConfig(backend="namespace"), state)
        figures: dict[str, list[float]] = {
            name: [] for name in ("start_ms", "command_ms", "reset_ms", "view_ms", "stop_ms")
        }
        await one_box(backend, {name: [] for name in figures})
        for _ in range(REPETITIONS):
            await one_box(backend, figures)
        seconds = statistics.median([await at_once(backend) for _ in range(3)])
        isolation = backend.isolation
        await backend.close()
        cpu = await trial_cpu_ms(state, REPETITIONS)
    medians = {name: round(statistics.median(values), 2) for name, values in figures.items()}
    machine = {
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "load": os.getloadavg()[0],
        "isolation": isolation,
    }
    namespace = {**medians, "n64_s": round(seconds, 3), "trial_cpu_ms": round(cpu, 1)}
    return {"namespace": namespace, "docker": None, "machine": machine, "repetitions": REPETITIONS}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure())))
