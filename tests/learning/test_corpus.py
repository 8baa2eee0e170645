"""A corpus comes back as it was, or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from components.errors import StoreError
from components.learning.corpus import load_corpus, save_corpus
from components.records import Sample


def _sample(n: int) -> Sample:
    mask = np.arange(n) % 3 == 1
    logprobs = np.where(mask, np.nan, 0).astype(np.float32)
    return Sample(np.arange(n, dtype=np.int32), mask, logprobs, None, "a")


def test_tokens_and_masks_come_back_in_order(tmp_path: Path) -> None:
    samples = [_sample(n) for n in (5, 2, 300)]
    save_corpus(tmp_path / "c.safetensors", samples)
    for before, after in zip(samples, load_corpus(tmp_path / "c.safetensors"), strict=True):
        assert np.array_equal(before.tokens, after.tokens)
        assert np.array_equal(before.loss_mask, after.loss_mask)


def test_a_missing_or_torn_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    with pytest.raises(StoreError, match="cannot be read"):
        load_corpus(path)
    save_corpus(path, [_sample(40)])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StoreError, match="cannot be read"):
        load_corpus(path)


def test_a_folder_that_is_not_there_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be written"):
        save_corpus(tmp_path / "nowhere" / "c.safetensors", [_sample(4)])
