"""A stage whose input says what it shall do. Every run leaves a line in the file `inputs["trace"]`."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from components.artifacts import open_store


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    inputs, trace = spec["inputs"], Path(spec["inputs"]["trace"])

    def note(word: str) -> None:
        with trace.open("a") as file:
            file.write(f"{word} {os.getpid()}\n")

    def on_stop(signum: int, frame: object) -> None:
        note("stopped")
        sys.exit(143)

    signal.signal(signal.SIGTERM, on_stop)
    note("began")
    print("INFO hello", flush=True)
    print("WARNING beware\n  of this", flush=True)
    match inputs["do"]:
        case "succeed":
            pass
        case "fail":
            print("\n".join(f"line {n}" for n in range(80)), flush=True)
            raise RuntimeError("the last words")
        case "refuse":
            print("ERROR ConfigError: no such pool", flush=True)
            sys.exit(2)
        case "stumble":
            sys.exit(75)
        case "lie":
            sys.exit(0)
        case "wait":
            while not Path(inputs["release"]).exists():
                time.sleep(0.05)
    print("INFO done", flush=True)
    open_store(spec["store"]).put_json(spec["result"], {"pid": os.getpid(), "index": spec["index"]})


if __name__ == "__main__":
    main()
