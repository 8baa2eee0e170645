"""Whom a broken broadcast costs: the one that is to blame, and no other.

Found by a reader: one replica that was out of memory, and still told its version, cost all of them: whichever error
came first was taken for everybody's, every attempt failed alike, and then all were struck off, one with another's
address.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import torch
from aiohttp import web
from torch import Tensor

from components.errors import FaultCause, InfraFault
from components.publish import CollectivePublisher
from components.sampler import GroupAddress, ModelGeometry, SamplerServer, SGLangClient, TensorSpec
from components.sampler.server.delivery import Delivery
from components.sampler.server.driver import WeightUpdateError
from tests.conformance.publisher_suite import FolderSource, assert_drawn_by, draw
from tests.sampler.conftest import CONTEXT, Oracle

VERSION = 7
STAGES = ("ranks", "join_group", "begin_update", "receive", "end_update")


class Source:
    """Four tensors, each a bucket; counts how often they were asked for."""

    def __init__(self) -> None:
        self.streams = 0
        self.tensors = {f"weight.{number}": torch.full((3,), float(number)) for number in range(4)}

    def save_hf(self, folder: Path) -> None:
        raise AssertionError("weights are broadcast")

    def stream_hf(self) -> Iterator[tuple[str, Tensor]]:
        self.streams += 1
        yield from self.tensors.items()


class Member:
    """A sampler that really joins groups and receives.

    Args:
        fails: the call that it answers with an error.
        breaks: it leaves the group in the middle of the broadcast, and says nothing.
        hangs: the call that it never answers.
    """

    def __init__(self, *, fails: str = "", breaks: bool = False, hangs: str = "") -> None:
        self.weight_version = 0
        self.served: dict[str, Tensor] = {}
        self.resumed = False
        self._delivery = Delivery()
        self._fails, self._breaks, self._hangs = fails, breaks, hangs

    async def _meet(self, call: str) -> None:
        if call == self._fails:
            raise InfraFault(FaultCause.SAMPLER, f"{call} of this one: out of memory")
        if call == self._hangs:
            await asyncio.Event().wait()

    async def pause(self) -> None: ...

    async def flush_cache(self) -> None: ...

    async def healthy(self) -> bool:
        return True

    async def info(self) -> Member:
        return self

    async def resume(self) -> None:
        self.resumed = True

    async def ranks(self) -> int:
        await self._meet("ranks")
        return 1

    async def join_group(self, group: GroupAddress, first_rank: int) -> None:
        await self._meet("join_group")
        await self._delivery.join(group, first_rank)

    async def leave_group(self, name: str) -> None:
        try:
            self._delivery.leave(name)
        except WeightUpdateError as error:
            raise InfraFault(FaultCause.SAMPLER, str(error)) from error

    async def begin_update(self) -> None:
        await self._meet("begin_update")
        if self._delivery._arrived is not None:
            self._delivery.end()
        self._delivery.begin()

    async def receive(self, tensors: Sequence[TensorSpec], group: str, version: int, *, last: bool) -> None:
        if tensors[0].name == "weight.2":
            await self._meet("receive")
            if self._breaks:
                self._delivery.leave(group)
                await asyncio.Event().wait()
        try:
            await self._delivery.receive(tensors, group, str(version))
        except WeightUpdateError as error:
            raise InfraFault(FaultCause.SAMPLER, str(error)) from error

    async def end_update(self, version: int) -> None:
        await self._meet("end_update")
        self.served = self._delivery.end()[0]
        self.weight_version = version


async def publish(members: list[Member], source: Source, timeout_s: float = 100.0) -> dict[int, InfraFault]:
    publisher = CollectivePublisher("127.0.0.1", "gloo", 1, timeout_s)
    return dict((await publisher.publish(members, source, VERSION)).lost)  # type: ignore[arg-type]


def assert_serves(member: Member, source: Source) -> None:
    assert member.resumed
    assert member.weight_version == VERSION
    assert member.served.keys() == source.tensors.keys()
    assert all(torch.equal(member.served[name], tensor) for name, tensor in source.tensors.items())


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("place", [0, 2])
async def test_one_of_three_that_fails_at_any_stage_is_lost_with_its_own_words_and_the_others_resume(
    stage: str, place: int
) -> None:
    source = Source()
    members = [Member(fails=stage if number == place else "") for number in range(3)]
    lost = await publish(members, source)
    assert list(lost) == [place]
    assert str(lost[place]) == f"sampler: {stage} of this one: out of memory"
    assert source.streams == (2 if stage == "receive" else 1), "whom it costs is known after the first attempt"
    for member in members:
        if member is members[place]:
            assert not member.resumed
        else:
            assert_serves(member, source)


async def test_two_that_fail_at_two_stages_cost_no_third() -> None:
    source = Source()
    members = [Member(fails="receive"), Member(), Member(fails="begin_update")]
    assert sorted(await publish(members, source)) == [0, 2]
    assert_serves(members[1], source)


async def test_one_that_breaks_the_group_without_a_word_is_found_by_serving_each_by_itself() -> None:
    source = Source()
    members = [Member(), Member(breaks=True), Member()]
    lost = await publish(members, source)
    assert list(lost) == [1]
    assert "broke" in str(lost[1])
    assert source.streams == 2 + 3
    assert_serves(members[0], source)
    assert_serves(members[2], source)


@pytest.mark.nightly
async def test_one_that_never_joins_is_found_too() -> None:
    source = Source()
    members = [Member(), Member(), Member(hangs="join_group")]
    lost = await publish(members, source, timeout_s=40.0)
    assert list(lost) == [2]
    assert_serves(members[0], source)
    assert_serves(members[1], source)


async def test_an_address_that_the_trainer_cannot_listen_on_costs_no_sampler() -> None:
    member = Member()
    publisher = CollectivePublisher("192.0.2.1", "gloo", 1, 2.0)  # of documentation: nobody's
    with pytest.raises(InfraFault, match="cannot listen on 192") as caught:
        await publisher.publish([member], Source(), VERSION)  # type: ignore[list-item]
    assert caught.value.cause is FaultCause.TRAINER
    assert not member.resumed


@pytest.mark.parametrize("cause", [FaultCause.TRAINER, FaultCause.SAMPLER])
async def test_what_the_source_raises_is_raised_at_once_and_leaves_every_sampler_paused(cause: FaultCause) -> None:
    class Failing(Source):
        def stream_hf(self) -> Iterator[tuple[str, Tensor]]:
            yield from list(super().stream_hf())[:2]
            raise InfraFault(cause, "rank 1 was killed")

    source, members = Failing(), [Member(), Member()]
    with pytest.raises(InfraFault, match="rank 1 was killed"):
        await publish(members, source)
    assert source.streams == 1
    assert not any(member.resumed for member in members)


@asynccontextmanager
async def refusing(url: str, route: str) -> AsyncIterator[str]:
    """The address of a server that answers one route as if it was out of memory; `url` answers the others."""

    async def pass_on(request: web.Request) -> web.Response:
        if request.path == route:
            return web.json_response({"success": False, "message": "CUDA out of memory"}, status=400)
        async with session.request(request.method, url + request.path, data=await request.read()) as answer:
            return web.Response(body=await answer.read(), status=answer.status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", pass_on)
    runner = web.AppRunner(app)
    async with aiohttp.ClientSession() as session:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


@pytest.mark.parametrize(
    "route",
    ["/init_weights_update_group", "/begin_weight_update", "/update_weights_from_distributed", "/end_weight_update"],
)
async def test_a_server_that_refuses_one_call_and_tells_its_version_costs_no_other(
    servers: list[SamplerServer], other_folder: Path, other_oracle: Oracle, route: str
) -> None:
    geometry = ModelGeometry.read(other_folder, CONTEXT)
    publisher = CollectivePublisher("127.0.0.1", "gloo", 30_000, 100.0)
    async with refusing(servers[0].url, route) as url:
        clients = [SGLangClient(address, model=geometry, request_timeout_s=60) for address in (url, servers[1].url)]
        try:
            publication = await publisher.publish(clients, FolderSource(other_folder), 111)
            assert list(publication.lost) == [0]
            assert f"{url}{route}" in str(publication.lost[0])
            assert "CUDA out of memory" in str(publication.lost[0])
            assert_drawn_by(await draw(clients[1]), other_oracle)
            clients.append(SGLangClient(servers[0].url, model=geometry, request_timeout_s=60))
            assert (await publisher.publish(clients[1:], FolderSource(other_folder), 112)).lost == {}
        finally:
            for client in clients:
                await client.close()
