"""What every server of SGLang's native protocol must do. Runs against a URL: the embedded server, or a real SGLang.

A subclass gives the fixtures `url` (of a server that runs `SLOTS` sequences at once), `folder` (the checkpoint that is
served), `oracle` and, for weight updates, `other_folder` and `other_oracle`. Nothing is checked that the stock SGLang
0.5.12 does not do.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from components.records import Sampling
from components.sampler import Generation, ModelGeometry, SGLangClient
from tests.sampler.conftest import CONTEXT, SLOTS, Oracle


def tokens(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 90, length).tolist()


class Wire:
    """Raw requests."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url, self.session = url, session

    async def post(self, path: str, **body: Any) -> tuple[int, Any]:
        async with self.session.post(self.url + path, json=body) as response:
            return response.status, await _content(response)

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(self.url + path) as response:
            return response.status, await _content(response)

    async def generate(self, ids: Any, new: int = 4, **fields: Any) -> tuple[int, Any]:
        sampling = {"max_new_tokens": new, "temperature": 1.0, "ignore_eos": True, **fields.pop("sampling", {})}
        body = {"input_ids": ids, "sampling_params": sampling, "return_logprob": True, "return_routed_experts": True}
        return await self.post("/generate", **{**body, **fields})


async def _content(response: aiohttp.ClientResponse) -> Any:
    json_sent = response.content_type == "application/json"
    return await response.json() if json_sent else await response.text()


def rows(meta: dict[str, Any], geometry: ModelGeometry) -> np.ndarray:
    flat = np.frombuffer(base64.b64decode(meta["routed_experts"]), dtype="<i4")
    return flat.reshape(-1, geometry.num_layers, geometry.experts_per_token)


