"""A small tokenizer with control tokens, and a teacher that answers over HTTP what a script tells it to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from components.gateway.template import END, START
from components.tito import BpeTokenizer

KEY = "sk-teacher-0123456789"
FOREIGN = "<s>"
"""A control token that is not written as a template's markers are."""
Messages = list[dict[str, str]]
Reply = tuple[int, bytes] | bytes
"""Status and body; or the bytes of a whole response, behind which the connection ends."""
Script = Callable[[Messages], str | Reply]


def tokenizer() -> BpeTokenizer:
    """Bytes, a few merges, and control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("a", "n"), ("an", "a"), ("Ġ", "a"), ("d", "o"), ("do", "n"), ("don", "e"), ("e", "c"), ("ec", "ho")]
    merges.insert(6, ("h", "o"))
    vocab = {word: number for number, word in enumerate([*alphabet, *(a + b for a, b in merges)])}
    model = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    model.add_special_tokens([AddedToken(marker, special=True) for marker in (START, END, FOREIGN)])
    return BpeTokenizer(model)


def completion(text: str | None, finish: str = "stop", usage: Mapping[str, int] | None = None) -> bytes:
    """The body of an answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
    counts = {"prompt_tokens": 1_000, "completion_tokens": 100} if usage is None else dict(usage)
    return json.dumps({"choices": [choice], "usage": counts}).encode()


class ScriptedTeacher:
    """An OpenAI-compatible endpoint on this machine, as a context manager. Remembers what it was asked."""

    def __init__(self, script: Script) -> None:
        self.asked: list[Messages] = []
        self.headers: list[Mapping[str, str]] = []
        self.bodies: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        teacher = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with teacher._lock:
                    teacher.asked.append(body["messages"])
                    teacher.headers.append(dict(self.headers))
                    teacher.bodies.append(body)
                said = script(body["messages"])
                if isinstance(said, bytes):
                    self.wfile.write(said)
                    self.close_connection = True
                    return
                status, told = said if isinstance(said, tuple) else (200, completion(said))
                self.send_response(status)
                self.send_header("Content-Length", str(len(told)))
                self.end_headers()
                self.wfile.write(told)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    def __enter__(self) -> ScriptedTeacher:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def settings(self) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        return {"base_url": url, "model": "scripted", "input_price": 1.0, "output_price": 10.0}
