"""The shared suite against the embedded server, and (`make sglang`) against a real SGLang."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from components.config import PublishConfig, SamplerConfig
from components.publish import Publisher, open_publisher
from components.sampler import SamplerServer, launch_sampler
from tests.conformance.publisher_suite import PublisherSuite
from tests.conformance.sampler_suite import SamplerSuite, Wire, tokens
from tests.sampler.conftest import CONTEXT, SLOTS, Oracle
from tests.sampler.real import SGLANG, START_TIMEOUT_S, real_sglang


async def running(wire: Wire) -> int:
    """How many requests the embedded server's engine has."""
    return int((await wire.get("/server_info"))[1]["internal_states"][0]["running"])


async def begun(wire: Wire, new: int) -> asyncio.Task[Any]:
    """A request that the engine has taken up."""
    while True:
        asked = asyncio.create_task(wire.generate(tokens(1, 5), new=new))
        while not asked.done():
            if await running(wire):
                return asked
            await asyncio.sleep(0.001)


class TestEmbedded(SamplerSuite):
    """Also what only the embedded server promises."""

    @pytest.fixture
    def url(self, embedded: SamplerServer) -> str:
        return embedded.url

    @pytest.fixture
    def folder(self, model_folder: Path) -> Path:
        return model_folder

    async def test_what_it_cannot_do_is_refused_by_name(self, wire: Wire) -> None:
        for fields in (
            {"stream": True},
            {"sampling": {"no_such_key": 1}},
            {"sampling": {"min_p": 0.1}},
            {"sampling": {"n": 2}},
            {"sampling": {"temperature": "hot"}},
            {"sampling": {"top_k": 0}},
            {"sampling": {"top_k": 10**30}},
            {"sampling": {"temperature": 1e-7}},
            {"top_logprobs_num": 3},
            {"rid": 7},
            {"return_logprob": "yes"},
        ):
            status, body = await wire.generate(tokens(1, 5), **fields)
            assert status == 400, fields
            named = {**fields, **fields.get("sampling", {})}  # type: ignore[dict-item]
            assert any(key in body["error"]["message"] for key in named)
        for ids in ([0, 96], [-1], [1.5], [True], "text", [[1], []], None):
            assert (await wire.generate(ids))[0] == 400
        assert (await wire.generate([[1], [2]], rid=["same", "same"]))[0] == 400
        assert (await wire.generate(tokens(1, 5), an_unknown_field=1))[0] == 200
        assert (await wire.post("/pause_generation", mode="retract"))[0] == 400
        for torn in (b"{torn", b"[" * 100_000):
            async with wire.session.post(wire.url + "/generate", data=torn) as response:
                assert response.status == 400
        assert (await wire.post("/pause_generation", mode=[]))[0] == 400

    async def test_a_client_that_hangs_up_frees_its_slot(self, wire: Wire) -> None:
        async def frozen() -> asyncio.Task[Any]:
            """A request that cannot end by itself."""
            while True:
                asked = await begun(wire, CONTEXT - 20)
                await wire.post("/pause_generation", mode="in_place")
                if await running(wire):
                    return asked
                await wire.post("/continue_generation")
                await asked

        try:
            async with asyncio.timeout(60):
                (await frozen()).cancel()
                while await running(wire):
                    await asyncio.sleep(0.001)
        finally:
            await wire.post("/continue_generation")

    async def test_an_update_without_a_pause_waits_for_what_runs(
        self, wire: Wire, folder: Path, oracle: Oracle
    ) -> None:
        before = (await wire.get("/model_info"))[1]["weight_version"]
        asked = await begun(wire, 200)
        status, _ = await wire.post("/update_weights_from_disk", model_path=str(folder), weight_version="33")
        assert status == 200
        assert await running(wire) == 0
        body = (await asked)[1]
        assert body["meta_info"]["completion_tokens"] == 200
        assert body["meta_info"]["weight_version"] == before
        assert (await wire.generate(tokens(1, 5)))[1]["meta_info"]["weight_version"] == "33"


@pytest.fixture(scope="module")
def sglang(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SamplerServer]:
    """One stock SGLang for all."""
    config = SamplerConfig(
        engine="sglang",
        sglang=SGLANG,
        slots=SLOTS,
        context_tokens=CONTEXT,
        prefill_tokens=64,
        start_timeout_s=START_TIMEOUT_S,
    )
    log = tmp_path_factory.mktemp("log") / "sglang.log"
    with launch_sampler(config, model_folder, seed=0, routing=True, log_path=log) as server:
        yield server


@real_sglang
class TestSGLang(SamplerSuite):
    """The stock wheel."""

    @pytest.fixture
    def url(self, sglang: SamplerServer) -> str:
        return sglang.url

    @pytest.fixture
    def folder(self, model_folder: Path) -> Path:
        return model_folder


@real_sglang
class TestSGLangPublication(PublisherSuite):
    """The stock wheel and an embedded server side by side, in one weight group when it is collective."""

    @pytest.fixture
    def servers(self, sglang: SamplerServer, embedded: SamplerServer) -> list[SamplerServer]:
        return [sglang, embedded]

    @pytest.fixture(params=["disk", "collective"])
    def publisher(self, request: pytest.FixtureRequest, tmp_path: Path) -> Publisher:
        return open_publisher(PublishConfig(method=request.param, bucket_mb=0.01, timeout_s=200), tmp_path / "weights")
