"""When a box may be made: not while the disk is nearly full, and not faster than this host is allowed to.

Every job of a host asks here before it creates a box. Invariant of the rate: over any span of t seconds all processes
together start at most burst + rate * t boxes, in the order in which they asked. Its state is one line in a file that is
changed under a lock which ends with its holder; a line that a crash left half written counts as none.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from components.errors import ConfigError

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 1.0
"""How often a full disk is looked at."""


def host_folder() -> Path:
    """What all jobs of this user on this host share, made where it is missing.

    Raises:
        ConfigError: somebody else has made it.
    """
    folder = Path(tempfile.gettempdir()) / f"longshell-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.is_symlink():
        raise ConfigError([f"{folder} does not belong to this user; remove it, or set TMPDIR"], "sandbox")
    return folder


class StartClock:
    """A token bucket of one second's worth, shared by all who name the same file.

    Kept as the time at which the bucket is full again (the virtual scheduling of GCRA): whoever asks moves it on by one
    start, and waits until it is less than a burst away.
    """

    def __init__(self, path: Path, rate_per_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._rate = rate_per_s
        self._burst_s = max(1.0, 1.0 / rate_per_s)
        self._now = now
        self._boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def reserve(self) -> float:
        """Take the next start; seconds until it may be made."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            now = self._now()
            full = max(now, self._read(file)) + 1.0 / self._rate
            line = f"{self._boot} {full:.9f} .\n".encode()
            os.pwrite(file, line, 0)
            os.ftruncate(file, len(line))
            return max(0.0, full - self._burst_s - now)
        finally:
            os.close(file)

    def _read(self, file: int) -> float:
        """When the bucket is full again; long ago for a line of another boot, or none."""
        words = os.pread(file, 256, 0).decode(errors="replace").split()
        if len(words) != 3 or words[0] != self._boot or words[2] != ".":
            return float("-inf")
        try:
            return float(words[1])
        except ValueError:
            return float("-inf")


class Admission:
    """Asked before every creation of a box.

    Args:
        place: a folder on the file system whose room is looked at.
        min_free_mb: creation pauses while less than this is free there.
        starts_per_s: of all jobs of this user on this host.
    """

    def __init__(self, place: Path, *, min_free_mb: int, starts_per_s: float, clock: Path | None = None) -> None:
        self._place = place
        self._min_free = min_free_mb << 20
        self._clock = StartClock(clock or host_folder() / "starts", starts_per_s)
        self._paused: asyncio.Task[None] | None = None
        self._counts = {"low_disk_pauses": 0.0, "low_disk_s": 0.0, "rate_waits": 0.0, "rate_wait_s": 0.0}

    @property
    def counts(self) -> dict[str, float]:
        """Pauses for a full disk and their seconds; starts that had to wait for their turn and their seconds."""
        return dict(self._counts)

    async def enter(self) -> None:
        """Returns when a box may be made."""
        while self._is_full():
            if self._paused is None or self._paused.done():
                self._paused = asyncio.create_task(self._until_room())
            await asyncio.shield(self._paused)
        wait_s = self._clock.reserve()
        if wait_s > 0:
            self._counts["rate_waits"] += 1
            self._counts["rate_wait_s"] += wait_s
            await asyncio.sleep(wait_s)

    def _free(self) -> int:
        return shutil.disk_usage(self._place).free

    def _is_full(self) -> bool:
        return self._free() < self._min_free

    async def _until_room(self) -> None:
        """One pause, however many wait for its end."""
        begin = time.monotonic()
        self._counts["low_disk_pauses"] += 1
        log.warning(
            "sandbox: no box is started while %s has %d MiB free (sandbox.min_free_mb is %d); remove something there",
            self._place, self._free() >> 20, self._min_free >> 20,
        )  # fmt: skip
        try:
            while self._is_full():
                await asyncio.sleep(LOOK_AGAIN_S)
        finally:
            self._counts["low_disk_s"] += time.monotonic() - begin
        log.warning("sandbox: boxes are started again, %s has %d MiB free", self._place, self._free() >> 20)
