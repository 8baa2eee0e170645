"""A server that answers whatever it is asked, in place of one that an installation is given."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Nothing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def answering() -> Iterator[str]:
    """Its address, of the form `http://host:port`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Nothing) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
