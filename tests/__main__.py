"""`python -m tests [pytest arguments]`: the tests, in three sessions beside each other.

Those that need Prefect, and those that run real jobs, wait much of their time; the others keep one core busy. Every
line says which session it is of; the last line is the sum. With arguments it is one session of pytest, with these
arguments.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SERVED = ("tests/tasks", "tests/tracking", "tests/e2e", "tests/flows")
"""What starts Prefect. The first two have enough to do without it while it starts."""
JOBS = ("tests/jobs", "tests/test_cluster.py")
"""What runs on Ray alone. It has a head of its own."""
SAMPLED = ("tests/publish", "tests/sampler")
"""What starts samplers. It comes after what waits for Prefect, in the session that would else be the shortest."""
TRAINED = ("tests/trainer",)
"""What starts ranks of a trainer. It comes after the jobs, which wait for Ray."""
PARTS = ("tests", *(f"--ignore={path}" for path in (*SERVED, *SAMPLED, *JOBS, *TRAINED)))
SESSIONS = {"services": (*SERVED, *SAMPLED), "jobs": (*JOBS, *TRAINED), "parts": PARTS}
COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|deselected|xfailed|xpassed)")


class Session:
    """A pytest that runs beside others, and the lines that it prints."""

    def __init__(self, name: str, arguments: tuple[str, ...]) -> None:
        command = [sys.executable, "-m", "pytest", *arguments]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.counts: Counter[str] = Counter()
        self._name = name
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait(self) -> int:
        """Its exit code."""
        self._reader.join()
        return self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            print(f"{self._name:8} | {line}", end="", flush=True)
            if re.search(r" in [\d.]+s", line) and (found := COUNT.findall(line)):
                self.counts = Counter(
                    {kind.removesuffix("s") if "error" in kind else kind: int(n) for n, kind in found}
                )


def main(arguments: list[str]) -> int:
    """0 when every session ended so. One that was killed has not passed."""
    if arguments:
        return subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=ROOT, check=False).returncode
    started = time.monotonic()
    sessions = [Session(name, what) for name, what in SESSIONS.items()]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: [session.process.send_signal(received) for session in sessions])
    codes = [session.wait() for session in sessions]
    total = sum((session.counts for session in sessions), Counter())
    told = ", ".join(f"{count} {kind}" for kind, count in total.items())
    print(f"{told} in {time.monotonic() - started:.2f}s")
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
