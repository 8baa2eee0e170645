"""Makes the miniature's base model: a tokenizer, and weights trained on demonstrations with bad habits."""

from __future__ import annotations

from typing import Any

from components.demonstrations import corpus, train_tokenizer
from components.harness import wording_for
from components.jobs import supervised
from components.jobs.job import Job, main


def stage(job: Job) -> dict[str, Any]:
    """Result: see `supervised.train`."""
    config = job.config
    assert config.base is not None, "the base stage runs only when the campaign trains its base model"
    folder = job.folder / "tokenizer"
    train_tokenizer(
        corpus(config.pool, seed=config.seed),
        vocab_size=config.model.vocab_size,
        folder=folder,
        separator=wording_for(config.harness).separator,
    )
    return supervised.train(job, config.base, start=None, tokenizer_from=folder)


if __name__ == "__main__":
    main(stage)
