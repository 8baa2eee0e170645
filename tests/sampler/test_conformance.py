"""The shared suite against the embedded server, and against a real SGLang where one runs.

For the latter, serve two checkpoints of `tests.sampler.conftest.write_model` (docs/sampler.md) and set
LONGSHELL_SGLANG_URL, LONGSHELL_SGLANG_MODEL and LONGSHELL_SGLANG_OTHER_MODEL.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from components.sampler import EmbeddedServer
from tests.conformance.sampler_suite import SamplerSuite, Wire, tokens
from tests.sampler.conftest import CONTEXT, Oracle


class TestEmbedded(SamplerSuite):
    """Also what only the embedded server promises."""

    @pytest.fixture
    def url(self, embedded: EmbeddedServer) -> str:
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
        async with wire.session.post(wire.url + "/generate", data=b"{torn") as response:
            assert response.status == 400

    async def test_a_client_that_hangs_up_frees_its_slot(self, wire: Wire) -> None:
        async def running() -> int:
            return (await wire.get("/server_info"))[1]["internal_states"][0]["running"]

        task = asyncio.create_task(wire.generate(tokens(1, 5), new=CONTEXT - 20))
        await self.busy(wire)
        task.cancel()
        for _ in range(20):
            await asyncio.sleep(0.01)
            if await running() == 0:
                return
        raise AssertionError("the request still runs")

    async def test_an_update_without_a_pause_waits_for_what_runs(
        self, wire: Wire, folder: Path, oracle: Oracle
    ) -> None:
        before = (await wire.get("/model_info"))[1]["weight_version"]
        running = asyncio.create_task(wire.generate(tokens(1, 5), new=200))
        await self.busy(wire)
        status, _ = await wire.post("/update_weights_from_disk", model_path=str(folder), weight_version="33")
        assert status == 200
        assert running.done()
        body = (await running)[1]
        assert body["meta_info"]["completion_tokens"] == 200
        assert body["meta_info"]["weight_version"] == before
        assert (await wire.generate(tokens(1, 5)))[1]["meta_info"]["weight_version"] == "33"


@pytest.mark.sglang_cpu
@pytest.mark.skipif("LONGSHELL_SGLANG_URL" not in os.environ, reason="no real SGLang runs here")
class TestSGLang(SamplerSuite):
    """A real SGLang, started by hand."""

    @pytest.fixture(scope="class")
    def url(self) -> str:
        return os.environ["LONGSHELL_SGLANG_URL"]

    @pytest.fixture(scope="class")
    def folder(self) -> Path:
        return Path(os.environ["LONGSHELL_SGLANG_MODEL"])

    @pytest.fixture(scope="class")
    def other_folder(self) -> Path:
        return Path(os.environ["LONGSHELL_SGLANG_OTHER_MODEL"])

    @pytest.fixture(scope="class")
    def oracle(self, folder: Path) -> Oracle:
        return Oracle(folder)

    @pytest.fixture(scope="class")
    def other_oracle(self, other_folder: Path) -> Oracle:
        return Oracle(other_folder)
