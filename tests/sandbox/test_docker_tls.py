"""An engine over TLS: it is believed by its certificate, and asks for ours."""

from __future__ import annotations

import datetime as dt
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import ValidationError

from components.config import SandboxConfig
from components.errors import ConfigError, InfraFault
from components.sandbox import SandboxSpec, open_backend
from components.sandbox.docker.engine import Certificates, Engine
from tests import dockerd

PONG = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nOK"


class Authority:
    """Issues certificates for 127.0.0.1."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
        self.certificate = self._sign(self._name, self._key, authority=True)

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, authority: bool) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        usage = x509.KeyUsage(not authority, False, False, False, False, authority, authority, False, False)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(names, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def issue(self, folder: Path) -> Path:
        """A folder with a key, its certificate, and ours."""
        folder.mkdir()
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, folder.name)])
        pem = serialization.Encoding.PEM
        (folder / "ca.pem").write_bytes(self.certificate.public_bytes(pem))
        (folder / "cert.pem").write_bytes(self._sign(name, key, authority=False).public_bytes(pem))
        private = (pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (folder / "key.pem").write_bytes(key.private_bytes(*private))
        return folder


@contextmanager
def listening(tls: Path, answer: Callable[[ssl.SSLSocket], None]) -> Iterator[str]:
    """Address of a server that asks for a certificate as `dockerd --tlsverify` does, and hands over who has one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls / "cert.pem", tls / "key.pem")
    context.load_verify_locations(tls / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    def serve(connection: socket.socket) -> None:
        with suppress(OSError), connection, context.wrap_socket(connection, server_side=True) as spoken:
            answer(spoken)

    with ExitStack() as kept:
        server = kept.enter_context(socket.create_server(("127.0.0.1", 0)))

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        kept.callback(server.shutdown, socket.SHUT_RDWR)
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


def ping(host: str, certificates: Certificates | None) -> bool:
    engine = Engine(host, certificates)
    try:
        return bool(engine.call_now("ping", lambda api: api.ping()))
    finally:
        engine.close()


def test_an_engine_and_its_user_know_each_other_by_one_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/etc/ssl/certs/ca-certificates.crt")  # It was believed instead, once.
    ours, theirs = Authority(), Authority()
    server, client, stranger = (ours.issue(tmp_path / "s"), ours.issue(tmp_path / "c"), theirs.issue(tmp_path / "x"))

    def pong(spoken: ssl.SSLSocket) -> None:
        spoken.recv(65_536)
        spoken.sendall(PONG)

    with listening(server, pong) as host:
        assert ping(host, Certificates(client))
        with pytest.raises(InfraFault, match="does not answer"):
            ping(host, None)
        with pytest.raises(InfraFault, match="CERTIFICATE_VERIFY_FAILED"):
            ping(host, Certificates(stranger))
        # A stranger who believes the engine is not believed by it.
        (stranger / "ca.pem").write_bytes((client / "ca.pem").read_bytes())
        with pytest.raises(InfraFault, match="does not answer"):
            ping(host, Certificates(stranger))


def test_certificates_that_are_missing_or_strangers_to_each_other_are_told_with_their_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sandbox.docker.tls.*\n.*nothing must have ca.pem, cert.pem and key.pem"):
        Certificates(tmp_path / "nothing")
    one, other = Authority().issue(tmp_path / "one"), Authority().issue(tmp_path / "other")
    (one / "key.pem").write_bytes((other / "key.pem").read_bytes())
    with pytest.raises(ConfigError, match="KEY_VALUES_MISMATCH"):
        Certificates(one)


def test_tls_is_for_an_engine_on_a_network(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="tls is for an engine at tcp://"):
        SandboxConfig(backend="docker", docker={"tls": "/certificates"})
    with pytest.raises(ValidationError, match="absolute path"):
        SandboxConfig(backend="docker", docker={"host": "tcp://engine:2376", "tls": "certificates"})


@pytest.mark.nightly  # opening a backend starts two boxes
@pytest.mark.asyncio(loop_scope="module")
async def test_boxes_run_on_an_engine_over_tls(engine: dockerd.Engine, state_dir: Path, tmp_path: Path) -> None:
    authority = Authority()
    server, client = authority.issue(tmp_path / "server"), authority.issue(tmp_path / "client")

    def relay(spoken: ssl.SSLSocket) -> None:
        with socket.socket(socket.AF_UNIX) as inner:
            inner.connect(engine.host.removeprefix("unix://"))

            def back() -> None:
                with suppress(OSError):
                    while data := inner.recv(65_536):
                        spoken.sendall(data)
                    spoken.shutdown(socket.SHUT_RDWR)

            thread = threading.Thread(target=back, daemon=True)
            thread.start()
            with suppress(OSError):
                while data := spoken.recv(65_536):
                    inner.sendall(data)
            inner.shutdown(socket.SHUT_RDWR)
            thread.join(timeout=10)

    with listening(server, relay) as host:
        backend = await open_backend(engine.config(host=host, tls=str(client)), state_dir)
        try:
            box = await backend.start(SandboxSpec(memory_mb=64, disk_mb=16, pids=32))
            done = await box.exec(["echo", "over TLS"], timeout_s=20)
            assert (done.exit_code, done.output.strip()) == (0, b"over TLS")
            await box.stop()
        finally:
            await backend.close()
