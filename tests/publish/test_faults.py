"""Faults that the weight updates of other projects had (the public report is named)."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

from components.config import PublishConfig
from components.publish import open_publisher
from components.sampler import ModelGeometry, SamplerServer, SGLangClient
from tests.conformance.publisher_suite import FolderSource
from tests.sampler.conftest import CONTEXT


class Tracked(FolderSource):
    """Counts the bytes of its tensors that are alive when it is asked for the next.

    Attributes:
        bound: what may be alive at once.
        most: what was.
    """

    def __init__(self, folder: Path, bucket_bytes: int) -> None:
        super().__init__(folder)
        self.tensors = load_file(folder / "model.safetensors")
        sizes = [tensor.nbytes for tensor in self.tensors.values()]
        self.largest, self.total = max(sizes), sum(sizes)
        self.bound = max(bucket_bytes, self.largest) + self.largest
        self.alive = self.most = 0

    def stream_hf(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.tensors.items():
            copy = tensor.clone()
            self.alive += copy.nbytes
            weakref.finalize(copy, self._gone, copy.nbytes)
            self._measure()
            yield name, copy
            del copy

    def _measure(self) -> None:
        # A thread of gloo lets go of what it has sent a moment after it has said so.
        until = time.monotonic() + 10
        while self.most <= self.bound < self.alive and time.monotonic() < until:
            time.sleep(0.001)
        self.most = max(self.most, self.alive)

    def _gone(self, size: int) -> None:
        self.alive -= size


@pytest.mark.parametrize("bucket_bytes", [10_000, 30_000], ids=["smaller than a tensor", "of several tensors"])
async def test_a_publication_takes_no_more_than_its_bound_though_a_tensor_is_larger_than_the_bucket(
    servers: list[SamplerServer], model_folder: Path, tmp_path: Path, bucket_bytes: int
) -> None:
    # sglang #8076/#10597, slime's 512 MiB buckets: memory ran out where all of the model was gathered for its update.
    config = PublishConfig(method="collective", timeout_s=100, bucket_mb=bucket_bytes / 2**20)
    publisher, tracked = open_publisher(config, tmp_path / "unused"), Tracked(model_folder, bucket_bytes)
    client = SGLangClient(servers[0].url, model=ModelGeometry.read(model_folder, CONTEXT), request_timeout_s=60)
    try:
        assert (await publisher.publish([client], tracked, 91)).lost == {}
    finally:
        await client.close()
    assert (tracked.largest > bucket_bytes) is (bucket_bytes == 10_000)
    assert tracked.largest < tracked.most <= tracked.bound
    assert tracked.total > 2 * tracked.most, "a bound that the whole model meets says nothing"
