"""What every Publisher must do. A subclass gives the fixtures `publisher` and `servers`, which serve `model_folder`."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from torch import Tensor

from components.errors import FaultCause, InfraFault
from components.publish import Publisher
from components.records import Sampling
from components.sampler import Generation, ModelGeometry, SamplerServer, SGLangClient
from tests.sampler.conftest import CONTEXT, Oracle

PROMPT = [5, 9, 60, 3, 44, 17, 8, 9, 60, 3, 44, 17, 8, 21, 30, 31, 32, 33]


@dataclass
class FolderSource:
    """A source that gives the weights of a folder, and calls `halfway` in the middle of streaming them."""

    folder: Path
    halfway: Callable[[], None] = field(default=lambda: None)

    def save_hf(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder, folder)

    def stream_hf(self) -> Iterator[tuple[str, Tensor]]:
        tensors = load_file(self.folder / "model.safetensors")
        for index, (name, tensor) in enumerate(tensors.items()):
            if index == len(tensors) // 2:
                self.halfway()
            yield name, tensor


class FailingSource(FolderSource):
    """Whose trainer dies when it is asked for weights."""

    def save_hf(self, folder: Path) -> None:
        raise InfraFault(FaultCause.TRAINER, "rank 1 was killed")

    def stream_hf(self) -> Iterator[tuple[str, Tensor]]:
        yield from list(super().stream_hf())[:2]
        raise InfraFault(FaultCause.TRAINER, "rank 1 was killed")


def on_the_way(
    source: FolderSource, client: SGLangClient, call: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Makes `call`, once, when samplers are paused and weights are on their way to `client`, in whatever way."""
    left, update = [call], client.update_weights

    def once() -> None:
        while left:
            left.pop()()

    async def updating(path: str, version: int) -> None:
        once()
        await update(path, version)

    source.halfway = once
    monkeypatch.setattr(client, "update_weights", updating)


async def draw(client: SGLangClient, new: int = 8) -> Generation:
    return await client.generate(
        PROMPT, sampling=Sampling(), max_new_tokens=new, stop_token_ids=(), routing_start=0, session_id="s"
    )


async def under_way(client: SGLangClient) -> asyncio.Task[Generation]:
    """A long answer that is being drawn; one that was over before that was seen is asked for again."""
    async with asyncio.timeout(60):
        while True:
            running = asyncio.create_task(draw(client, CONTEXT - 40))
            while not running.done():
                if (await client._send("POST", "/flush_cache", {}, 60))[0] == 400:
                    return running
                await asyncio.sleep(0.01)
            await running


def assert_drawn_by(answer: Generation, oracle: Oracle) -> None:
    ids = PROMPT + answer.output_ids.tolist()
    forced = oracle(ids)
    np.testing.assert_allclose(answer.logprobs, forced.logprobs(ids, len(PROMPT)), atol=1e-4, rtol=0)
    np.testing.assert_array_equal(answer.routing, forced.experts[:-1])


