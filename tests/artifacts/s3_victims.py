"""`python -m tests.artifacts.s3_victims URL BEFORE AFTER`: writers of a bucket that are killed at every request.

Each replaces the folder `m`, put from BEFORE, by AFTER and gets SIGKILL on its way to its n-th request. Prints a line
of JSON for each n: the signal that it died by (0: it ended), and what the folder then is.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from boto3.session import Session

from components.artifacts import S3Store


def _killed_at(number: int, url: str, after: Path) -> int:
    """How the writer ended."""
    if pid := os.fork():
        status = os.waitpid(pid, 0)[1]
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    made, seen = Session.client, [0]

    def client(session: Session, *arguments: Any, **named: Any) -> Any:
        found = made(session, *arguments, **named)

        def count(**_: Any) -> None:
            seen[0] += 1
            if seen[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)

        found.meta.events.register("before-send.s3.*", count)
        return found

    Session.client = client
    S3Store(url).put_tree("m", after)
    os._exit(0)


def main(url: str, before: Path, after: Path) -> None:
    number, died = 0, int(signal.SIGKILL)
    while died:
        number += 1
        S3Store(url).put_tree("m", before)
        died = _killed_at(number, url, after)
        folder = S3Store(url).tree("m")
        print(json.dumps([died, {path.name: path.read_text() for path in folder.iterdir()}]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
