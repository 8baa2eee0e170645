"""What a fleet does whoever starts its replicas. A subclass gives the fixture `launch`.

The servers are embedded ones that really run, are killed and stopped by their processes' ids, and are published to.
None of them may be left after a test.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from components.config import PublishConfig
from components.errors import FaultCause, InfraFault, ServiceError
from components.publish import open_publisher
from components.sampler import Generation, ModelGeometry, SGLangClient
from components.sampler.fleet import Fleet, State, open_fleet
from tests.conformance.publisher_suite import FolderSource, on_the_way
from tests.conformance.sampler_suite import tokens
from tests.sampler.conftest import CONTEXT, Oracle
from tests.sampler.fleet.parts import QUICK, Launch, draw, embedded, fleet_of, kill, pid_of, servers_of, until

LONG = CONTEXT - 100


class StoppedClock:
    """A trajectory's clock that only counts."""

    def __init__(self) -> None:
        self.given_back_s = 0.0
        self.stood = 0

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        self.stood += 1
        yield

    def give_back(self, seconds: float) -> None:
        self.given_back_s += seconds


def assert_whole(prompt: list[int], answer: Generation, oracle: Oracle, new: int) -> None:
    """The answer is what this model draws for this prompt, in one piece, with the routing of every position asked."""
    ids = prompt + answer.output_ids.tolist()
    assert (answer.finish_reason, len(answer.output_ids)) == ("length", new)
    forced = oracle(ids)
    np.testing.assert_allclose(answer.logprobs, forced.logprobs(ids, len(prompt)), atol=1e-4, rtol=0)
    np.testing.assert_array_equal(answer.routing, forced.experts[answer.routing_start : -1])


async def busy(fleet: Fleet, place: int, running: int, waiting: int = 0) -> None:
    """Waits until a replica computes so many requests, and so many wait for a slot of it."""
    wanted = {"running": running, "waiting": waiting}
    async with asyncio.timeout(60):
        while (await fleet._clients[place]._call("GET", "/server_info", None, 60))["internal_states"] != [wanted]:
            await asyncio.sleep(0.01)


