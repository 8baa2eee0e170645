"""The gateway's HTTP routes.

    /t/{trial}/v1/chat/completions, /t/{trial}/v1/models    what an agent talks to: its base URL is /t/{trial}/v1
    /v1/chat/completions, /v1/models                        the same; the header X-Session-ID names the trial
    POST /t/{trial}    GET /t/{trial}/samples    DELETE /t/{trial}    opens a trial, gives its streams, forgets it

Invariant: an answer stays recorded exactly if it was written to its client. A client that hangs up cancels its
generation; an answer that it did not get is withdrawn.

An answer leaves whole: a text whose ids, log-probs or routing turned out not to fit could not be called back. A request
that streams gets its headers at once all the same when the answer is slow, and comments until it is there.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from components.gateway.gateway import Gateway
from components.gateway.reply import chunks, completion, samples_body
from components.gateway.request import ChatRequest, Refusal, read_object, read_request, read_sampling
from components.gateway.trajectory import Answer, Trajectory
from components.tito import audit

log = logging.getLogger(__name__)

SESSION_HEADER = "X-Session-ID"
BODY_BYTES_PER_TOKEN = 16
LEAST_BODY_BYTES = 4 * 1024 * 1024
"""What a body may have: a conversation of a million tokens is some 5 MB, and a short context may have long tools."""

KEEPALIVE_S = 10.0
"""Silence of a stream before a comment is sent: below the idle timeouts of clients and proxies."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Routes:
    """The handlers of one gateway."""

    def __init__(self, gateway: Gateway, *, keepalive_s: float = KEEPALIVE_S) -> None:
        self._gateway = gateway
        self._keepalive_s = keepalive_s
        self._max_body_bytes = max(LEAST_BODY_BYTES, BODY_BYTES_PER_TOKEN * gateway.context_tokens)

    def app(self) -> web.Application:
        """The application. Its runner must cancel the handlers of clients that hang up (`serving` does)."""
        app = web.Application(client_max_size=self._max_body_bytes, middlewares=[_refusals])
        for prefix in ("", "/t/{trial}"):
            app.router.add_post(f"{prefix}/v1/chat/completions", self.chat_completions)
            app.router.add_get(f"{prefix}/v1/models", self.models)
            app.router.add_get(f"{prefix}/v1/models/{{model}}", self.models)
        app.router.add_post("/t/{trial}", self.open_trial)
        app.router.add_delete("/t/{trial}", self.close_trial)
        app.router.add_get("/t/{trial}/samples", self.samples)
        app.router.add_get("/health", self.health)
        return app

    async def chat_completions(self, http: web.Request) -> web.StreamResponse:
        """Answers a request, and takes the answer back if its client is gone."""
        try:
            request = read_request(await _data(http))
        except web.HTTPRequestEntityTooLarge as error:
            asked = f"what more than {self._max_body_bytes} bytes say"
            raise self._gateway.overflow(asked) from error
        drawing = asyncio.ensure_future(self._gateway.answer(_trial_id(http), request))
        try:
            reply = self._stream if request.stream else self._send
            return await reply(http, request, drawing)
        except BaseException:
            _take_back(drawing)
            raise

    async def models(self, http: web.Request) -> web.Response:
        """The one model that is served."""
        name = self._gateway.model
        card = {"id": name, "object": "model", "created": 0, "owned_by": "longshell"}
        card["max_model_len"] = self._gateway.context_tokens
        if "model" not in http.match_info:
            return web.json_response({"object": "list", "data": [card]})
        if http.match_info["model"] != name:
            raise Refusal(f"The model {http.match_info['model']!r} does not exist", status=404, code="model_not_found")
        return web.json_response(card)

    async def open_trial(self, http: web.Request) -> web.Response:
        """Opens a trial. The body may hold the sampling that all its answers share."""
        data = await _data(http)
        self._gateway.open(_trial_id(http), read_sampling(read_object(data)) if data else None)
        return web.json_response({"trial_id": _trial_id(http)}, status=201)

    async def samples(self, http: web.Request) -> web.Response:
        """The training streams of an open trial, and their audit."""
        trial_id = _trial_id(http)
        trajectory = self._gateway.trial(trial_id).trajectory
        made = trajectory.samples(trial_id)
        found = audit(trajectory.turns, made, trajectory.template.tokenizer)
        return web.json_response(samples_body(trial_id, made, found))

    async def close_trial(self, http: web.Request) -> web.Response:
        """Forgets a trial."""
        trajectory = self._gateway.close(_trial_id(http))
        return web.json_response({"trial_id": _trial_id(http), "turns": len(trajectory.turns)})

    async def health(self, http: web.Request) -> web.Response:
        """200 while the sampler answers, else 503."""
        return web.Response(status=200 if await self._gateway.sampler.healthy() else 503)

    async def _send(self, http: web.Request, request: ChatRequest, drawing: Drawing) -> web.StreamResponse:
        _, answer = await drawing
        response = web.json_response(completion(answer, request, self._gateway.template.tokenizer))
        await response.prepare(http)
        await response.write_eof()
        return response

    async def _stream(self, http: web.Request, request: ChatRequest, drawing: Drawing) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        while not (await asyncio.wait({drawing}, timeout=self._keepalive_s))[0]:
            await response.prepare(http)
            await response.write(b": drawing\n\n")
        try:
            _, answer = await drawing
            events = [_event(chunk) for chunk in chunks(answer, request, self._gateway.template.tokenizer)]
            events.append(b"data: [DONE]\n\n")
        except Exception as error:  # whatever it is: the headers are gone, and only an event can tell it
            if not response.prepared:
                raise
            _take_back(drawing)
            events = [_event(_refusal(error, http).body())]
        await response.prepare(http)
        for event in events:
            await response.write(event)
        await response.write_eof()
        return response


