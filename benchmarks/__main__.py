"""`make bench`: every benchmark of this folder in turn, each in a process of its own, one line each.

A line is the benchmark's name and the JSON object it printed last. A benchmark that fails says so on its line, the
others still run, and the exit status is 1.
"""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

NOT_BENCHMARKS = {"__main__", "machine"}
LIMIT_S = 1_800
"""Of one benchmark. The longest (critic) takes seven minutes of an idle machine."""


def run(name: str) -> str | None:
    """The last line a benchmark printed, or None when it failed; its errors go to ours."""
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parents[1], env=environment, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return None
    lines = done.stdout.strip().splitlines()
    return lines[-1] if done.returncode == 0 and lines else None


def main() -> int:
    """Runs them all."""
    names = sorted({module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])} - NOT_BENCHMARKS)
    failed = 0
    for name in names:
        line = run(name)
        failed += line is None
        print(f"{name:14} {line or 'FAILED'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