class SamplerSuite:
    """Inherit, give the fixtures, and run."""

    @pytest.fixture
    def geometry(self, folder: Path) -> ModelGeometry:
        return ModelGeometry.read(folder, CONTEXT)

    @pytest.fixture
    async def wire(self, url: str) -> AsyncIterator[Wire]:
        # A connection a request: SGLang hangs up after a 500, without saying so before.
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as session:
            yield Wire(url, session)

    @pytest.fixture
    async def client(self, url: str, geometry: ModelGeometry) -> AsyncIterator[SGLangClient]:
        client = SGLangClient(url, model=geometry, request_timeout_s=60)
        yield client
        await client.close()

    async def test_the_answer_has_the_shape_of_sglang(self, wire: Wire, geometry: ModelGeometry) -> None:
        rid = uuid.uuid4().hex
        status, body = await wire.generate(tokens(1, 9), new=5, rid=rid)
        assert status == 200
        assert {"output_ids", "meta_info"} <= body.keys(), "text only with a tokenizer"
        meta = body["meta_info"]
        assert meta["id"] == rid
        assert meta["finish_reason"] == {"type": "length", "length": 5}
        assert (meta["prompt_tokens"], meta["completion_tokens"]) == (9, 5)
        assert isinstance(meta["cached_tokens"], int)
        assert isinstance(meta["weight_version"], str)
        assert [entry[1:] for entry in meta["output_token_logprobs"]] == [[token, None] for token in body["output_ids"]]
        assert meta["input_token_logprobs"] == []
        assert rows(meta, geometry).shape[0] == 9 + 5 - 1

    async def test_experts_and_logprobs_are_those_of_transformers(
        self, wire: Wire, geometry: ModelGeometry, oracle: Oracle
    ) -> None:
        prompt = tokens(2, 30)
        for temperature in (1.0, 0.5):
            _, body = await wire.generate(prompt, new=20, sampling={"temperature": temperature})
            ids = prompt + body["output_ids"]
            forced = oracle(ids)
            drawn = [entry[0] for entry in body["meta_info"]["output_token_logprobs"]]
            np.testing.assert_allclose(drawn, forced.logprobs(ids, 30, temperature), atol=1e-4, rtol=0)
            np.testing.assert_array_equal(rows(body["meta_info"], geometry), forced.experts[:-1])

    async def test_temperature_zero_is_greedy_with_untempered_logprobs(self, wire: Wire, oracle: Oracle) -> None:
        prompt = tokens(3, 12)
        _, body = await wire.generate(prompt, new=10, sampling={"temperature": 0})
        ids = prompt + body["output_ids"]
        forced = oracle(ids)
        assert forced.logits[11:-1].argmax(-1).tolist() == body["output_ids"]
        drawn = [entry[0] for entry in body["meta_info"]["output_token_logprobs"]]
        np.testing.assert_allclose(drawn, forced.logprobs(ids, 12), atol=1e-4, rtol=0)

    async def test_logprobs_of_the_prompt_start_with_null(self, wire: Wire, oracle: Oracle) -> None:
        prompt = tokens(4, 15)
        _, body = await wire.generate(prompt, new=1, logprob_start_len=0)
        entries = body["meta_info"]["input_token_logprobs"]
        assert [entry[1] for entry in entries] == prompt
        assert entries[0][0] is None
        scored = [entry[0] for entry in entries[1:]]
        np.testing.assert_allclose(scored, oracle(prompt).logprobs(prompt, 1), atol=1e-4, rtol=0)

    async def test_turns_that_ask_for_new_rows_only_make_the_routing_of_the_whole(
        self, client: SGLangClient, oracle: Oracle
    ) -> None:
        ids, parts, cached = tokens(5, 40), [], []
        start = 0
        for turn in range(4):
            answer = await self.draw(client, ids, 12, routing_start=start)
            assert answer.routing is not None
            parts.append(answer.routing)
            cached.append(answer.cached_tokens)
            ids = ids + answer.output_ids.tolist()
            start = len(ids) - 1
            ids = ids + tokens(50 + turn, 8)
        sequence = ids[:-8]
        stitched = np.concatenate(parts)
        assert len(stitched) == len(sequence) - 1
        np.testing.assert_array_equal(stitched, oracle(sequence).experts[:-1])
        assert cached[1] >= 40
        assert cached == sorted(cached)

    async def test_a_batch_is_answered_in_order(self, wire: Wire) -> None:
        prompts = [tokens(i, 5 + i) for i in range(3)]
        status, body = await wire.generate(prompts, rid=[uuid.uuid4().hex for _ in prompts])
        assert status == 200
        assert [element["meta_info"]["prompt_tokens"] for element in body] == [5, 6, 7]

    async def test_a_stop_id_ends_the_answer(self, wire: Wire) -> None:
        prompt = tokens(6, 10)
        _, free = await wire.generate(prompt, new=12, sampling={"temperature": 0})
        stop = free["output_ids"][6]
        wanted = {"temperature": 0, "stop_token_ids": [stop]}
        _, body = await wire.generate(prompt, new=12, sampling={**wanted, "ignore_eos": False})
        assert body["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
        assert len(body["meta_info"]["output_token_logprobs"]) == free["output_ids"].index(stop) + 1
        _, deaf = await wire.generate(prompt, new=12, sampling={**wanted, "ignore_eos": True})
        assert deaf["output_ids"] == free["output_ids"], "ignore_eos ignores stop ids too"

    async def test_bad_requests_are_refused(self, wire: Wire) -> None:
        prompt = tokens(7, 10)
        status, body = await wire.generate(prompt, new=CONTEXT)
        assert status == 400
        assert "maximum context length" in str(body)
        # 0.5.12 answers an unknown sampling key with 500.
        assert (await wire.generate(prompt, sampling={"no_such_key": 1}))[0] in (400, 500)
        assert (await wire.generate(prompt, sampling={"temperature": -1}))[0] == 400
        assert (await wire.generate(prompt, sampling={"top_p": 0}))[0] == 400
        assert (await wire.generate(prompt, routed_experts_start_len=11))[0] == 400
        assert (await wire.generate([]))[0] == 400

    async def test_a_duplicate_rid_is_refused_while_the_first_lives(self, wire: Wire) -> None:
        rid = uuid.uuid4().hex
        first = asyncio.create_task(wire.generate(tokens(8, 10), new=CONTEXT - 20, rid=rid))
        await self.busy(wire)
        assert (await wire.generate(tokens(8, 10), rid=rid))[0] == 400
        await wire.post("/abort_request", rid=rid)
        assert (await first)[0] == 200

    async def test_an_abort_returns_what_was_drawn(self, wire: Wire, geometry: ModelGeometry, oracle: Oracle) -> None:
        rid, prompt = uuid.uuid4().hex, tokens(9, 10)
        running = asyncio.create_task(wire.generate(prompt, new=CONTEXT - 20, rid=rid))
        await self.busy(wire)
        assert (await wire.post("/abort_request", rid=rid))[0] == 200
        status, body = await running
        assert status == 200
        assert body["meta_info"]["finish_reason"]["type"] == "abort"
        ids = prompt + body["output_ids"]
        assert 10 < len(ids) < CONTEXT - 10
        np.testing.assert_array_equal(rows(body["meta_info"], geometry), oracle(ids).experts[:-1])

    async def test_an_abort_in_the_queue_has_nothing_drawn_and_no_routing(
        self, wire: Wire, client: SGLangClient
    ) -> None:
        rids = [uuid.uuid4().hex for _ in range(SLOTS)]
        running = [asyncio.create_task(wire.generate(tokens(9, 10), new=CONTEXT - 20, rid=rid)) for rid in rids]
        await self.busy(wire, SLOTS)
        rid = uuid.uuid4().hex
        queued = asyncio.create_task(wire.generate(tokens(10, 10), rid=rid))
        held = asyncio.create_task(self.draw(client, tokens(11, 10), 4, routing_start=0))
        await self.busy(wire, SLOTS, waiting=2)
        await wire.post("/abort_request", rid=rid)
        status, body = await queued
        assert status == 200
        assert body["meta_info"]["finish_reason"]["type"] == "abort"
        assert "routed_experts" not in body["meta_info"]
        assert body["meta_info"]["completion_tokens"] == 0
        await client.abort_all()
        answer = await held
        assert (answer.finish_reason, len(answer.output_ids), answer.routing) == ("abort", 0, None)
        assert all(status == 200 for status, _ in await asyncio.gather(*running))

    async def test_a_pause_aborts_what_runs_and_holds_what_comes(self, wire: Wire, client: SGLangClient) -> None:
        running = asyncio.create_task(self.draw(client, tokens(10, 10), CONTEXT - 20))
        await self.busy(wire)
        await client.pause()
        assert (await running).finish_reason == "abort"
        held = asyncio.create_task(self.draw(client, tokens(10, 10), 3))
        await asyncio.sleep(0.2)
        assert not held.done()
        assert await client.healthy()
        await client.resume()
        assert (await held).finish_reason == "length"
        assert (await wire.post("/pause_generation", mode="no_such_mode"))[0] in (400, 422)

    async def test_a_pause_in_place_freezes_and_goes_on(self, wire: Wire, oracle: Oracle) -> None:
        prompt = tokens(11, 10)
        running = asyncio.create_task(wire.generate(prompt, new=CONTEXT - 20))
        await self.busy(wire)
        assert (await wire.post("/pause_generation", mode="in_place"))[0] == 200
        await asyncio.sleep(0.5)
        assert not running.done()
        assert (await wire.post("/flush_cache"))[0] == 400
        await wire.post("/continue_generation")
        status, body = await running
        assert status == 200
        ids = prompt + body["output_ids"]
        assert len(ids) == CONTEXT - 10
        drawn = [entry[0] for entry in body["meta_info"]["output_token_logprobs"]]
        np.testing.assert_allclose(drawn, oracle(ids).logprobs(ids, 10), atol=1e-4, rtol=0)

    async def test_a_flush_forgets_prefixes_and_waits_for_requests(self, wire: Wire, client: SGLangClient) -> None:
        prompt = tokens(12, 40)
        await self.draw(client, prompt, 4)
        assert (await self.draw(client, prompt, 4)).cached_tokens > 30
        running = asyncio.create_task(wire.generate(prompt, new=CONTEXT - 50))
        await self.busy(wire)
        assert (await wire.post("/flush_cache"))[0] == 400
        await client.flush_cache()
        assert (await running)[0] == 200
        assert (await self.draw(client, prompt, 4)).cached_tokens == 0

    async def test_new_weights_answer_under_their_version(
        self, client: SGLangClient, folder: Path, other_folder: Path, other_oracle: Oracle, oracle: Oracle
    ) -> None:
        prompt = tokens(13, 30)
        for path, reference, version in ((other_folder, other_oracle, 11), (folder, oracle, 12)):
            await client.pause()
            await client.flush_cache()
            await client.update_weights(str(path), version)
            await client.resume()
            answer = await self.draw(client, prompt, 10, routing_start=0)
            assert answer.weight_version == version
            assert (await client.info()).weight_version == version
            ids = prompt + answer.output_ids.tolist()
            np.testing.assert_allclose(answer.logprobs, reference(ids).logprobs(ids, 30), atol=1e-4, rtol=0)
            np.testing.assert_array_equal(answer.routing, reference(ids).experts[:-1])

    async def test_a_failed_update_leaves_the_old_weights(
        self, wire: Wire, client: SGLangClient, oracle: Oracle
    ) -> None:
        before = (await client.info()).weight_version
        status, body = await wire.post("/update_weights_from_disk", model_path="/nowhere", weight_version="99")
        assert status == 400
        assert body["success"] is False
        answer = await self.draw(client, tokens(14, 20), 5)
        assert answer.weight_version == before
        ids = tokens(14, 20) + answer.output_ids.tolist()
        np.testing.assert_allclose(answer.logprobs, oracle(ids).logprobs(ids, 20), atol=1e-4, rtol=0)

    async def test_information_names_the_model_and_the_version(self, wire: Wire, client: SGLangClient) -> None:
        status, info = await wire.get("/model_info")
        assert status == 200
        assert {"model_path", "weight_version", "tokenizer_path"} <= info.keys()
        assert (await wire.get("/get_model_info"))[0] == 200
        assert (await wire.get("/server_info"))[1]["enable_return_routed_experts"] is True
        assert (await wire.get("/health"))[0] == 200
        assert (await wire.get("/health_generate"))[0] == 200
        assert await client.probe(routing=True)

    @staticmethod
    async def draw(client: SGLangClient, ids: list[int], new: int, routing_start: int | None = None) -> Generation:
        return await client.generate(
            ids,
            sampling=Sampling(),
            max_new_tokens=new,
            stop_token_ids=[],
            routing_start=routing_start,
            session_id="suite",
        )

    @staticmethod
    async def busy(wire: Wire, running: int = 1, waiting: int = 0) -> None:
        """Waits until so many requests have drawn a token and not ended, and so many wait for a slot.

        The embedded server says how many there are, and answers between its steps; SGLang only whether there are any.
        """
        async with asyncio.timeout(60):
            while True:
                (load,) = (await wire.get("/server_info"))[1]["internal_states"]
                if "running" in load:
                    if (load["running"], load["waiting"]) == (running, waiting):
                        return
                elif (await wire.post("/flush_cache"))[0] == 400:
                    await asyncio.sleep(0.2 if waiting else 0.02)
                    return
                await asyncio.sleep(0.01)
