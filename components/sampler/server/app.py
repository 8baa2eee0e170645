"""The HTTP routes of the embedded server, SGLang's names and statuses."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web
from torch import Tensor

from components.sampler.engine import Engine, Request, Weights
from components.sampler.server.delivery import Delivery
from components.sampler.server.driver import Driver, PauseMode, WeightUpdateError, gather_all
from components.sampler.server.wire import (
    BadRequest,
    Call,
    ModelLimits,
    parse_delivery,
    parse_generate,
    parse_group,
    render_answer,
)

# A batch of 64 prompts of 100k ids is some 40 MB of JSON.
_MAX_BODY_BYTES = 256 * 1024 * 1024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class Service:
    """The handlers and their state.

    Attributes:
        read: weights from a folder.
        build: weights from named tensors; `source` names them in errors.
        settings: the command-line values, shown by `/server_info`.
    """

    driver: Driver
    model_path: str
    read: Callable[[Path], Weights]
    build: Callable[[Mapping[str, Tensor], str], Weights]
    settings: dict[str, Any]
    delivery: Delivery = field(default_factory=Delivery)

    def app(self) -> web.Application:
        """The application; its owner runs `driver.run()` beside it."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_refusals])
        app.add_routes(
            [
                web.post("/generate", self.generate),
                web.put("/generate", self.generate),
                web.post("/abort_request", self.abort_request),
                web.post("/pause_generation", self.pause_generation),
                web.post("/continue_generation", self.continue_generation),
                web.post("/flush_cache", self.flush_cache),
                web.get("/flush_cache", self.flush_cache),
                web.post("/update_weights_from_disk", self.update_weights_from_disk),
                web.post("/init_weights_update_group", self.init_weights_update_group),
                web.post("/destroy_weights_update_group", self.destroy_weights_update_group),
                web.post("/begin_weight_update", self.begin_weight_update),
                web.post("/update_weights_from_distributed", self.update_weights_from_distributed),
                web.post("/end_weight_update", self.end_weight_update),
                web.get("/model_info", self.model_info),
                web.get("/get_model_info", self.model_info),
                web.get("/server_info", self.server_info),
                web.get("/get_server_info", self.server_info),
                web.get("/health", self.health),
                web.get("/health_generate", self.health_generate),
            ]
        )
        return app

    async def generate(self, http: web.Request) -> web.Response:
        """Runs one sequence or a batch to the end."""
        started = time.perf_counter()
        arch = self._engine.arch
        limits = ModelLimits(arch.vocab, self._engine.context, arch.eos_ids)
        calls, batched = parse_generate(await _body(http), limits)
        rids = [call.request.rid for call in calls]
        if len(set(rids)) != len(rids):
            raise BadRequest("Duplicate request ID detected within the batch")
        rendered = await gather_all([self._answer(call, started) for call in calls])
        return _json(rendered if batched else rendered[0])

    async def abort_request(self, http: web.Request) -> web.Response:
        """Ends one request by its exact rid, or all."""
        body = await _body(http)
        if body.get("abort_all"):
            self.driver.abort_all()
        elif body.get("rid"):
            self.driver.abort(str(body["rid"]))
        return web.Response()

    async def pause_generation(self, http: web.Request) -> web.Response:
        """Holds generation back; mode `retract` is not offered."""
        mode = (await _body(http)).get("mode", PauseMode.ABORT.value)
        if mode not in list(PauseMode):  # a list, since what JSON gives need not be hashable
            raise BadRequest(f"mode must be one of {', '.join(PauseMode)}, got {mode!r}")
        self.driver.pause(PauseMode(mode))
        return _json({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(self, http: web.Request) -> web.Response:
        """Undoes a pause; without one it does nothing."""
        self.driver.resume()
        return _json({"message": "Generation continued successfully.", "status": "ok"})

    async def flush_cache(self, http: web.Request) -> web.Response:
        """Forgets cached prefixes, or 400 while requests run or wait."""
        if self.driver.flush():
            return web.Response(text="Cache flushed.\n")
        return web.Response(text="Cache not flushed: requests are running or waiting.\n", status=400)

    async def update_weights_from_disk(self, http: web.Request) -> web.Response:
        """Exchanges the weights; on failure the old ones stay."""
        body = await _body(http)
        path, version = body.get("model_path"), body.get("weight_version")
        if not isinstance(path, str) or not isinstance(version, str | None):
            raise BadRequest("model_path must be a string, and weight_version a string when it is given")
        flush, abort = body.get("flush_cache", True), body.get("abort_all_requests", False)
        waiting = await self.driver.update(lambda: self.read(Path(path)), version, flush=flush, abort=abort)
        self.model_path = path
        return _succeeded("Succeeded to update model weights.", num_paused_requests=waiting)

    async def init_weights_update_group(self, http: web.Request) -> web.Response:
        """Joins a group; answers when all have."""
        body = await _body(http)
        address, rank = parse_group(body)
        await self.delivery.join(address, rank)
        return _succeeded("Succeeded to initialize custom process group.")

    async def destroy_weights_update_group(self, http: web.Request) -> web.Response:
        """Leaves a group."""
        self.delivery.leave(str((await _body(http)).get("group_name")))
        return _succeeded("Succeeded to destroy custom process group.")

    async def begin_weight_update(self, http: web.Request) -> web.Response:
        """Opens a session; the old weights go on until it ends."""
        self.delivery.begin()
        return _succeeded("Success")

    async def update_weights_from_distributed(self, http: web.Request) -> web.Response:
        """Receives tensors of the session."""
        specs, group, version = parse_delivery(await _body(http))
        await self.delivery.receive(specs, group, version)
        return _succeeded("Succeeded to update parameter online.")

    async def end_weight_update(self, http: web.Request) -> web.Response:
        """Exchanges the weights for those of the session, or, when one is missing, keeps the old ones."""
        arrived, version = self.delivery.end()
        source = f"the weight update to version {version}"
        await self.driver.update(lambda: self.build(arrived, source), version, flush=True, abort=False)
        return _succeeded("Success")

    async def model_info(self, http: web.Request) -> web.Response:
        """What is served."""
        return _json(
            {
                "model_path": self.model_path,
                "tokenizer_path": self.model_path,
                "is_generation": True,
                "weight_version": self._engine.version,
                "model_type": "qwen3_moe",
                "architectures": ["Qwen3MoeForCausalLM"],
            }
        )

    async def server_info(self, http: web.Request) -> web.Response:
        """Settings and load."""
        load = {"running": self._engine.running, "waiting": self._engine.waiting}
        known = {"version": "longshell-embedded", "weight_version": self._engine.version, "tp_size": 1}
        return _json({**self.settings, **known, "internal_states": [load]})

    async def health(self, http: web.Request) -> web.Response:
        """The event loop turns, so the engine steps."""
        return web.Response()

    async def health_generate(self, http: web.Request) -> web.Response:
        """Draws one token; 503 at once while paused."""
        if self.driver.paused:
            return web.Response(status=503)
        await self.driver.submit(Request(f"health-{time.monotonic_ns()}", np.zeros(1, dtype=np.int32), 1))
        return web.Response()

    @property
    def _engine(self) -> Engine:
        return self.driver.engine

    async def _answer(self, call: Call, started: float) -> dict[str, Any]:
        answer, version = await self.driver.submit(call.request)
        return render_answer(call, answer, version, time.perf_counter() - started)


@web.middleware
async def _refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns a refusal into SGLang's 400."""
    try:
        return await handler(request)
    except WeightUpdateError as error:
        return _json({"success": False, "message": str(error)}, status=400)
    except BadRequest as error:
        return _json({"error": {"message": str(error), "type": "BadRequestError", "code": 400}}, status=400)


async def _body(http: web.Request) -> Any:
    """The JSON object of a request; an absent body is an empty one."""
    data = await http.read()
    if not data:
        return {}
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


def _succeeded(message: str, **more: Any) -> web.Response:
    return _json({"success": True, "message": message, **more})


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=json.dumps(value).encode(), status=status, content_type="application/json")
