"""One Docker engine: calls of its API from the event loop, and a stream to a container's first process.

Invariant: every call ends, with its answer or as InfraFault; one that is under way when its caller is cancelled is
waited for, so that what it made can be removed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import docker
import requests
import urllib3
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from components.errors import ConfigError, FaultCause, InfraFault

API_VERSION = "1.41"
"""Of Docker 20.10; newer engines speak it too."""
CALL_S = 60
CALLS_AT_ONCE = 16
ATTACH_S = 30.0
UPGRADE = "Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0"
SILENCE = (DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError)
"""How an engine that is away, or falls silent amid an answer, looks to the SDK."""
Answer = TypeVar("Answer")
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Certificates:
    """A folder of Docker's own layout: `ca.pem`, whom to believe; `cert.pem` and `key.pem`, what to show."""

    def __init__(self, folder: Path) -> None:
        """Reads them.

        Raises:
            ConfigError: one is missing, or they do not belong together.
        """
        authority, certificate, key = (str(folder / name) for name in ("ca.pem", "cert.pem", "key.pem"))
        try:
            self.context = ssl.create_default_context(cafile=authority)
            self.context.load_cert_chain(certificate, key)
        except OSError as error:  # ssl.SSLError is one
            problem = f"{folder} must have ca.pem, cert.pem and key.pem that belong together: {error}"
            raise ConfigError([problem], "sandbox.docker.tls") from error
        self.of_sdk = docker.tls.TLSConfig(client_cert=(certificate, key), ca_cert=authority, verify=True)


class Engine:
    """An engine at `host`: unix:///path or tcp://name:port, the latter with certificates or in the clear."""

    def __init__(self, host: str, certificates: Certificates | None = None) -> None:
        self.host = host
        self._certificates = certificates
        self.api = self._client(CALL_S)
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE, "docker")

    def _client(self, silence_s: float) -> Any:
        client = docker.APIClient(
            base_url=self.host,
            version=API_VERSION,
            timeout=silence_s,
            max_pool_size=CALLS_AT_ONCE,
            tls=self._certificates.of_sdk if self._certificates else False,
        )
        # requests would take REQUESTS_CA_BUNDLE before the authority that was given to it, and a proxy that the stream
        # to a box knows nothing of.
        client.trust_env = False
        return client

    async def call(
        self, what: str, function: Callable[[Any], Answer], cause: FaultCause = FaultCause.SANDBOX
    ) -> Answer:
        """What `function` of the SDK's client gives."""
        work = asyncio.get_running_loop().run_in_executor(self._threads, self.call_now, what, function, cause)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait({work})
            raise

    def call_now(self, what: str, function: Callable[[Any], Answer], cause: FaultCause = FaultCause.SANDBOX) -> Answer:
        """The boundary at which an engine's refusals and its absence become typed faults."""
        try:
            return function(self.api)
        except ImageNotFound as error:
            raise InfraFault(FaultCause.IMAGE, f"{what}: {said(error)}") from error
        except APIError as error:
            raise InfraFault(cause, f"{what}: the engine at {self.host} refused: {said(error)}") from error
        except SILENCE as error:
            raise InfraFault(cause, f"{what}: the engine at {self.host} does not answer: {error}") from error

    @contextmanager
    def bounded(self, timeout_s: float) -> Iterator[Any]:
        """A client for what may take so long as a whole; an engine stops what nobody waits for any more.

        Raises:
            TimeoutError: its time was up: whatever was being read was cut off.
        """
        api, late = self._client(timeout_s), threading.Event()
        answers: list[Any] = []
        api.hooks["response"].append(lambda answer, **_: answers.append(answer))

        def cut() -> None:
            late.set()
            for answer in answers:
                with suppress(OSError, ValueError), socket.socket(fileno=os.dup(answer.raw.fileno())) as connection:
                    connection.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(timeout_s, cut)
        timer.daemon = True
        timer.start()
        try:
            yield api
        except SILENCE:
            if not late.is_set():
                raise
        finally:
            timer.cancel()
            api.close()
        if late.is_set():
            raise TimeoutError(f"more than {timeout_s:g} s")

    async def attach(self, container: str) -> Stream:
        """The standard streams of a container, to be started yet. Its stdin closes with this stream."""
        place = urlsplit(self.host)
        path = f"/v{API_VERSION}/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1"
        async with AsyncExitStack() as kept:
            try:
                async with asyncio.timeout(ATTACH_S):
                    if place.scheme == "unix":
                        reader, writer = await asyncio.open_unix_connection(place.path)
                    else:
                        reader, writer = await asyncio.open_connection(
                            place.hostname, place.port, ssl=self._certificates.context if self._certificates else None
                        )
                    kept.callback(writer.close)
                    writer.write(f"POST {path} HTTP/1.1\r\nHost: docker\r\n{UPGRADE}\r\n\r\n".encode())
                    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            except (OSError, asyncio.IncompleteReadError) as error:
                fault = f"{container}: the engine at {self.host} does not answer: {error}"
                raise InfraFault(FaultCause.SANDBOX, fault) from error
            if head.split(" ", 2)[1] not in ("101", "200"):
                raise InfraFault(FaultCause.SANDBOX, f"{container}: no stream: {head.splitlines()[0]}")
            kept.pop_all()
        return reader, writer

    def close(self) -> None:
        """Let go of the connections."""
        self._threads.shutdown(wait=False)
        self.api.close()


def said(error: APIError) -> str:
    """An engine's own words."""
    return str(error.explanation or error)


def is_missing(fault: InfraFault) -> bool:
    """Whether what was asked for is not there."""
    return isinstance(fault.__cause__, NotFound)
