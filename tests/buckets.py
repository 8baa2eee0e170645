"""A real S3 server on loopback, and a wire to it that can be cut."""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

KEYS = {
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "nothing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass(frozen=True)
class Server:
    """A server, and what a client of it has in its environment."""

    host: str
    port: int

    @property
    def environment(self) -> Mapping[str, str]:
        return {**KEYS, "AWS_ENDPOINT_URL_S3": f"http://{self.host}:{self.port}", "NO_PROXY": self.host}

    def bucket(self) -> str:
        """The name of a new, empty bucket."""
        name = f"b-{uuid.uuid4().hex[:12]}"
        self.client().create_bucket(Bucket=name)
        return name

    def client(self):
        """A client beside the store under test."""
        return _client(f"http://{self.host}:{self.port}")


@functools.cache
def _client(url: str):
    import boto3

    keys = {"aws_access_key_id": "nobody", "aws_secret_access_key": "nothing", "region_name": "us-east-1"}
    return boto3.session.Session().client("s3", endpoint_url=url, **keys)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Server]:
    """moto's server, over HTTP."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield Server(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def bucket_server(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server, as the one that this process's clients talk to."""
    talk_to(s3_server, monkeypatch)
    return s3_server


def talk_to(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on clients that are made in this process talk to `server`."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)


class Wire:
    """A TCP proxy to a server. `cut_after` bytes from its clients, a connection is reset; so are the next `cuts`."""

    def __init__(self, server: Server, cut_after: int, cuts: int) -> None:
        self._server, self._cut_after = server, cut_after
        self.cuts = cuts
        self.made = 0
        """Connections that were cut."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.server = Server("127.0.0.1", self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                upstream = socket.create_connection((self._server.host, self._server.port))
                threading.Thread(target=self._up, args=(client, upstream), daemon=True).start()
                threading.Thread(target=self._down, args=(upstream, client), daemon=True).start()

    def _up(self, client: socket.socket, upstream: socket.socket) -> None:
        sent = 0
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                sent += len(data)
                if sent > self._cut_after and self.made < self.cuts:
                    self.made += 1
                    break
                upstream.sendall(data)
        for end in (client, upstream):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _down(self, upstream: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := upstream.recv(1 << 16):
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)
