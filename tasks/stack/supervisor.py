"""Starts and stops the services of one state directory.

Invariants: what was started is on record before it is waited for, so that a supervisor killed at any instant leaves
nothing that `down` does not find; `down` ends exactly that; a start that fails ends what it began. Services have users
(`<home>/stack/users/`): a campaign in the foreground holds a lease and the last one to leave stops the stack, unless
`up` pinned it.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from components.errors import ConfigError, ServiceError, no_space
from tasks.site import Site
from tasks.space import require_start
from tasks.stack.process import MARK, Identity, end, marked, spawn
from tasks.stack.services import BUILDERS, Service, ray_directory
from tasks.stack.settings import environment

_LOG_TAIL = 15


@dataclass(frozen=True)
class Record:
    """The stack as it is on disk."""

    mark: str
    pinned: bool = False
    """Started by `up`: stays until `down`."""
    services: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name to pid, started, url, log."""

    def identity(self, name: str) -> Identity:
        """The main process of a service."""
        row = self.services[name]
        return Identity(row["pid"], row["started"])

    def alive(self, name: str) -> bool:
        """Whether a service's main process runs."""
        return name in self.services and self.identity(name).process() is not None


def recorded(site: Site) -> Record | None:
    """What is on record of a site's stack, running or not; None when nothing is. Only reads."""
    try:
        return Record(**json.loads(site.stack_file.read_text()))
    except FileNotFoundError:
        return None


class Stack:
    """The services of one site. `say` receives one line of progress at a time; `builders` knows what can be started."""

    def __init__(
        self, site: Site, say: Callable[[str], None], builders: Mapping[str, Callable[[Site], Service]] = BUILDERS
    ) -> None:
        self._site = site
        self._say = say
        self._builders = builders
        self._folder = site.stack_file.parent
        try:
            (self._folder / "users").mkdir(parents=True, exist_ok=True)
            (self._folder / ".probe").write_text("")
        except OSError as error:
            if (full := no_space(error, f"state directory {site.home}")) is not None:
                raise full from error
            problem = f"cannot be written ({error.strerror}); set LONGSHELL_HOME to a folder that can"
            raise ConfigError([problem], f"state directory {site.home}") from error

    def up(self, names: Sequence[str], *, pin: bool) -> Record:
        """Starts those of `names` that do not run and waits until all are ready.

        Raises:
            ConfigError: a port that was asked for is occupied. Nothing was started.
            NoSpaceError: there is no room for what services write. Nothing was started.
            ServiceError: a service did not become ready. What this call started was stopped again.
        """
        with self._lock():
            before = self._read()
            record = replace(before, pinned=before.pinned or pin)
            missing = [name for name in self._builders if name in names and not record.alive(name)]
            if not missing:
                self._write(record)
                return record
            require_start(self._site)
            services = [self._builders[name](self._site) for name in missing]
            try:
                for service in services:
                    record = self._start(service, record)
                return self._await(services, record)
            except BaseException:
                self._abandon(missing, before)
                raise

    def running(self) -> list[str]:
        """Names of the services that run."""
        record = self._read()
        return [name for name in record.services if record.alive(name)]

    def users(self) -> list[int]:
        """Processes that use the stack for the duration of a command."""
        with self._lock():
            return [int(lease.stem) for lease in self._users()]

    def down(self) -> list[str]:
        """Stops everything on record; gives the names of the services that were running."""
        with self._lock():
            return self._down()

    @contextmanager
    def session(self, names: Sequence[str]) -> Iterator[Record]:
        """Services for the duration of a block. The last user of a stack that nobody pinned stops it."""
        lease = self._folder / "users" / f"{os.getpid()}.json"
        lease.write_text(json.dumps(asdict(Identity.of(os.getpid()))))
        try:
            yield self.up(names, pin=False)
        finally:
            lease.unlink(missing_ok=True)
            with self._lock():
                if not self._read().pinned and not self._users():
                    self._down()

    def log(self, name: str) -> Path:
        """Where a service writes."""
        return self._folder / "logs" / f"{name}.log"

    def _start(self, service: Service, record: Record) -> Record:
        log = self.log(service.name)
        if service.name == "ray":
            shutil.rmtree(ray_directory(self._site.home), ignore_errors=True)
        self._write(record)  # With its mark: if we are killed right after starting, `down` still finds the process.
        variables = {**environment(self._site), **service.environment, MARK: record.mark}
        identity = spawn(service.argv, variables, log)
        row = {**asdict(identity), "url": service.url, "log": str(log)}
        record = replace(record, services={**record.services, service.name: row})
        self._write(record)
        return record

    def _await(self, services: Sequence[Service], record: Record) -> Record:
        """Waits until all are ready; one that ends before is started again as often as it may be."""
        started = time.monotonic()
        waiting = {service.name: service for service in services}
        starts = dict.fromkeys(waiting, 1)
        while waiting:
            for name, service in list(waiting.items()):
                if service.ready():
                    del waiting[name]
                    self._say(f"{name} is up ({time.monotonic() - started:.0f} s) {service.url}".rstrip())
                elif not record.alive(name):
                    if starts[name] == service.starts:
                        raise ServiceError(f"{name} ended while starting; {self._tail(name)}")
                    starts[name] += 1
                    self._say(f"{name} ended while starting; it is started again")
                    waiting[name] = self._builders[name](self._site)
                    record = self._start(waiting[name], record)
                elif time.monotonic() - started > service.deadline_s * starts[name]:
                    raise ServiceError(f"{name} was not ready within {service.deadline_s:.0f} s; {self._tail(name)}")
            time.sleep(0.1)
        return record

    def _abandon(self, begun: Sequence[str], before: Record) -> None:
        """Ends what a failed start began; all that is left of the stack when nothing ran before."""
        if not any(before.alive(name) for name in before.services):
            self._down()
            return
        record = self._read()
        for name in begun:
            if name in record.services and (process := record.identity(name).process()):
                process.terminate()
        self._write(before)

    def _down(self) -> list[str]:
        record = self._read()
        running = [name for name in record.services if record.alive(name)]
        if running or marked(record.mark):
            end([record.identity(name) for name in record.services], record.mark)
        self._site.stack_file.unlink(missing_ok=True)
        return running

    def _users(self) -> list[Path]:
        """Leases of processes that run; others are removed."""
        alive = []
        for lease in (self._folder / "users").glob("*.json"):
            if Identity(**json.loads(lease.read_text())).process():
                alive.append(lease)
            else:
                lease.unlink(missing_ok=True)
        return alive

    def _tail(self, name: str) -> str:
        end = self.log(name).read_text(errors="replace").splitlines()[-_LOG_TAIL:]
        return "\n".join([f"the end of {self.log(name)}:", *end])

    def _read(self) -> Record:
        return recorded(self._site) or Record(mark=secrets.token_hex(8))

    def _write(self, record: Record) -> None:
        temporary = self._site.stack_file.with_suffix(".tmp")
        with temporary.open("w") as file:
            json.dump(asdict(record), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self._site.stack_file)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with (self._folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