class PublisherSuite:
    """Inherit, give the fixtures, and run."""

    @pytest.fixture
    async def clients(self, servers: Sequence[SamplerServer], model_folder: Path) -> AsyncIterator[list[SGLangClient]]:
        geometry = ModelGeometry.read(model_folder, CONTEXT)
        made = [SGLangClient(server.url, model=geometry, request_timeout_s=60) for server in servers]
        yield made
        for client in made:
            await client.close()

    async def test_every_sampler_answers_with_the_published_weights_and_nothing_cached(
        self,
        publisher: Publisher,
        clients: list[SGLangClient],
        model_folder: Path,
        other_folder: Path,
        oracle: Oracle,
        other_oracle: Oracle,
    ) -> None:
        for folder, reference, version in ((other_folder, other_oracle, 31), (model_folder, oracle, 32)):
            publication = await publisher.publish(clients, FolderSource(folder), version)
            assert (publication.version, publication.lost) == (version, {})
            for client in clients:
                answer = await draw(client)
                assert (answer.weight_version, answer.cached_tokens) == (version, 0)
                assert_drawn_by(answer, reference)

    async def test_what_runs_is_aborted_and_what_comes_meanwhile_is_drawn_by_the_new_weights(
        self,
        publisher: Publisher,
        clients: list[SGLangClient],
        other_folder: Path,
        other_oracle: Oracle,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        running = await under_way(clients[0])
        late: list[asyncio.Task[Generation]] = []
        source = FolderSource(other_folder)
        on_the_way(source, clients[0], lambda: late.append(asyncio.create_task(draw(clients[0]))), monkeypatch)
        publication = await publisher.publish(clients[:1], source, 41)
        assert publication.lost == {}
        assert (await running).finish_reason == "abort"
        answer = await late[0]
        assert answer.weight_version == 41
        assert_drawn_by(answer, other_oracle)

    async def test_a_source_that_fails_costs_no_sampler_and_brings_none_to_other_weights(
        self,
        publisher: Publisher,
        clients: list[SGLangClient],
        model_folder: Path,
        other_folder: Path,
        oracle: Oracle,
        other_oracle: Oracle,
    ) -> None:
        assert (await publisher.publish(clients, FolderSource(other_folder), 50)).lost == {}
        with pytest.raises(InfraFault, match="rank 1 was killed"):
            await publisher.publish(clients, FailingSource(model_folder), 51)
        asked = [asyncio.create_task(draw(client)) for client in clients]
        await asyncio.sleep(0.3)
        assert (await publisher.publish(clients, FolderSource(model_folder), 52)).lost == {}
        for task in asked:
            answer = await task
            assert answer.weight_version in (50, 52), "served all the time, or held until now"
            assert_drawn_by(answer, oracle if answer.weight_version == 52 else other_oracle)


class ReplicaSuite(PublisherSuite):
    """Also what one sampler's end means for the others; `servers` are two that may be killed."""

    async def test_a_sampler_that_is_killed_on_the_way_is_reported_and_the_others_serve(
        self,
        publisher: Publisher,
        servers: Sequence[SamplerServer],
        clients: list[SGLangClient],
        other_folder: Path,
        other_oracle: Oracle,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        source = FolderSource(other_folder)
        on_the_way(source, clients[0], lambda: os.kill(servers[0].pid, signal.SIGKILL), monkeypatch)
        publication = await publisher.publish(clients, source, 61)
        assert list(publication.lost) == [0]
        assert publication.lost[0].cause is FaultCause.SAMPLER
        assert publication.seconds < 60, "half of its deadline is what one that hangs may cost"
        assert_drawn_by(await draw(clients[1]), other_oracle)
        servers[0].restart(other_folder, 61, seed=0)
        answer = await draw(clients[0])
        assert answer.weight_version == 61
        assert_drawn_by(answer, other_oracle)

    @pytest.mark.nightly
    async def test_a_sampler_that_hangs_is_given_up_in_time_and_never_generates_with_torn_weights(
        self,
        publisher: Publisher,
        servers: Sequence[SamplerServer],
        clients: list[SGLangClient],
        model_folder: Path,
        oracle: Oracle,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        source = FolderSource(model_folder)
        on_the_way(source, clients[0], lambda: os.kill(servers[0].pid, signal.SIGSTOP), monkeypatch)
        publication = await replace(publisher, timeout_s=16.0).publish(clients, source, 71)  # type: ignore[type-var]
        os.kill(servers[0].pid, signal.SIGCONT)
        assert list(publication.lost) == [0]
        assert publication.seconds < 50
        assert_drawn_by(await draw(clients[1]), oracle)
        held = asyncio.create_task(draw(clients[0]))
        await asyncio.sleep(0.5)
        assert not held.done()
        assert (await publisher.publish(clients, FolderSource(model_folder), 72)).lost == {}
        answer = await held
        assert answer.weight_version == 72
        assert_drawn_by(answer, oracle)
