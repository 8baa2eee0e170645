"""The shared suite for both ways of publishing, against embedded servers, and what only one of them does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from components.config import PublishConfig
from components.errors import ConfigError
from components.publish import CollectivePublisher, DiskPublisher, Publisher, open_publisher
from components.publish.collective import buckets
from components.sampler import ModelGeometry, SamplerServer, SGLangClient
from tests.conformance.publisher_suite import FolderSource, ReplicaSuite, draw
from tests.sampler.conftest import CONTEXT

TIMEOUT_S = 120.0
BUCKET_BYTES = 10_000
"""Fewer than a model's bytes: some ten buckets."""


class TestDisk(ReplicaSuite):
    @pytest.fixture
    def publisher(self, tmp_path: Path) -> Publisher:
        return open_publisher(PublishConfig(method="disk", timeout_s=TIMEOUT_S), tmp_path / "weights")

    async def test_a_sampler_that_cannot_load_the_folder_keeps_its_weights_and_is_reported(
        self, publisher: Publisher, clients: list[SGLangClient], model_folder: Path, tmp_path: Path
    ) -> None:
        await publisher.publish(clients, FolderSource(model_folder), 81)
        broken = tmp_path / "broken"
        shutil.copytree(model_folder, broken)
        weights = broken / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
        publication = await publisher.publish(clients, FolderSource(broken), 82)
        assert sorted(publication.lost) == [0, 1]
        assert "model.safetensors" in str(publication.lost[0])
        await clients[0].resume()
        assert (await draw(clients[0])).weight_version == 81
        assert (await publisher.publish(clients, FolderSource(model_folder), 83)).lost == {}


class TestCollective(ReplicaSuite):
    @pytest.fixture
    def publisher(self, tmp_path: Path) -> Publisher:
        config = PublishConfig(method="collective", timeout_s=TIMEOUT_S, bucket_mb=BUCKET_BYTES / 2**20)
        return open_publisher(config, tmp_path / "unused")

    async def test_a_stream_that_is_no_whole_model_is_refused_by_every_sampler(
        self, publisher: Publisher, clients: list[SGLangClient], model_folder: Path
    ) -> None:
        class Short(FolderSource):
            def stream_hf(self) -> Iterator[tuple[str, Tensor]]:
                yield from list(super().stream_hf())[:-1]

        publication = await publisher.publish(clients, Short(model_folder), 95)
        assert sorted(publication.lost) == [0, 1]
        assert "has no tensor" in str(publication.lost[0])
        assert (await publisher.publish(clients, FolderSource(model_folder), 96)).lost == {}


def test_buckets_keep_the_order_hold_the_limit_and_mark_the_last() -> None:
    tensors = [(str(size), torch.zeros(size, dtype=torch.uint8)) for size in (5, 5, 3, 20, 1, 9, 1)]
    cut = [([name for name, _ in bucket], last) for bucket, last in buckets(tensors, 10)]
    assert cut == [(["5", "5"], False), (["3"], False), (["20"], False), (["1", "9"], False), (["1"], True)]


def test_nccl_without_a_gpu_is_refused_before_anything_starts(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match="nccl needs a GPU"):
        open_publisher(PublishConfig(method="collective", backend="nccl"), tmp_path)


async def test_a_sampler_that_was_dead_before_is_reported(
    servers: Sequence[SamplerServer], model_folder: Path, tmp_path: Path
) -> None:
    geometry = ModelGeometry.read(model_folder, CONTEXT)
    dead = SGLangClient("http://127.0.0.1:9", model=geometry)
    alive = SGLangClient(servers[0].url, model=geometry)
    publishers = [DiskPublisher(tmp_path / "w", TIMEOUT_S), CollectivePublisher("127.0.0.1", "gloo", 1, TIMEOUT_S)]
    try:
        for version, publisher in enumerate(publishers, 101):
            publication = await publisher.publish([dead, alive], FolderSource(model_folder), version)
            assert list(publication.lost) == [0]
            assert (await draw(alive)).weight_version == version
    finally:
        await dead.close()
        await alive.close()
