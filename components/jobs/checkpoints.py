"""Checkpoints in the store: Hugging Face folders with weights, configuration and tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path

from components.jobs.job import Job
from components.trainer import Trainer

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def publish_checkpoint(job: Job, trainer: Trainer, key: str, *, tokenizer_from: Path) -> None:
    """Puts the actor's weights and the tokenizer of `tokenizer_from` into the store under `key`, in one instant."""
    folder = job.folder / "checkpoint"
    trainer.save_hf(folder)
    for name in TOKENIZER_FILES:
        if (tokenizer_from / name).is_file():
            shutil.copy(tokenizer_from / name, folder / name)
    job.store.put_tree(key, folder)
    shutil.rmtree(folder)