class FleetSuite:
    """Inherit, give the fixture, and run."""

    @pytest.fixture(autouse=True)
    async def nothing_left(self, model_folder: Path) -> AsyncIterator[None]:
        before = servers_of(model_folder)
        yield
        async with asyncio.timeout(30):  # one may still have been starting
            while servers_of(model_folder) - before:
                await asyncio.sleep(0.05)

    async def test_a_replica_that_is_killed_hands_its_trajectories_over_with_their_routing_whole_and_comes_back(
        self, launch: Launch, model_folder: Path, tmp_path: Path, oracle: Oracle
    ) -> None:
        told: list[str] = []
        clocks = {name: StoppedClock() for name in "abcd"}
        prompts = {name: tokens(ord(name), 40) for name in clocks}
        async with fleet_of(launch, model_folder, tmp_path, told) as fleet:
            url = fleet.url(0)
            first = {name: await draw(fleet, name, prompt) for name, prompt in prompts.items()}
            assert fleet.supervision.load() == {0: 2, 1: 2}
            seconds, starts = {}, {}
            for name, answer in first.items():
                seconds[name] = prompts[name] + answer.output_ids.tolist() + tokens(7, 9)
                starts[name] = len(prompts[name]) + len(answer.output_ids) - 1
            for name, clock in clocks.items():
                fleet._clocks[name] = clock
            pid = pid_of(fleet, 0)
            running = {n: asyncio.create_task(draw(fleet, n, seconds[n], LONG, starts[n])) for n in clocks}
            await busy(fleet, 0, running=2)
            os.kill(pid, signal.SIGKILL)
            for name, task in running.items():
                answer = await task
                assert_whole(seconds[name], answer, oracle, LONG)
                # What was captured before the replica died and what the other returns are the routing of the whole.
                rows = np.concatenate([first[name].routing, answer.routing])
                ids = seconds[name] + answer.output_ids.tolist()
                np.testing.assert_array_equal(rows, oracle(ids).experts[:-1])
                assert (answer.cached_tokens == 0) == (name in "ac"), "the other has to prefill all of it"
            assert {name for name, clock in clocks.items() if clock.given_back_s > 0 and clock.stood} == {"a", "c"}
            await until(fleet, 0, State.SERVING)
            assert told[0].startswith(f"sampler 0 {url} ended with SIGKILL; its last words:\n")
            assert "serving" in told[0], "the end of its log"
            assert told[1:] == [f"sampler 0 runs again at {fleet.url(0)}"]
            assert (await draw(fleet, "e", prompts["a"], 4)).finish_reason == "length"
            assert fleet.supervision.load() == {0: 1, 1: 4}
            metrics = fleet.metrics()
            assert (metrics["fleet/restarts"], metrics["fleet/moved"], metrics["fleet/serving"]) == (1, 2, 2)
            assert (metrics["fleet/draws/0"], metrics["fleet/draws/1"]) == (3, 6)
            assert fleet.metrics()["fleet/draws/1"] == 0

    @pytest.mark.nightly
    async def test_no_two_replicas_and_no_two_lives_draw_alike(
        self, launch: Launch, model_folder: Path, tmp_path: Path
    ) -> None:
        prompt = tokens(1, 30)
        async with fleet_of(launch, model_folder, tmp_path, []) as fleet:
            drawn = [tuple((await draw(fleet, name, prompt, 12)).output_ids.tolist()) for name in "ab"]
            kill(fleet, 0)
            await until(fleet, 0, State.STARTING)
            await until(fleet, 0, State.SERVING)
            drawn.append(tuple((await draw(fleet, "c", prompt, 12)).output_ids.tolist()))
            assert fleet.supervision.load()[0] == 1
        assert len(set(drawn)) == 3

    @pytest.mark.nightly
    @pytest.mark.parametrize("method", ["disk", "collective"])
    async def test_a_replica_that_dies_in_a_publication_serves_again_only_with_the_new_weights(
        self,
        launch: Launch,
        model_folder: Path,
        other_folder: Path,
        tmp_path: Path,
        other_oracle: Oracle,
        method: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        geometry, told = ModelGeometry.read(model_folder, CONTEXT), list[str]()
        weights = tmp_path / "weights"
        publisher = open_publisher(PublishConfig(method=method, timeout_s=20), weights)  # type: ignore[arg-type]
        async with fleet_of(launch, model_folder, tmp_path, told) as fleet:
            held = await fleet.hold()
            waiting = asyncio.create_task(draw(fleet, "a", tokens(1, 20)))
            clients = [SGLangClient(url, model=geometry) for url in held.values()]
            source, pid = FolderSource(other_folder), pid_of(fleet, 1)
            on_the_way(source, clients[1], lambda: os.kill(pid, signal.SIGKILL), monkeypatch)
            publication = await publisher.publish(clients, source, 5)
            assert list(publication.lost) == [1]
            assert not waiting.done(), "nobody draws while weights are exchanged"
            source.save_hf(weights)
            await fleet.release(5, weights, {1: str(publication.lost[1])})
            answer = await waiting
            assert answer.weight_version == 5
            assert_whole(tokens(1, 20), answer, other_oracle, 8)
            assert fleet.supervision.state(1) is not State.SERVING
            await until(fleet, 1, State.SERVING)
            moved = await draw(fleet, "b", tokens(2, 20))
            assert fleet.supervision.load() == {0: 1, 1: 1}
            assert moved.weight_version == 5
            assert_whole(tokens(2, 20), moved, other_oracle, 8)
            for client in clients:
                await client.close()

    @pytest.mark.nightly
    async def test_when_too_few_are_left_every_trajectory_is_told_which_died_and_how(
        self, launch: Launch, model_folder: Path, tmp_path: Path
    ) -> None:
        async with fleet_of(launch, model_folder, tmp_path, [], max_restarts=0) as fleet:
            pids = [pid_of(fleet, place) for place in (0, 1)]
            running = [asyncio.create_task(draw(fleet, name, tokens(3, 20), LONG)) for name in "abc"]
            await busy(fleet, 1, running=1)
            await busy(fleet, 0, running=2)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            for task in running:
                with pytest.raises(ServiceError, match="0 of 2 replicas are left, 1 needed") as lost:
                    await task
                for place in (0, 1):
                    assert f"replica {place} (gone, started 1 times)" in str(lost.value)
                assert str(lost.value).count("SIGKILL") == 2
                assert str(lost.value).count("sampler.server: serving") == 2, "the last lines of both logs"
            with pytest.raises(ServiceError, match="0 of 2"):
                await fleet.release(1, None, {})

    @pytest.mark.nightly
    async def test_a_replica_that_hangs_is_given_up_after_its_deadline_and_its_draws_are_drawn_elsewhere(
        self, launch: Launch, model_folder: Path, tmp_path: Path, oracle: Oracle
    ) -> None:
        told: list[str] = []
        async with fleet_of(launch, model_folder, tmp_path, told, health=QUICK) as fleet:
            pid = pid_of(fleet, 0)
            running = [asyncio.create_task(draw(fleet, name, tokens(4, 20), LONG)) for name in "ab"]
            await busy(fleet, 0, running=1)
            os.kill(pid, signal.SIGSTOP)
            for task in running:
                assert_whole(tokens(4, 20), await task, oracle, LONG)
            await until(fleet, 0, State.SERVING)
            assert pid_of(fleet, 0) != pid
            assert "has not answered for 0.5 s (sampler.health.deadline_s)" in told[0]

    @pytest.mark.nightly
    async def test_an_answer_that_somebody_else_aborts_is_continued_and_an_own_abort_is_returned(
        self, launch: Launch, model_folder: Path, tmp_path: Path, oracle: Oracle
    ) -> None:
        async with fleet_of(launch, model_folder, tmp_path, [], replicas=1, slots=1) as fleet:
            stranger = SGLangClient(fleet.url(0), model=ModelGeometry.read(model_folder, CONTEXT))
            prompt = tokens(5, 20)
            running = asyncio.create_task(draw(fleet, "a", prompt, LONG))
            await busy(fleet, 0, running=1)
            queued = asyncio.create_task(draw(fleet, "b", prompt, 8))
            await busy(fleet, 0, running=1, waiting=1)
            await stranger.abort_all()
            assert_whole(prompt, await running, oracle, LONG)
            assert_whole(prompt, await queued, oracle, 8)
            assert fleet.metrics()["fleet/continued"] == 2
            running = asyncio.create_task(draw(fleet, "a", prompt, LONG))
            await busy(fleet, 0, running=1)
            await fleet.abort_all()
            assert (await running).finish_reason == "abort"
            hounded = asyncio.create_task(draw(fleet, "c", prompt, LONG))
            while not hounded.done():
                await stranger.abort_all()
                await asyncio.sleep(0.02)
            with pytest.raises(InfraFault, match="aborted 4 times") as fault:
                await hounded
            assert fault.value.cause is FaultCause.SAMPLER
            await stranger.close()

    @pytest.mark.nightly
    async def test_a_fleet_of_which_one_does_not_start_does_not_start_and_leaves_nothing(
        self, launch: Launch, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        serving = embedded(model_folder, tmp_path)
        launcher = launch(serving)
        started = launcher.start

        async def start(place: int, start: int) -> str:
            if place == 1:
                raise ServiceError("no GPU is free")
            return await started(place, start)

        monkeypatch.setattr(launcher, "start", start)
        told = r"cannot be started:\nreplica 1 \(down, started 1 times\): no GPU is free"
        with pytest.raises(ServiceError, match=told):
            async with open_fleet(serving, launcher, [].append):
                raise AssertionError("opened")
