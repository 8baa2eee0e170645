"""What keeping a trajectory on its replica saves: the same turns on two embedded servers, sticky and scattered.

Scattered is what a router without memory does: every turn goes to whichever replica has least to do, and finds its
history there only up to the last turn that went to it. Both draw from the same fleet, interleaved, with a flush
between. Figures are processor seconds of the servers, so that a busy machine still compares the two.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.machine import describe
from benchmarks.sampler import write_model
from components.config import SamplerConfig
from components.records import Sampling
from components.sampler.fleet import ChildLauncher, Fleet, Serving, open_fleet

TRAJECTORIES = 24
TURNS = 10
PROMPT, ANSWER, OBSERVATION = 200, 16, 40
"""Tokens of the task, of an answer, and of what comes back from the terminal."""


def main() -> None:
    """Measures and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        print(json.dumps(asyncio.run(_measure(Path(folder), args.repetitions))))


async def _measure(folder: Path, repetitions: int) -> dict[str, Any]:
    config = SamplerConfig(replicas=2, slots=TRAJECTORIES, context_tokens=1_024)
    serving = Serving(config, folder, seed=0, routing=True, logs=folder / "logs")
    seconds: dict[str, list[float]] = {"sticky": [], "scattered": []}
    cached: dict[str, list[float]] = {"sticky": [], "scattered": []}
    async with open_fleet(serving, ChildLauncher(serving), print) as fleet:
        servers = [child for child in psutil.Process().children() if "components.sampler.server" in child.cmdline()]
        for _ in range(repetitions):
            for way in seconds:
                await fleet.flush_cache()
                before = _busy(servers)
                share = await asyncio.gather(*(_trajectory(fleet, number, way) for number in range(TRAJECTORIES)))
                seconds[way].append(_busy(servers) - before)
                cached[way].append(float(np.mean(share)))
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    return {
        "sticky_s": round(medians["sticky"], 2),
        "scattered_s": round(medians["scattered"], 2),
        "ratio": round(medians["scattered"] / medians["sticky"], 2),
        "cached_sticky": round(statistics.median(cached["sticky"]), 3),
        "cached_scattered": round(statistics.median(cached["scattered"]), 3),
        "repetitions": repetitions,
        "machine": describe(),
    }


async def _trajectory(fleet: Fleet, number: int, way: str) -> float:
    """Plays one; gives the share of its prompt tokens that were not computed again."""
    draw = np.random.default_rng(number)
    ids = draw.integers(3, 500, PROMPT).tolist()
    start, asked, cached = 0, 0, 0
    for turn in range(TURNS):
        session = f"{number}" if way == "sticky" else f"{number}-{turn}"
        answer = await fleet.generate(
            ids,
            sampling=Sampling(),
            max_new_tokens=ANSWER,
            stop_token_ids=[],
            routing_start=start,
            session_id=session,
        )
        if way == "scattered":
            fleet.supervision.forget(f"{number}-{turn - 1}")
        asked, cached = asked + len(ids), cached + answer.cached_tokens
        ids = ids + answer.output_ids.tolist()
        start = len(ids) - 1
        ids = ids + draw.integers(3, 500, OBSERVATION).tolist()
    return cached / asked


def _busy(servers: list[psutil.Process]) -> float:
    return sum(sum(server.cpu_times()[:2]) for server in servers)


if __name__ == "__main__":
    main()
