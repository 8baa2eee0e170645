"""A real PostgreSQL on loopback, of an unprivileged user, in a folder that goes with it."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tasks.stack import ports

USER, PASSWORD = "longshell", "not-to-be-seen"
SHORT = "/tmp"
"""Its socket lies below."""


def programs() -> Path | None:
    """The folder of `initdb` and `postgres`; None where there is no PostgreSQL. Debian keeps them off the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else (found[-1].parent if found else None)


@dataclass(frozen=True)
class Server:
    """A running one."""

    port: int

    def address(self, database: str) -> str:
        """For whoever adds the driver that he has."""
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def create(self, database: str) -> str:
        """A new, empty database; its address."""
        self.ask("postgres", f"CREATE DATABASE {database}")
        return self.address(database)

    def ask(self, database: str, query: str) -> list[tuple[Any, ...]]:
        """Rows of a query, past everything under test."""
        import psycopg2

        connection = psycopg2.connect(self.address(database))
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(query)
                return list(cursor.fetchall()) if cursor.description else []
        finally:
            connection.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """PostgreSQL refuses to run as root: it then runs as `postgres` or `nobody`."""
    binaries = programs()
    if binaries is None:
        pytest.skip("there is no PostgreSQL here (initdb): apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="lspg-", dir=SHORT))
    as_user = _unprivileged(folder)
    try:
        secret = folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        options = [f"--username={USER}", "--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync", "--encoding=UTF8"]
        made = [str(binaries / "initdb"), f"--pgdata={folder}/data", "--locale=C", *options]
        subprocess.run(made, check=True, capture_output=True, cwd=folder, **as_user)
        server = Server(ports.any_free())
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": server.port,
            "unix_socket_directories": folder,
            "fsync": "off",
            "max_connections": 60,
        }
        command = [str(binaries / "postgres"), "-D", f"{folder}/data"]
        command += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, **as_user)
        try:
            _await(server, process, folder / "log")
            yield server
        finally:
            process.send_signal(signal.SIGINT)  # a fast shutdown
            process.wait(30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unprivileged(folder: Path) -> dict[str, Any]:
    """How to start a process that is not root's, which owns `folder`."""
    if os.getuid():
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    user = known.get("postgres") or known["nobody"]
    os.chown(folder, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _await(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    import psycopg2

    deadline = time.monotonic() + 60
    while True:
        try:
            server.ask("postgres", "SELECT 1")
            return
        except psycopg2.OperationalError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