Drawing = asyncio.Future[tuple[Trajectory, Answer]]


@asynccontextmanager
async def serving(routes: Routes, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serves for the time of the context, and gives the URL. Port 0 takes a free one."""
    runner = web.AppRunner(routes.app(), handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield "http://{}:{}".format(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()


@web.middleware
async def _refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error is an OpenAI error object: the boundary behind which none is left."""
    try:
        return await handler(request)
    except ConnectionError:  # nobody is there to be told
        raise
    except Exception as error:
        refusal = _refusal(error, request)
    return web.json_response(refusal.body(), status=refusal.status)


def _refusal(error: Exception, http: web.Request) -> Refusal:
    """What a client is told of an error. One that is nobody's refusal is our fault, and stands in the log."""
    asked = f"{http.method} {http.path}"
    match error:
        case Refusal():
            return error
        case web.HTTPException():
            return Refusal(f"{asked}: {error.reason}", status=error.status)
    log.error("%s failed", asked, exc_info=error)
    message = f"{asked}: the gateway failed with {type(error).__name__}, its log says more"
    return Refusal(message, status=500, kind="server_error", code="internal_error")


def _take_back(drawing: Drawing) -> None:
    """Ends a generation, or withdraws its answer, which its client does not get."""
    drawing.cancel()
    if drawing.done() and not drawing.cancelled() and drawing.exception() is None:
        trajectory, answer = drawing.result()
        trajectory.withdraw(answer)


async def _data(http: web.Request) -> bytes:
    """The body of a request.

    Raises:
        Refusal: it is not in the encoding that its headers say.
    """
    try:
        return await http.read()
    except web.RequestPayloadError as error:
        raise Refusal(f"the body cannot be read: {error}", code="invalid_json") from error


def _trial_id(http: web.Request) -> str:
    """The trial of a request: its route's, else its session header's.

    Raises:
        Refusal: it names none.
    """
    named = http.match_info.get("trial") or http.headers.get(SESSION_HEADER)
    if not named:
        message = f"name the trial: use the base URL /t/TRIAL/v1, or the header {SESSION_HEADER}"
        raise Refusal(message, param=SESSION_HEADER, code="trial_required")
    return named


def _event(body: Any) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"
