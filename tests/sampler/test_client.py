"""The client against a server that misbehaves in the ways seen in the wild."""

from __future__ import annotations

import asyncio
import base64
import copy
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from components.errors import FaultCause, InfraFault, ServiceError
from components.records import Sampling
from components.sampler import Generation, ModelGeometry, Sampler, SGLangClient, TensorSpec

GEOMETRY = ModelGeometry(vocab_size=100, num_layers=2, num_experts=8, experts_per_token=2, context_tokens=64)
ROWS = 5  # three prompt tokens, three drawn


def good_answer() -> dict[str, Any]:
    experts = np.tile(np.array([3, 1], dtype="<i4"), (ROWS, 2, 1))
    return {
        "text": "",
        "output_ids": [7, 8, 9],
        "meta_info": {
            "id": "x",
            "finish_reason": {"type": "length", "length": 3},
            "prompt_tokens": 3,
            "completion_tokens": 3,
            "cached_tokens": 1,
            "weight_version": "4",
            "output_token_logprobs": [[-0.5, 7, None], [-1.0, 8, None], [-2.0, 9, None]],
            "routed_experts": base64.b64encode(experts.tobytes()).decode(),
        },
    }


class FakeServer:
    """Answers what it is told to, and remembers what it was sent."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = good_answer()
        self.status = 200
        self.free = asyncio.Event()
        self.free.set()
        self.bodies: list[dict[str, Any]] = []
        self.flush_refusals = 0
        self.sessions: int | None = 0
        self.settings: dict[str, Any] = {"version": "0.5.23", "enable_return_routed_experts": True}

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/generate", self.generate)
        app.router.add_post("/flush_cache", self.flush)
        app.router.add_post("/abort_request", self.accept)
        app.router.add_post("/update_weights_from_disk", self.update)
        app.router.add_post("/update_weights_from_distributed", self.receive)
        app.router.add_post("/begin_weight_update", self.session)
        app.router.add_post("/end_weight_update", self.session)
        app.router.add_get("/model_info", self.model_info)
        app.router.add_get("/server_info", self.server_info)
        return app

    async def generate(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        await self.free.wait()
        return web.json_response(self.answer, status=self.status)

    async def accept(self, request: web.Request) -> web.Response:
        return web.Response()

    async def flush(self, request: web.Request) -> web.Response:
        self.flush_refusals -= 1
        return web.Response(status=400 if self.flush_refusals >= 0 else 200, text="Cache flushed")

    async def update(self, request: web.Request) -> web.Response:
        return web.json_response({"success": True, "message": ""})

    async def receive(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        return web.json_response({"success": True, "message": ""})

    async def session(self, request: web.Request) -> web.Response:
        """As 0.5.23 does; `sessions` is how many are open, None for a version without."""
        if self.sessions is None:
            return web.Response(status=404)
        change = 1 if "begin" in request.path else -1
        if self.sessions + change not in (0, 1):
            return web.json_response({"success": False, "message": "a session is open, or none"}, status=400)
        self.sessions += change
        return web.json_response({"success": True, "message": ""})

    async def model_info(self, request: web.Request) -> web.Response:
        return web.json_response({"model_path": "/m", "weight_version": "default"})

    async def server_info(self, request: web.Request) -> web.Response:
        return web.json_response(self.settings)


@pytest.fixture
def fake() -> FakeServer:
    return FakeServer()


@pytest.fixture
async def client(fake: FakeServer) -> AsyncIterator[SGLangClient]:
    runner = web.AppRunner(fake.app(), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    client = SGLangClient(f"http://127.0.0.1:{port}/", model=GEOMETRY, request_timeout_s=60)
    yield client
    await client.close()
    await runner.cleanup()


async def draw(client: Sampler, ids: list[int] | None = None, **changes: Any) -> Generation:
    call: dict[str, Any] = {"sampling": Sampling(), "max_new_tokens": 3, "stop_token_ids": [2], "routing_start": 0}
    return await client.generate(ids or [1, 2, 3], **{**call, **changes}, session_id="s")


async def test_a_whole_answer_becomes_arrays(fake: FakeServer, client: SGLangClient) -> None:
    answer = await draw(client, sampling=Sampling(temperature=0.5, top_p=0.9, top_k=20))
    assert answer.output_ids.tolist() == [7, 8, 9]
    assert answer.logprobs.dtype == np.float32
    assert answer.routing is not None
    assert (answer.routing.dtype, answer.routing.shape) == (np.uint8, (ROWS, 2, 2))
    assert (answer.weight_version, answer.cached_tokens, answer.finish_reason) == (4, 1, "length")
    (body,) = fake.bodies
    assert len(body["rid"]) == 32
    assert body["input_ids"] == [1, 2, 3]
    assert body["sampling_params"] == {
        "max_new_tokens": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 20,
        "stop_token_ids": [2],
        "skip_special_tokens": False,
        "no_stop_trim": True,
    }


async def test_capture_is_asked_for_only_when_wanted(fake: FakeServer, client: SGLangClient) -> None:
    del fake.answer["meta_info"]["routed_experts"]
    assert (await draw(client, routing_start=None)).routing is None
    assert "return_routed_experts" not in fake.bodies[0]


def missing_capture(answer: dict[str, Any]) -> None:
    del answer["meta_info"]["routed_experts"]


def short_capture(answer: dict[str, Any]) -> None:
    answer["meta_info"]["routed_experts"] = base64.b64encode(np.zeros(ROWS * 4 - 4, dtype="<i4").tobytes()).decode()


def zero_capture(answer: dict[str, Any]) -> None:
    answer["meta_info"]["routed_experts"] = base64.b64encode(np.zeros(ROWS * 4, dtype="<i4").tobytes()).decode()


def wild_capture(answer: dict[str, Any]) -> None:
    wild = np.tile(np.array([3, 8], dtype="<i4"), (ROWS, 2, 1))
    answer["meta_info"]["routed_experts"] = base64.b64encode(wild.tobytes()).decode()


def torn_capture(answer: dict[str, Any]) -> None:
    answer["meta_info"]["routed_experts"] = "AAA"


def fewer_logprobs(answer: dict[str, Any]) -> None:
    answer["meta_info"]["output_token_logprobs"].pop()


def other_ids(answer: dict[str, Any]) -> None:
    answer["meta_info"]["output_token_logprobs"][1][1] = 5


def no_token(answer: dict[str, Any]) -> None:
    answer["output_ids"] = answer["meta_info"]["output_token_logprobs"] = []


def wild_id(answer: dict[str, Any]) -> None:
    answer["output_ids"][0] = answer["meta_info"]["output_token_logprobs"][0][1] = 100


def null_logprob(answer: dict[str, Any]) -> None:
    answer["meta_info"]["output_token_logprobs"][0][0] = None


def no_reason(answer: dict[str, Any]) -> None:
    answer["meta_info"]["finish_reason"] = None


def foreign_version(answer: dict[str, Any]) -> None:
    answer["meta_info"]["weight_version"] = "v-latest"


def two_versions(answer: dict[str, Any]) -> None:
    spans = [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 3}]
    answer["meta_info"]["weight_versions"] = spans


def aborted(answer: dict[str, Any]) -> None:
    answer["meta_info"]["finish_reason"] = {"type": "abort", "message": "Aborted", "status_code": None}


@pytest.mark.parametrize("fault", [missing_capture, short_capture, zero_capture, wild_capture, torn_capture])
async def test_routing_that_is_not_whole_is_a_missing_capture(
    fault: Callable[[dict[str, Any]], None], fake: FakeServer, client: SGLangClient
) -> None:
    fault(fake.answer)
    with pytest.raises(InfraFault) as raised:
        await draw(client)
    assert raised.value.cause is FaultCause.CAPTURE_MISSING


@pytest.mark.parametrize(
    "fault",
    [
        fewer_logprobs,
        other_ids,
        no_token,
        wild_id,
        null_logprob,
        no_reason,
        foreign_version,
        two_versions,
        aborted,
    ],
)
async def test_an_answer_that_is_not_whole_is_a_sampler_fault(
    fault: Callable[[dict[str, Any]], None], fake: FakeServer, client: SGLangClient
) -> None:
    fault(fake.answer)
    with pytest.raises(InfraFault) as raised:
        await draw(client)
    assert raised.value.cause is FaultCause.SAMPLER


async def drawn_while_all_are_aborted(fake: FakeServer, client: SGLangClient) -> Generation:
    """An answer that the server has begun before an abort, and gives after it."""
    fake.free.clear()
    running = asyncio.create_task(draw(client))
    async with asyncio.timeout(60):
        while not fake.bodies:
            await asyncio.sleep(0.001)
    await client.abort_all()
    fake.free.set()
    return await running


async def test_an_abort_that_the_caller_asked_for_is_returned(fake: FakeServer, client: SGLangClient) -> None:
    aborted(fake.answer)
    answer = await drawn_while_all_are_aborted(fake, client)
    assert (answer.finish_reason, len(answer.output_ids)) == ("abort", 3)


async def test_an_abort_in_the_queue_has_no_routing(fake: FakeServer, client: SGLangClient) -> None:
    reason = {"type": "abort", "message": "Abort in waiting queue"}
    fake.answer = {"output_ids": [], "meta_info": {"finish_reason": reason, "weight_version": "4"}}
    answer = await drawn_while_all_are_aborted(fake, client)
    assert answer.routing is None
    assert len(answer.output_ids) == 0


async def test_what_sglang_would_die_of_is_never_sent(fake: FakeServer, client: SGLangClient) -> None:
    for ids, changes in (
        ([1, 100], {}),
        ([-1], {}),
        ([1], {"stop_token_ids": [100]}),
        ([1] * 62, {}),
        ([1], {"max_new_tokens": 0}),
        ([1], {"routing_start": 2}),
    ):
        with pytest.raises(ValueError, match=r"token|routing_start"):
            await draw(client, ids, **changes)
    for sampling in (
        *(Sampling(temperature=value) for value in (-1.0, 1e-7, 0.009, 101.0, float("nan"), float("inf"))),
        *(Sampling(top_p=value) for value in (0.0, 1.1, float("nan"))),
        *(Sampling(top_k=value) for value in (0, -2, 2**31, 10**30)),
    ):
        with pytest.raises(ValueError, match=r"^(temperature|top_p|top_k) must be"):
            await draw(client, sampling=sampling)
    with pytest.raises(ValueError, match="maximum context length of 64"):
        await draw(client, [1] * 62)
    assert fake.bodies == []


async def test_silence_ends_at_the_deadline(fake: FakeServer, client: SGLangClient) -> None:
    fake.free.clear()
    hurried = SGLangClient(client.url, model=GEOMETRY, request_timeout_s=0.2)
    with pytest.raises(InfraFault, match=r"/generate: no answer within 0\.2 s"):
        await draw(hurried)
    await hurried.close()


async def test_refusals_and_closed_ports_are_sampler_faults(fake: FakeServer, client: SGLangClient) -> None:
    fake.status = 500
    with pytest.raises(InfraFault, match="HTTP 500") as refused:
        await draw(client)
    assert refused.value.cause is FaultCause.SAMPLER
    gone = SGLangClient("http://127.0.0.1:9", model=GEOMETRY)
    with pytest.raises(InfraFault, match=r"127\.0\.0\.1:9/generate"):
        await draw(gone)
    assert not await gone.healthy()
    await gone.close()


async def test_a_refused_flush_is_tried_again(fake: FakeServer, client: SGLangClient) -> None:
    fake.flush_refusals = 2
    await client.flush_cache()
    assert fake.flush_refusals == -1


async def test_an_update_that_does_not_take_is_a_fault(client: SGLangClient) -> None:
    await client.update_weights("/m", 0)  # "default" is version 0
    with pytest.raises(InfraFault, match="version 5 was published, 0 is served"):
        await client.update_weights("/m", 5)


async def test_before_its_last_tensors_a_model_has_a_version_that_no_answer_may_carry(
    fake: FakeServer, client: SGLangClient
) -> None:
    for last in (True, False):
        await client.receive([TensorSpec("w", "float32", (2,))], "g", 7, last=last)
        fake.answer["meta_info"]["weight_version"] = fake.bodies[-1]["weight_version"]
        if last:
            assert (await draw(client)).weight_version == 7
        else:
            with pytest.raises(InfraFault, match="'7-incomplete' is not a number"):
                await draw(client)


@pytest.mark.parametrize("version", ["0.5.12", "0.5.23"])
async def test_a_session_is_opened_where_one_is_known_and_one_left_open_is_closed_first(
    fake: FakeServer, client: SGLangClient, version: str
) -> None:
    fake.sessions = None if version == "0.5.12" else 1
    await client.begin_update()
    await client.end_update(0)
    assert fake.sessions == (None if version == "0.5.12" else 0)


async def test_copies_of_a_model_that_would_take_one_rank_are_refused(fake: FakeServer, client: SGLangClient) -> None:
    fake.settings = {"tp_size": 4, "pp_size": 1, "dp_size": 8, "enable_dp_attention": True}
    assert await client.ranks() == 4
    for wrong in ({"pp_size": 2}, {"dp_size": 2}):
        fake.settings = {"tp_size": 4, **wrong}
        with pytest.raises(InfraFault, match="cannot be broadcast"):
            await client.ranks()


async def test_the_probe_names_everything_that_capture_cannot_live_with(fake: FakeServer, client: SGLangClient) -> None:
    assert await client.probe(routing=True) == "0.5.23"
    fake.settings = {"version": "0.5.12", "context_length": 32, "enable_eplb": True, "enable_hierarchical_cache": True}
    with pytest.raises(ServiceError, match=r"32 tokens.*return-routed-experts.*hierarchical.*eplb"):
        await client.probe(routing=True)


async def test_experts_beyond_a_byte_are_kept(fake: FakeServer, client: SGLangClient) -> None:
    wide = SGLangClient(client.url, model=ModelGeometry(100, 2, 512, 2, 64))
    experts = np.tile(np.array([511, 256], dtype="<i4"), (ROWS, 2, 1))
    fake.answer = copy.deepcopy(fake.answer)
    fake.answer["meta_info"]["routed_experts"] = base64.b64encode(experts.tobytes()).decode()
    answer = await draw(wide)
    assert answer.routing is not None
    assert answer.routing.dtype == np.uint16
    np.testing.assert_array_equal(answer.routing, experts)
    await wide.close()
