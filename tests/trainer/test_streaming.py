"""Weights that leave a trainer of several processes in pieces.

Found by a reader: a trainer of several processes brought whole layers to the process that publishes, 10 GB each of a
model of 122 B, whatever the bucket; the bound was tested on a trainer of one process alone.
"""

from __future__ import annotations

import mmap
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from components.config import ModelConfig
from components.publish.collective import buckets
from components.trainer.megatron import RemoteTrainer
from components.trainer.megatron.weights import EXPERTS, expected_shapes, pieces
from components.trainer.ranks import Ranks
from tests.conformance.trainer_suite import weights_in
from tests.trainer.conftest import HYBRID, MODEL
from tests.trainer.test_layouts import LAYOUTS, trainer_config

WIDE = MODEL.model_copy(update={"num_experts": 16, "vocab_size": 128, "moe_intermediate_size": 32})
"""Whose layers are an order larger than any of its tensors."""
HEADS = 4096
"""Bytes of a message beside its arrays, at most."""


class Held:
    """The bytes of weights in this process: of messages, and of tensors that were copied out of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, bound: int) -> None:
        held, plain = self, mmap.mmap
        self.bound, self.alive, self.most = bound, 0, 0
        self.spans: dict[int, tuple[int, int]] = {}

        class Counted(plain):  # type: ignore[misc, valid-type]
            def __init__(self, *_: Any, **__: Any) -> None:
                start = np.frombuffer(self, np.uint8).ctypes.data
                held.spans[start] = (start, start + len(self))
                held.add(self, len(self), start)

        monkeypatch.setattr(mmap, "mmap", Counted)

    def add(self, what: Any, size: int, start: int = 0) -> None:
        self.alive += size
        weakref.finalize(what, self._gone, size, start)
        self._measure()

    def tensor(self, tensor: Tensor) -> None:
        address = tensor.data_ptr()
        if not any(first <= address < last for first, last in self.spans.values()):
            self.add(tensor, tensor.nbytes)

    def _measure(self) -> None:
        until = time.monotonic() + 1
        while self.most <= self.bound < self.alive and time.monotonic() < until:
            time.sleep(0.001)
        self.most = max(self.most, self.alive)

    def _gone(self, size: int, start: int) -> None:
        self.alive -= size
        self.spans.pop(start, None)


@pytest.mark.parametrize("share", [0.3, 3.0], ids=["a bucket of less than a tensor", "of several"])
@pytest.mark.parametrize("name", ["tp2 ep2", "pp2"])
def test_what_publishing_takes_is_a_bucket_and_a_tensor_whatever_the_layers_are(
    ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, share: float
) -> None:
    trainer = RemoteTrainer(ranks, WIDE, trainer_config(**LAYOUTS[name]), seed=3)
    trainer.save_hf(tmp_path / "hf")
    saved = weights_in(tmp_path / "hf")
    largest, total = max(x.nbytes for x in saved.values()), sum(x.nbytes for x in saved.values())
    bucket_bytes = int(share * largest)
    held = Held(monkeypatch, max(bucket_bytes, largest) + largest + HEADS)
    seen = set[str]()

    def stream() -> Any:
        for key, tensor in trainer.stream_hf():
            held.tensor(tensor)
            yield key, tensor
            del tensor

    for bucket, _ in buckets(stream(), bucket_bytes):
        assert all(tensor.is_contiguous() and tensor.equal(saved[key]) for key, tensor in bucket)
        seen |= {key for key, _ in bucket}
        bucket.clear()
    assert seen == saved.keys()
    assert largest < held.most <= held.bound
    assert total > 2 * held.bound, "a bound that the whole model meets says nothing"


@pytest.mark.parametrize("model", [MODEL, HYBRID, WIDE], ids=["plain", "hybrid", "wide"])
def test_every_tensor_is_in_one_piece_of_one_layer_and_of_half_of_the_largest_at_most(model: ModelConfig) -> None:
    sizes = {name: int(np.prod(shape)) for name, shape in expected_shapes(model).items()}
    made = pieces(model)
    assert [name for piece in made for name in piece.names] == list(sizes)
    for piece in made:
        assert len(piece.names) == 1 or sum(sizes[name] for name in piece.names) <= max(sizes.values()) // 2
        inside = {name.startswith(f"model.layers.{piece.layer}.") for name in piece.names}
        assert inside == {piece.layer is not None}
        named = {int(name.split(EXPERTS)[1].split(".")[0]) for name in piece.names if EXPERTS in name}
        assert named == set(piece.experts or ())
