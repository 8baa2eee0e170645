"""What the fake stages share: results of the right shape, in no time, and a trace of what ran when."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from components.artifacts import ArtifactStore, LocalStore, open_store, read_at


def run(stage: Callable[[ArtifactStore, dict[str, Any]], dict[str, Any]]) -> None:
    """Runs a fake stage; `<store>/../trace` gets a line when it begins and when it ends.

    A file `<store>/../hold-<campaign>` holds it. There is neither beside a bucket.
    """
    spec = json.loads(read_at(sys.argv[1]))
    store = open_store(spec["store"])
    name = f"{spec['stage']}-{spec['index']}"

    def stop(signum: int, frame: object) -> None:
        _note(store, f"stopped {name} {os.getpid()}")
        sys.exit(143)

    signal.signal(signal.SIGTERM, stop)
    _note(store, f"begin {name} {os.getpid()}")
    print(f"INFO {name} begins", flush=True)
    while (Path(store.url).parent / f"hold-{spec['campaign']}").exists():
        time.sleep(0.1)
    result = stage(store, spec)
    _note(store, f"end {name} {os.getpid()}")
    store.put_json(spec["result"], {**result, "seconds": 0.5})


def model(store: ArtifactStore, key: str) -> str:
    """A checkpoint folder with nothing in it that matters."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text("{}")
        store.put_tree(key, Path(folder))
    return key


def commit(store: ArtifactStore, spec: dict[str, Any], step: int, total: int) -> None:
    """A step record as the RL job writes it; the job makes `total` steps."""
    metrics = {
        "rollout/reward_mean": 0.1 * step,
        "rollout/pass_rate": 0.1,
        "rollout/cancelled": 6,
        "rollout/launched": 70,
        "gap/engine_token_mean": 0.01,
        "tito/drift": 0.0,
        "critic/explained_variance": None,
    }
    record = {"step": step, "total": total, "timestamp_ms": time.time_ns() // 1_000_000, "metrics": metrics}
    store.put_json(f"campaigns/{spec['campaign']}/{spec['stage']}/steps/{step:06d}/record.json", record)


def _note(store: ArtifactStore, line: str) -> None:
    if isinstance(store, LocalStore):
        with (Path(store.url).parent / "trace").open("a") as file:
            file.write(line + "\n")
