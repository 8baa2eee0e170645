"""The only way out of a box, and that it leads nowhere else."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.config import SandboxConfig
from components.sandbox import SandboxBackend, proxy
from tests.conformance.sandbox_suite import sh
from tests.sandbox.conftest import SMALL

CLIENT = """
import socket, sys
s = socket.create_connection(("127.0.0.1", 3128), 10)
s.sendall(sys.argv[1].encode().decode("unicode_escape").encode())
said = b""
while part := s.recv(4096): said += part
print(said.decode())
"""


@pytest.mark.parametrize(
    ("host", "patterns", "allowed"),
    [
        ("example.org", ("example.org",), True),
        ("EXAMPLE.org.", ("example.org",), True),
        ("a.example.org", ("*.example.org",), True),
        ("example.org", ("*.example.org",), False),
        ("evil-example.org", ("example.org",), False),
        ("example.org.evil", ("example.org",), False),
        ("anything", ("*",), True),
        ("localhost", ("*",), False),
        ("127.0.0.1", ("*",), False),
        ("[::1]", ("*",), False),
        ("169.254.169.254", ("*", "169.254.169.254"), False),
        ("evil.example\0.example.org", ("*.example.org",), False),
        ("evil.example%00.example.org", ("*.example.org",), False),
        ("2130706433", ("*",), False),
        ("0x7f.1", ("*",), False),
        ("1.0x7f", ("*",), False),
        ("0x7f000001", ("*",), False),
        ("7.example.x0", ("*",), True),
        ("", ("*",), False),
    ],
)
def test_hosts_are_allowed_by_name_and_never_by_address(host: str, patterns: tuple[str, ...], allowed: bool) -> None:
    assert proxy.is_allowed(host, patterns) is allowed


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "::1",
        "::ffff:127.0.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "fe80::1",
        "224.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::1",
    ],
)
def test_no_name_leads_to_this_machine_or_its_link(address: str) -> None:
    assert not proxy.may_connect(address, "named.example", ("*", "named.example"))


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1",
        "172.16.5.5",
        "192.168.1.1",
        "100.64.0.1",
        "fd00::1",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "2002:a00:1::1",
        "192.0.0.192",
        "198.18.0.1",
        "fec0::1",
    ],
)
def test_a_private_network_is_reached_by_a_full_name_only(address: str) -> None:
    assert not proxy.may_connect(address, "inner.example", ("*", "*.example"))
    assert proxy.may_connect(address, "inner.example", ("inner.example",))


def test_a_name_of_this_machine_s_own_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy.is_own("127.0.0.1")
    assert not proxy.is_own("192.0.2.1")
    assert proxy.may_connect("192.0.2.1", "named.example", ("*",))
    monkeypatch.setattr(proxy, "is_own", lambda address: address in ("192.0.2.1", "10.0.0.1"))
    assert not proxy.may_connect("192.0.2.1", "named.example", ("*", "named.example"))
    assert not proxy.may_connect("10.0.0.1", "named.example", ("*", "named.example"))


def test_a_request_keeps_its_path_and_loses_what_was_meant_for_the_proxy() -> None:
    head = b"GET http://h.example:80/a?b=1 HTTP/1.1\r\nHost: h.example\r\nProxy-Connection: x\r\nX: y\r\n\r\n"
    assert proxy.read_head(head) == (
        "h.example",
        80,
        b"GET /a?b=1 HTTP/1.1\r\nHost: h.example:80\r\nX: y\r\nConnection: close\r\n\r\n",
    )
    assert proxy.read_head(b"CONNECT h.example:443 HTTP/1.1\r\n\r\n") == ("h.example", 443, None)


def test_a_server_is_told_the_host_that_was_judged_and_not_another() -> None:
    host, _, said = proxy.read_head(b"GET http://h.example:80/ HTTP/1.1\r\nhost: other.example\r\nX: y\r\n\r\n")
    assert (host, said) == ("h.example", b"GET / HTTP/1.1\r\nHost: h.example:80\r\nX: y\r\nConnection: close\r\n\r\n")


@given(st.binary(max_size=200))
def test_whatever_a_program_says_is_a_request_or_a_refusal(said: bytes) -> None:
    try:
        host, port, _ = proxy.read_head(said + b"\r\n\r\n")
    except proxy.Refusal:
        return
    assert isinstance(host, str)
    assert isinstance(port, int)


@pytest.fixture(params=["root", "unprivileged", pytest.param("docker", marks=pytest.mark.nightly)])
def any_backend(request: pytest.FixtureRequest) -> SandboxBackend:
    return request.getfixturevalue(f"{request.param}_backend")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_box_reaches_who_is_allowed_and_nobody_else(
    any_backend: SandboxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nseen: " + head.split(b"\r\n")[0])
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    resolved: list[str] = []

    async def resolve(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        resolved.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    monkeypatch.setattr(proxy, "PORTS", (port,))
    monkeypatch.setattr(proxy, "may_connect", lambda address, host, patterns: True)
    box = await any_backend.start(replace(SMALL, network="proxy", hosts=("allowed.example",)))

    async def ask(request: str) -> str:
        return (await box.exec(["python3", "-c", CLIENT, request], timeout_s=20)).output.decode()

    plain = await ask(f"GET http://allowed.example:{port}/x HTTP/1.1\\r\\nHost: allowed.example\\r\\n\\r\\n")
    assert plain.endswith("seen: GET /x HTTP/1.1\n")
    tunnel = await ask(f"CONNECT allowed.example:{port} HTTP/1.1\\r\\n\\r\\nGET /y HTTP/1.1\\r\\n\\r\\n")
    assert "200 connected" in tunnel
    assert tunnel.endswith("seen: GET /y HTTP/1.1\n")
    assert resolved == ["allowed.example"] * 2
    for refused in (f"GET http://other.example:{port}/ HTTP/1.1", f"CONNECT 127.0.0.1:{port} HTTP/1.1", "nonsense"):
        assert (await ask(f"{refused}\\r\\n\\r\\n")).split()[1] in ("403", "400")
    assert "403" in await ask("CONNECT allowed.example:22 HTTP/1.1\\r\\n\\r\\n")
    direct = await sh(box, f"timeout 3 bash -c 'echo > /dev/tcp/127.0.0.1/{port}'; tail -n +3 /proc/net/dev | wc -l")
    assert "refused" in direct[1]
    assert direct[1].endswith("\n1\n")
    assert "http_proxy=http://127.0.0.1:3128" in (await sh(box, "env"))[1]
    view = await box.fork_view()
    assert "proxy" not in (await sh(view, "env"))[1]
    await view.stop()
    await box.stop()
    server.close()


def test_a_network_and_its_hosts_are_asked_for_together() -> None:
    with pytest.raises(ValueError, match="reaches nobody"):
        SandboxConfig(verifier_network="proxy")
    with pytest.raises(ValueError, match="no network is"):
        SandboxConfig(hosts=("example.org",))
    with pytest.raises(ValueError, match="absolute"):
        SandboxConfig(images="images")
