"""Of two processes of one flow run, the later one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from components.cluster import REPOSITORY
from tasks import alone

HOLDER = """
import sys, time
from pathlib import Path
from tasks import alone
print(alone.take("run", Path(sys.argv[1])), flush=True)
time.sleep(60)
"""


def test_a_run_is_of_one_process_until_that_one_ends_however_it_does(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "None\n"
        assert alone.take("run", tmp_path) == holder.pid
        assert alone.take("another run", tmp_path) is None
        os.kill(holder.pid, signal.SIGKILL)
    assert alone.take("run", tmp_path) is None
    assert alone.take("run", tmp_path) is None, "it has it"
