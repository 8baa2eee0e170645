"""Stitching a trajectory of 300 turns and 121k tokens: whole, turn by turn, and audited.

`whole_ms` is for turns of one `TokenHistory`, as the harness makes them: prompts are views of one memory, and only
what is new is read. `copied_ms` is for turns whose prompts are arrays of their own: 18 million ids (73 MB) must then be
read, and that is nearly all of it. `incremental_ms` is one `append` at the end of the copied trajectory, `samples_ms`
the streams it has given so far.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from benchmarks.machine import describe
from components.records import Float32, Int32, Routing, Turn
from components.tito import Stitcher, TokenHistory, audit, stitch

TURNS = 300
TOKENS = 121_000
ANSWER = 200
REPETITIONS = 15
VOCABULARY = 150_000


@dataclass(frozen=True)
class Drawn:
    """An answer of random ids."""

    output_ids: Int32
    logprobs: Float32
    routing: Routing | None = None
    routing_start: int = 0
    finish_reason: str = "stop"
    weight_version: int = 0


class NoTokenizer:
    """A trajectory that only appends needs no tokenizer: calling it would be the benchmark's own fault."""

    def encode(self, text: str) -> list[int]:
        raise AssertionError(text)

    def decode(self, ids: Sequence[int]) -> str:
        raise AssertionError(ids)

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        raise AssertionError(text)


def trajectory() -> list[Turn]:
    """Turns of equal growth, made by the history that the harness uses."""
    generator = np.random.default_rng(0)
    lengths = np.diff(np.linspace(0, TOKENS, TURNS + 1).astype(int)) - ANSWER
    history, turns = TokenHistory(), []
    for length in lengths:
        history = history.with_context(generator.integers(0, VOCABULARY, length).astype(np.int32))
        ids = generator.integers(0, VOCABULARY, ANSWER).astype(np.int32)
        turn, history = history.with_turn(Drawn(ids, -generator.random(ANSWER).astype(np.float32)))
        turns.append(turn)
    return turns


def median_ms(action: Callable[[], object], repetitions: int = REPETITIONS) -> float:
    """Median milliseconds of an action, after one run that does not count."""
    action()
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        action()
        times.append(1e3 * (time.perf_counter() - start))
    return round(statistics.median(times), 3)


def incremental_ms(turns: Sequence[Turn]) -> tuple[float, float]:
    """Median milliseconds of the last appends, and of the streams after each."""
    appends, streams = [], []
    for _ in range(3):
        stitcher = Stitcher(NoTokenizer())
        for turn in turns[:-10]:
            stitcher.append(turn)
        for turn in turns[-10:]:
            start = time.perf_counter()
            stitcher.append(turn)
            middle = time.perf_counter()
            stitcher.samples()
            appends.append(1e3 * (middle - start))
            streams.append(1e3 * (time.perf_counter() - middle))
    return round(statistics.median(appends), 3), round(statistics.median(streams), 3)


def main() -> None:
    """Measures and prints one JSON object."""
    torch.set_num_threads(1)
    turns = trajectory()
    copied = [replace(turn, prompt_ids=turn.prompt_ids.copy()) for turn in turns]
    (sample,) = stitch(copied, NoTokenizer())
    append_ms, samples_ms = incremental_ms(copied)
    figures = {
        "whole_ms": median_ms(lambda: stitch(turns, NoTokenizer())),
        "incremental_ms": append_ms,
        "turns": len(turns),
        "tokens": len(sample.tokens),
        "copied_ms": median_ms(lambda: stitch(copied, NoTokenizer())),
        "samples_ms": samples_ms,
        "audit_ms": median_ms(lambda: audit(turns, [sample], NoTokenizer())),
        "repetitions": REPETITIONS,
        "machine": describe(),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
