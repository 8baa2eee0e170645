"""`python -m tests.measured [pytest arguments]`: the tests, and how much of components/ they reach in whatever process.

Most of components/ runs in processes that the tests only cause: Ray jobs and their actors, sampler servers, ranks of a
trainer. While the tests run, a `.pth` file in the virtual environment has every process of ours measured from its first
line; those of Prefect, MLflow and Ray are left alone, for they would take several times as long. All data make one
figure. A measured process saves what it has every second, because some are ended with SIGKILL, as they should be.

Not measured: what runs without site-packages, which is the sandbox's zygote and all that is inside a sandbox.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import coverage

ROOT = Path(__file__).resolve().parents[1]
CONFIG = Path(__file__).with_name("coverage.toml")
DATA = "LONGSHELL_COVERAGE_DATA"
"""Where processes put their data. They are measured when it is set."""
HOOK = f"import os; os.environ.get({DATA!r}) and __import__('runpy').run_path({__file__!r}, run_name='hook')\n"
SAVED_EVERY_S = 1.0
OURS = ("pytest", "components.", "tests.")
RAY_WORKER = "default_worker.py"
"""What becomes an actor of ours, or a supervisor of a job, which cannot be told at its start."""


def is_ours(command: Sequence[str]) -> bool:
    """Whether a Python process, named by its original arguments, may run anything of components/."""
    if "-m" in command:
        return command[command.index("-m") + 1].startswith(OURS)
    return "-c" in command[1:3] or any(word.endswith(RAY_WORKER) for word in command)


def measure(data: str) -> None:
    """Measures this process to its end, into a file of its own beside `data`."""
    source = [str(ROOT / "components")]
    measuring = coverage.Coverage(data, data_suffix=True, auto_data=True, source=source, config_file=str(CONFIG))
    measuring.start()
    threading.Thread(target=_save_for_ever, args=(measuring,), name="coverage", daemon=True).start()


def _save_for_ever(measuring: coverage.Coverage) -> None:
    while True:
        time.sleep(SAVED_EVERY_S)
        measuring.save()


def main() -> int:
    """Gives the exit code of the tests, or that of the report when there is too little."""
    hook = Path(sysconfig.get_path("purelib")) / "longshell_coverage.pth"
    with tempfile.TemporaryDirectory(prefix="longshell-coverage-") as folder:
        hook.write_text(HOOK)
        try:
            command = [sys.executable, "-m", "tests", *sys.argv[1:]]
            code = subprocess.run(command, cwd=ROOT, env={**os.environ, DATA: f"{folder}/.coverage"}).returncode
        finally:
            hook.unlink()
        _coverage("combine", "--quiet", folder)
    report = _coverage("report")
    return code or report


def _coverage(command: str, *arguments: str) -> int:
    words = [sys.executable, "-m", "coverage", command, f"--rcfile={CONFIG}", *arguments]
    return subprocess.run(words, cwd=ROOT).returncode


if __name__ == "hook":
    if is_ours(sys.orig_argv):
        measure(os.environ[DATA])
elif __name__ == "__main__":
    sys.exit(main())
