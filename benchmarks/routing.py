"""Routing records of the large model's shape (48 layers, 8 of 256 experts), and what capturing them costs.

`int32_gb_per_s` counts four bytes a choice, as SGLang sends them and as the paper counts them, over the time to encode
the compact record, decode it and validate every choice; `record_gb_per_s` counts the compact record's own bytes.
Seconds are of this process's processor time: it computes in one thread and waits for nothing, so that is the clock of
an idle machine.

`capture_share` is the part of decoding time that capture takes in the embedded engine on the miniature's model. Two
engines with the same weights draw the same tokens, one captures. They take turns after every few steps, and either
begins as often as the other. Each slice of steps has its time, the median of all repetitions; the slices are summed,
those that give the records out included. So neither other work on the machine nor its changes of speed fall on
one engine alone. Negative means lost in noise.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.machine import describe
from benchmarks.sampler import write_model
from components.routing import bytes_per_token, checksum, decode, encode
from components.sampler.engine import Answer, Engine, Request, open_engine

LAYERS, TOPK, EXPERTS = 48, 8, 256
ROWS = 32_768
REPETITIONS = 7
BATCH, PROMPT, NEW = 32, 100, 96
CAPTURE_REPETITIONS = 9
SLICE = 4
"""Steps that one engine takes before the other does."""


def seconds_per_record() -> tuple[float, float]:
    """Median seconds to encode and decode a record, and to take its checksum."""
    generator = np.random.default_rng(0)
    some = generator.random((512, LAYERS, EXPERTS)).argsort(-1)[..., :TOPK].astype(np.uint8)
    record = np.concatenate([some] * (ROWS // len(some)))
    travels, sums = [], []
    for _ in range(REPETITIONS):
        start = time.process_time()
        decoded = decode(encode(record), ROWS, LAYERS, TOPK, EXPERTS)
        middle = time.process_time()
        checksum(decoded)
        travels.append(middle - start)
        sums.append(time.process_time() - middle)
    return statistics.median(travels), statistics.median(sums)


def slice_seconds(engines: Sequence[Engine]) -> list[list[float]]:
    """Processor seconds of each slice of drawing BATCH answers of NEW tokens, per engine in the order given."""
    prompts = np.random.default_rng(0).integers(3, engines[0].arch.vocab, (BATCH, PROMPT)).astype(np.int32)
    for engine in engines:
        engine.flush()
        for index, prompt in enumerate(prompts):
            engine.add(Request(str(index), prompt, NEW, seed=index))
    drawn: list[list[Answer]] = [[] for _ in engines]
    seconds: list[list[float]] = [[] for _ in engines]
    while engines[0].busy:
        for engine, answers, taken in zip(engines, drawn, seconds, strict=True):
            start = time.process_time()
            for _ in range(SLICE):
                answers += engine.step()
            taken.append(time.process_time() - start)
    first, *others = [[answer.output_ids.tolist() for answer in answers] for answers in drawn]
    assert len(first) == BATCH
    assert all(answers == first for answers in others), "the engines did not do the same work"
    return seconds


def capture_share() -> float:
    """The relative cost of capture."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        engines = [
            open_engine(Path(folder), slots=BATCH, context=PROMPT + NEW, routing=routing) for routing in (False, True)
        ]
    slice_seconds(engines)
    plain, capturing = [], []
    for repetition in range(CAPTURE_REPETITIONS):
        order = 1 if repetition % 2 else -1
        without, with_capture = slice_seconds(engines[::order])[::order]
        plain.append(without)
        capturing.append(with_capture)
    return float(np.median(capturing, axis=0).sum() / np.median(plain, axis=0).sum() - 1)


def main() -> None:
    """Measures and prints one JSON object."""
    torch.set_num_threads(1)
    width = bytes_per_token(LAYERS, TOPK, EXPERTS)
    travel_s, checksum_s = seconds_per_record()
    figures = {
        "int32_gb_per_s": round(ROWS * LAYERS * TOPK * 4 / travel_s / 1e9, 2),
        "record_gb_per_s": round(ROWS * width / travel_s / 1e9, 2),
        "bytes_per_token": width,
        "capture_share": round(capture_share(), 4),
        "checksum_gb_per_s": round(ROWS * width / checksum_s / 1e9, 2),
        "repetitions": REPETITIONS,
        "capture_repetitions": CAPTURE_REPETITIONS,
        "machine": describe(),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
