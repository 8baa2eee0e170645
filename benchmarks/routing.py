"""Routing records of the large model's shape (48 layers, 8 of 256 experts), and what capturing them costs.

`gb_per_s` is bytes of the record over the time to encode it, decode it and validate every choice. `capture_share` is
the part of decoding time that capture takes in the embedded engine on the miniature's model: two engines with the same
weights draw the same tokens, one captures, repetitions interleaved; negative means lost in noise.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.machine import describe
from benchmarks.sampler import write_model
from components.routing import bytes_per_token, checksum, decode, encode
from components.sampler.engine import Engine, Request, open_engine

LAYERS, TOPK, EXPERTS = 48, 8, 256
ROWS = 32_768
REPETITIONS = 7
BATCH, PROMPT, NEW = 32, 100, 96
CAPTURE_REPETITIONS = 15


def seconds_per_record() -> tuple[float, float]:
    """Median seconds to encode and decode a record, and to take its checksum."""
    generator = np.random.default_rng(0)
    some = generator.random((512, LAYERS, EXPERTS)).argsort(-1)[..., :TOPK].astype(np.uint8)
    record = np.concatenate([some] * (ROWS // len(some)))
    travels, sums = [], []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        decoded = decode(encode(record), ROWS, LAYERS, TOPK, EXPERTS)
        middle = time.perf_counter()
        checksum(decoded)
        travels.append(middle - start)
        sums.append(time.perf_counter() - middle)
    return statistics.median(travels), statistics.median(sums)


def decode_seconds(engine: Engine) -> float:
    """Seconds to draw BATCH answers of NEW tokens."""
    prompts = np.random.default_rng(0).integers(3, engine.arch.vocab, (BATCH, PROMPT)).astype(np.int32)
    engine.flush()
    start = time.perf_counter()
    for index, prompt in enumerate(prompts):
        engine.add(Request(str(index), prompt, NEW, seed=index))
    while engine.busy:
        engine.step()
    return time.perf_counter() - start


def capture_share() -> float:
    """Median over pairs of runs of the relative cost of capture."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        plain, capturing = (
            open_engine(Path(folder), slots=BATCH, context=PROMPT + NEW, routing=routing) for routing in (False, True)
        )
    decode_seconds(plain), decode_seconds(capturing)
    pairs = [(decode_seconds(plain), decode_seconds(capturing)) for _ in range(CAPTURE_REPETITIONS)]
    return statistics.median(with_capture / without - 1 for without, with_capture in pairs)


def main() -> None:
    """Measures and prints one JSON object."""
    torch.set_num_threads(1)
    width = bytes_per_token(LAYERS, TOPK, EXPERTS)
    travel_s, checksum_s = seconds_per_record()
    figures = {
        "gb_per_s": round(ROWS * width / travel_s / 1e9, 2),
        "bytes_per_token": width,
        "capture_share": round(capture_share(), 4),
        "checksum_gb_per_s": round(ROWS * width / checksum_s / 1e9, 2),
        "repetitions": REPETITIONS,
        "machine": describe(),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
