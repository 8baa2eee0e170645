"""Supervised samples as one file: ids and masks end to end.

Invariant: the file is whole or absent; what is loaded equals what was saved in tokens, masks and order.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from components.errors import StoreError
from components.records import Sample

CORPUS = "corpus.safetensors"
"""Its name in a folder of the store."""


def save_corpus(path: Path, samples: Sequence[Sample]) -> None:
    """Writes tokens int32[sum N], loss_mask bool[sum N] and lengths int64[samples].

    Raises:
        StoreError: the file cannot be written.
    """
    arrays = {
        "tokens": np.concatenate([sample.tokens for sample in samples]).astype(np.int32),
        "loss_mask": np.concatenate([sample.loss_mask for sample in samples]),
        "lengths": np.array([len(sample.tokens) for sample in samples], dtype=np.int64),
    }
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with temporary.open("wb") as file:
            file.write(save(arrays))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError as error:
        raise StoreError(f"corpus {path} cannot be written: {error.strerror}") from error


def load_corpus(path: Path) -> list[Sample]:
    """Reads what `save_corpus` wrote. The samples carry no log-probs and no routing.

    Raises:
        StoreError: the file is missing or damaged.
    """
    try:
        arrays = load_file(path)
        ends = np.cumsum(arrays["lengths"])
        tokens = np.split(arrays["tokens"], ends[:-1])
        masks = np.split(arrays["loss_mask"], ends[:-1])
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise StoreError(f"corpus {path} cannot be read: {error}") from error
    return [
        Sample(ids, mask, np.zeros(len(ids), dtype=np.float32), None, f"sample-{index}")
        for index, (ids, mask) in enumerate(zip(tokens, masks, strict=True))
    ]
