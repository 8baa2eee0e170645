"""Checkpoints in the store: Hugging Face folders with weights, configuration and tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from components.jobs.job import Job
from components.naming import tokenizer_key

if TYPE_CHECKING:  # Evaluations read checkpoints without torch, which is imported for seconds.
    from components.trainer import Trainer

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def publish_checkpoint(job: Job, trainer: Trainer, key: str, *, tokenizer_from: Path) -> None:
    """Puts the actor's weights and the tokenizer of `tokenizer_from` into the store under `key`, in one instant."""
    folder = job.folder / "checkpoint"
    trainer.save_hf(folder)
    _copy_tokenizer(tokenizer_from, folder)
    job.store.put_tree(key, folder)
    shutil.rmtree(folder)


def keep_tokenizer(job: Job, checkpoint: Path) -> None:
    """Puts the tokenizer of a checkpoint into the store, by itself: who reads trials needs no weights."""
    key = tokenizer_key(job.campaign)
    if not job.store.exists(key):
        folder = job.folder / "tokenizer"
        folder.mkdir(exist_ok=True)
        _copy_tokenizer(checkpoint, folder)
        job.store.put_tree(key, folder)


def _copy_tokenizer(source: Path, folder: Path) -> None:
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copy(source / name, folder / name)
