"""Client of SGLang's native API: the embedded server, and SGLang 0.5.12 to 0.5.23 unchanged.

Invariant: every call has a deadline and ends in a checked value or a typed error. Ids, lengths and sampling are checked
before they are sent, since SGLang does not: an id outside the vocabulary kills its scheduler.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from components.bounds import LEAST_TEMPERATURE, MOST_TEMPERATURE, MOST_TOP_K
from components.errors import FaultCause, InfraFault, ServiceError
from components.outcomes import HttpAnswered, fault_of
from components.records import Sampling
from components.sampler.answer import parse_version, read_generation
from components.sampler.geometry import ModelGeometry
from components.sampler.protocol import Generation, GroupAddress, ModelInfo, TensorSpec

# Control calls answer at once; pause(abort) of SGLang polls once a second until all requests are gone.
_CONTROL_TIMEOUT_S = 60.0
_HEALTH_TIMEOUT_S = 5.0
_FLUSH_RETRY_S = 0.1
_IDLE_CONNECTION_S = 2.0


class SGLangClient:
    """One server. Use within one event loop; connections are reused.

    Args:
        model: what the server's answers are checked against.
        request_timeout_s: deadline of a generation, and of loading weights. Must exceed the longest pause.
        dp: data-parallel ranks of the server, over which trajectories are spread; each stays with its own.
        keep_aborted: returns answers that somebody else aborted, too, for a caller that tells the cases apart.
    """

    def __init__(
        self,
        url: str,
        *,
        model: ModelGeometry,
        request_timeout_s: float = 600.0,
        dp: int = 1,
        keep_aborted: bool = False,
    ) -> None:
        self.url = url.rstrip("/")
        self._model = model
        self._request_timeout_s = request_timeout_s
        self._dp = dp
        self._keep_aborted = keep_aborted
        self._session: aiohttp.ClientSession | None = None
        self._abort_marks = 0
        self._in_session = False

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        max_new_tokens: int,
        stop_token_ids: Sequence[int],
        routing_start: int | None = None,
        session_id: str,
    ) -> Generation:
        """See `Sampler.generate`. An answer aborted by this client's own `abort_all` or `pause` is returned as one."""
        prompt = [int(token) for token in prompt_ids]
        self._check(prompt, max_new_tokens, stop_token_ids, routing_start)
        _check_sampling(sampling)
        mark = self._abort_marks
        body = _generate_body(prompt, sampling, max_new_tokens, stop_token_ids, routing_start)
        if self._dp > 1:  # by itself SGLang takes the ranks in turn, and a prefix is cached on one of them
            body["routed_dp_rank"] = zlib.crc32(session_id.encode()) % self._dp
        answer = await self._call("POST", "/generate", body, self._request_timeout_s)
        return read_generation(
            answer,
            prompt_tokens=len(prompt),
            routing_start=routing_start,
            geometry=self._model,
            accept_abort=self._keep_aborted or self._abort_marks != mark,
        )

    async def abort_all(self) -> None:
        self._abort_marks += 1
        await self._call("POST", "/abort_request", {"abort_all": True}, _CONTROL_TIMEOUT_S)

    async def pause(self) -> None:
        self._abort_marks += 1
        await self._call("POST", "/pause_generation", {"mode": "abort"}, _CONTROL_TIMEOUT_S)

    async def resume(self) -> None:
        await self._call("POST", "/continue_generation", {}, _CONTROL_TIMEOUT_S)

    async def flush_cache(self) -> None:
        """Retries the server's 400 (requests are still running) until the deadline."""
        deadline = time.monotonic() + _CONTROL_TIMEOUT_S
        while True:
            status, text = await self._send("POST", "/flush_cache", {}, _CONTROL_TIMEOUT_S)
            if status == 200:
                return
            if status != 400 or time.monotonic() > deadline:
                raise self._fault("/flush_cache", f"HTTP {status}: {text.strip()[:200]}")
            await asyncio.sleep(_FLUSH_RETRY_S)

    async def update_weights(self, path: str, version: int) -> None:
        """Loads a folder and checks that the server then reports `version`."""
        body = {"model_path": path, "weight_version": str(version), "flush_cache": True}
        await self._succeed("/update_weights_from_disk", body)
        await self._require_version(version)

    async def ranks(self) -> int:
        settings = await self._call("GET", "/server_info", None, _CONTROL_TIMEOUT_S)
        if settings.get("pp_size", 1) > 1 or (
            settings.get("dp_size", 1) > 1 and not settings.get("enable_dp_attention")
        ):
            raise self._fault("/server_info", "weights cannot be broadcast to pipeline or data-parallel ranks")
        return int(settings.get("tp_size", 1))

    async def join_group(self, group: GroupAddress, first_rank: int) -> None:
        body = {
            "master_address": group.host,
            "master_port": group.port,
            "rank_offset": first_rank,
            "world_size": group.world_size,
            "group_name": group.name,
            "backend": group.backend,
        }
        await self._succeed("/init_weights_update_group", body)

    async def leave_group(self, name: str) -> None:
        await self._succeed("/destroy_weights_update_group", {"group_name": name})

    async def begin_update(self) -> None:
        """0.5.23 wants a session around the tensors; 0.5.12 knows none and answers 404."""
        status, text = await self._send("POST", "/begin_weight_update", {}, _CONTROL_TIMEOUT_S)
        if status == 400:  # one is open that was not ended
            await self._send("POST", "/end_weight_update", {}, _CONTROL_TIMEOUT_S)
            status, text = await self._send("POST", "/begin_weight_update", {}, _CONTROL_TIMEOUT_S)
        if status not in (200, 404):
            raise self._fault("/begin_weight_update", f"HTTP {status}: {text.strip()[:500]}")
        self._in_session = status == 200

    async def receive(self, tensors: Sequence[TensorSpec], group: str, version: int, *, last: bool) -> None:
        body = {
            "names": [tensor.name for tensor in tensors],
            "dtypes": [tensor.dtype for tensor in tensors],
            "shapes": [list(tensor.shape) for tensor in tensors],
            "group_name": group,
            # Nothing was computed since the flush before; a flush a bucket would cost more than the bucket.
            "flush_cache": False,
            # Not a number until all are there: no answer of torn weights passes `parse_version`.
            "weight_version": str(version) if last else f"{version}-incomplete",
        }
        await self._succeed("/update_weights_from_distributed", body)

    async def end_update(self, version: int) -> None:
        if self._in_session:
            await self._succeed("/end_weight_update", {})
            self._in_session = False
        await self._require_version(version)

    async def info(self) -> ModelInfo:
        served = await self._model_info()
        model = self._model
        return ModelInfo(
            vocab_size=model.vocab_size,
            num_layers=model.num_layers,
            num_experts=model.num_experts,
            experts_per_token=model.experts_per_token,
            context_tokens=model.context_tokens,
            weight_version=parse_version(served["weight_version"]),
            model_path=served["model_path"],
        )

    async def probe(self, *, routing: bool) -> str:
        """Checks that the server is set up for what will be asked of it. Returns its version.

        Raises:
            ServiceError: it serves a shorter context than the geometry, does not capture routing, or captures it
                together with a feature that is known to return stale or relabelled rows (docs/sampler.md).
        """
        settings = await self._call("GET", "/server_info", None, _CONTROL_TIMEOUT_S)
        problems = []
        context = settings.get("context_length")
        if context is not None and context < self._model.context_tokens:
            problems.append(f"its context is {context} tokens, {self._model.context_tokens} are expected")
        if routing and not settings.get("enable_return_routed_experts"):
            problems.append("it was started without --enable-return-routed-experts")
        if routing and settings.get("enable_hierarchical_cache"):
            problems.append("--enable-hierarchical-cache returns stale routed experts")
        if routing and settings.get("enable_eplb"):
            problems.append("--enable-eplb relabels experts")
        if problems:
            raise ServiceError(f"sampler {self.url}: " + "; ".join(problems))
        return str(settings.get("version"))

    async def healthy(self) -> bool:
        """Asks `/model_info`, since `/health` of SGLang generates and hangs while paused."""
        try:
            status, _ = await self._send("GET", "/model_info", None, _HEALTH_TIMEOUT_S)
        except InfraFault:
            return False
        return status == 200

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _check(
        self, prompt: list[int], max_new_tokens: int, stop_token_ids: Sequence[int], routing_start: int | None
    ) -> None:
        vocab, context = self._model.vocab_size, self._model.context_tokens
        if not prompt or max_new_tokens < 1:
            raise ValueError("the prompt is empty or no token is asked for")
        low, high = min([*prompt, *stop_token_ids]), max([*prompt, *stop_token_ids])
        if low < 0 or high >= vocab:
            raise ValueError(f"token ids must be in [0, {vocab}), got {low if low < 0 else high}")
        if len(prompt) + max_new_tokens > context:
            total = f"{len(prompt)} prompt tokens and {max_new_tokens} new tokens"
            raise ValueError(f"{total} exceed the model's maximum context length of {context} tokens")
        if routing_start is not None and not 0 <= routing_start <= len(prompt):
            raise ValueError(f"routing_start must be in [0, {len(prompt)}], got {routing_start}")

    async def _model_info(self) -> dict[str, Any]:
        answer: dict[str, Any] = await self._call("GET", "/model_info", None, _CONTROL_TIMEOUT_S)
        if "weight_version" not in answer or "model_path" not in answer:
            raise self._fault("/model_info", f"lacks weight_version or model_path: {sorted(answer)}")
        return answer

    async def _require_version(self, version: int) -> None:
        served = parse_version((await self._model_info())["weight_version"])
        if served != version:
            raise self._fault("/model_info", f"version {version} was published, {served} is served")

    async def _succeed(self, path: str, body: Mapping[str, Any]) -> None:
        """Calls what answers {"success", "message"} and may take as long as weights take."""
        answer = await self._call("POST", path, body, self._request_timeout_s)
        if not answer.get("success"):
            raise self._fault(path, str(answer.get("message")))

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> Any:
        """Sends a request and returns the JSON of a 200; an empty or plain body is an empty object."""
        status, text = await self._send(method, path, body, timeout_s)
        if fault := fault_of(HttpAnswered(self.url + path, status, text)):
            raise fault
        try:
            return json.loads(text) if text[:1] in ("{", "[") else {}
        except ValueError as error:
            raise self._fault(path, f"answer is not JSON: {error}") from error

    async def _send(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> tuple[int, str]:
        if self._session is None:
            # No limit on connections: each trial holds one while it generates. Idle ones are given up before SGLang
            # does (after 5 s): a request on a connection that the server closes at that moment would be lost.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_CONNECTION_S)
            self._session = aiohttp.ClientSession(connector=connector)
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.request(method, self.url + path, json=body, timeout=timeout) as response:
                return response.status, await response.text()
        except TimeoutError as error:
            raise self._fault(path, f"no answer within {timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._fault(path, f"{type(error).__name__}: {error}") from error

    def _fault(self, path: str, detail: str) -> InfraFault:
        return InfraFault(FaultCause.SAMPLER, f"{self.url}{path}: {detail}")


def _check_sampling(sampling: Sampling) -> None:
    """Temperature 0 is greedy, top-k -1 is none."""
    temperature, top_p, top_k = sampling.temperature, sampling.top_p, sampling.top_k
    if temperature != 0 and not LEAST_TEMPERATURE <= temperature <= MOST_TEMPERATURE:
        bounds = f"[{LEAST_TEMPERATURE}, {MOST_TEMPERATURE}]"
        raise ValueError(f"temperature must be 0 (greedy) or in {bounds}, got {temperature}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must be in (0, 1], got {top_p}")
    if top_k != -1 and not 1 <= top_k <= MOST_TOP_K:
        raise ValueError(f"top_k must be -1 or in [1, {MOST_TOP_K}], got {top_k}")


def _generate_body(
    prompt: list[int],
    sampling: Sampling,
    max_new_tokens: int,
    stop_token_ids: Sequence[int],
    routing_start: int | None,
) -> dict[str, Any]:
    body: dict[str, Any] = {
        # SGLang aborts by prefix of the rid: a fixed length keeps one from being a prefix of another.
        "rid": uuid.uuid4().hex,
        "input_ids": prompt,
        "sampling_params": {
            "max_new_tokens": max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "stop_token_ids": list(stop_token_ids),
            # The stop id is part of the answer, and special tokens are kept: ids are the truth, text is not read.
            "skip_special_tokens": False,
            "no_stop_trim": True,
        },
        "return_logprob": True,
        "logprob_start_len": -1,
        "stream": False,
    }
    if routing_start is not None:
        body["return_routed_experts"] = True
        body["routed_experts_start_len"] = routing_start
    return body
