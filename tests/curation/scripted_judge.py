"""A judge that answers over HTTP what a script tells it to, and remembers every request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from components.config import AuditConfig
from components.curation.quality.rubric import Dimension, HardReject

KEY = "sk-secret-0123456789"
Reply = tuple[int, str]
Script = Callable[[str, int], str | Reply]
"""(the user's message, how many requests had the same one before) -> content of a completion, or status and body."""


class ScriptedJudge:
    """An OpenAI-compatible endpoint on this machine, as a context manager."""

    def __init__(self, script: Script, *, usage: Mapping[str, int] | None = None) -> None:
        self._script = script
        self._usage = {"prompt_tokens": 1_000, "completion_tokens": 100} if usage is None else usage
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self._lock = threading.Lock()
        judge = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, text = judge._answer(self.path, body, dict(self.headers))
                self.send_response(status)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> ScriptedJudge:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def config(self, audit: Mapping[str, Any] | None = None, **judge: Any) -> AuditConfig:
        """An audit by this judge."""
        return AuditConfig.model_validate({"judge": {**self.settings(), **judge}, **(audit or {})})

    def settings(self) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        return {"base_url": url, "model": "scripted", "input_price": 1.0, "output_price": 10.0}

    def users(self) -> list[str]:
        """The user's message of every request."""
        return [request["messages"][1]["content"] for request in self.requests]

    def _answer(self, path: str, body: dict[str, Any], headers: Mapping[str, str]) -> Reply:
        assert path == "/v1/chat/completions"
        with self._lock:
            user = body["messages"][1]["content"]
            before = self.users().count(user)
            self.requests.append(body)
            self.headers.append(headers)
        said = self._script(user, before)
        if isinstance(said, tuple):
            return said
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        return 200, json.dumps({"choices": [choice], "usage": self._usage})


def opinion(scores: float | Sequence[float], **rejects: str) -> str:
    """An answer with these scores, in the order of the dimensions, or one for all of them."""
    each = [scores] * len(Dimension) if isinstance(scores, int | float) else scores
    return json.dumps(
        {
            "scores": {
                name: {"score": score, "why": f"{name} is like that"}
                for name, score in zip(Dimension, each, strict=True)
            },
            "hard_rejects": {name: rejects.get(name) for name in HardReject},
        }
    )
