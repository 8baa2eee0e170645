"""The supervised stages: demonstrations in real boxes, or trials that passed, then next-token training on them.

Invariant: what is learned from is in the store before the first step; every record comes with the trainer's state, so
that a killed stage continues at its last whole state and ends in the weights it would have had.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

from components.config import (
    BaseConfig,
    CampaignConfig,
    DemonstrationConfig,
    HabitConfig,
    SftConfig,
    validate,
)
from components.demonstrations import Demonstration, collect, repeats
from components.jobs.checkpoints import publish_checkpoint
from components.jobs.commits import Commits, refused_states, resume
from components.jobs.job import Job, log
from components.learning.corpus import CORPUS, load_corpus, save_corpus
from components.learning.supervised import Supervised
from components.naming import checkpoint_key, demonstrations_key
from components.planner import require
from components.pool import Split, generate
from components.records import Sample
from components.sandbox import open_backend
from components.tito import BpeTokenizer
from components.trainer import Trainer
from components.trainer.megatron import open_trainer

WORKERS = 2
"""Processes that collect demonstrations; each drives its own boxes."""
STAGES = ("base", "sft")
"""The stages that demonstrate. No two of them see the same tasks."""
RECORD_EVERY = 100
"""Steps between two records; the last step has one too."""


def train(job: Job, config: BaseConfig | SftConfig, *, start: Path | None, tokenizer_from: Path) -> dict[str, Any]:
    """Trains on demonstrations, or on the samples that the inputs name, from the weights in `start`, or fresh ones.

    Result: {"checkpoint", "step", "metrics", "demonstrations": {"n", "pass_rate"} or "samples": {"n"},
    "refused_states"}.
    """
    require(job.config)
    corpus, summary = _corpus(job, config.demonstrations, tokenizer_from)
    run = Supervised(corpus, config, job.config.seed)
    total = run.steps()
    position = resume(job, job.stage, total, begins=True)
    key = checkpoint_key(job.campaign, job.stage)
    seed = job.config.seed if start is None and position.state is None else None
    with (
        Commits(job, job.stage, first=position.step, total=total) as commits,
        open_trainer(
            job.config.model, job.config.trainer, actor=config.optimizer, seed=seed, logs=job.folder
        ) as trainer,
    ):
        if position.state is not None:
            log.info("continuing at step %d", position.step)
            trainer.load(position.state)
        elif start is not None:
            trainer.load_hf(start)
        _steps(job, run, trainer, commits, position.step, total)
        publish_checkpoint(job, trainer, key, tokenizer_from=tokenizer_from)
    return {
        "checkpoint": key,
        "step": total,
        "metrics": job.record(job.stage, total - 1)["metrics"],
        **summary,
        "refused_states": refused_states(job, job.stage),
    }


def _steps(job: Job, run: Supervised, trainer: Trainer, commits: Commits, first: int, total: int) -> None:
    """Runs to the end. Metrics of a record are means over the steps since the last."""
    losses: list[float] = []
    norms: list[float] = []
    tokens = 0.0
    for step, lr_share, batch in run.batches(first):
        metrics = trainer.sft_step(batch, lr_share=lr_share, aux_loss_coef=run.config.aux_loss_coef)
        losses.append(metrics["loss"])
        norms.append(metrics["grad_norm"])
        tokens += metrics["tokens"]
        if (step + 1) % RECORD_EVERY == 0 or step + 1 == total:
            figures = {"loss": fmean(losses), "grad_norm": fmean(norms), "tokens": tokens, "lr_share": lr_share}
            commits.commit(step, trainer, {f"{job.stage}/{name}": value for name, value in figures.items()})
            log.info("step %d of %d: loss %.4f", step + 1, total, figures["loss"])
            losses, norms, tokens = [], [], 0.0


def _corpus(job: Job, wanted: DemonstrationConfig | None, tokenizer_from: Path) -> tuple[list[Sample], dict[str, Any]]:
    """What is learned from, and what the result says of it."""
    if wanted is None:
        samples = load_corpus(job.store.tree(job.inputs["samples"]) / CORPUS)
        log.info("%d samples of trials that passed", len(samples))
        return samples, {"samples": {"n": len(samples)}}
    demonstrations, summary = _demonstrations(job, wanted, tokenizer_from)
    extra = repeats(wanted.repeats, vocab_size=job.config.model.vocab_size, seed=job.config.seed)
    return [*demonstrations, *extra], {"demonstrations": summary}


def _demonstrations(job: Job, wanted: DemonstrationConfig, tokenizer_from: Path) -> tuple[list[Sample], dict[str, Any]]:
    """The stage's demonstrations: from the store, or collected now and put there."""
    key = demonstrations_key(job.campaign, job.stage)
    summary_key = f"{key}.json"
    if not job.store.exists(summary_key):
        log.info("collecting %d demonstrations", wanted.trajectories)
        found = _collect(job, wanted.habits, wanted.trajectories, tokenizer_from)
        folder = job.folder / "demonstrations"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        save_corpus(folder / CORPUS, [sample for samples, _ in found for sample in samples])
        job.store.put_tree(key, folder)
        passed = sum(passed for _, passed in found)
        job.store.put_json(summary_key, {"n": len(found), "pass_rate": passed / len(found)})
    summary = job.store.get_json(summary_key)
    log.info("%d demonstrations, %.1f%% of them pass", summary["n"], 100 * summary["pass_rate"])
    return load_corpus(job.store.tree(key) / CORPUS), summary


Found = tuple[Sequence[Sample], bool]


def _collect(job: Job, habits: HabitConfig, count: int, tokenizer_from: Path) -> list[Found]:
    """Demonstrations of the first `count` demonstration tasks, each process taking every `WORKERS`-th."""
    context = get_context("spawn")
    config = job.config.model_dump(mode="json")
    with ProcessPoolExecutor(WORKERS, mp_context=context) as pool:
        parts = [
            pool.submit(
                _collect_part, config, job.stage, habits, range(part, count, WORKERS), tokenizer_from, job.folder
            )
            for part in range(WORKERS)
        ]
        return [found for part in parts for found in part.result()]


def _collect_part(
    document: dict[str, Any], stage: str, habits: HabitConfig, numbers: range, tokenizer_from: Path, state: Path
) -> list[Found]:
    config = validate(document, f"config of {stage}")
    return asyncio.run(_collect_async(config, stage, habits, numbers, tokenizer_from, state))


async def _collect_async(
    config: CampaignConfig, stage: str, habits: HabitConfig, numbers: range, tokenizer_from: Path, state: Path
) -> list[Found]:
    seed = config.seed * len(STAGES) + STAGES.index(stage)
    tasks = islice(generate(config.pool, Split.DEMONSTRATION, seed=seed), numbers.start, numbers.stop, numbers.step)
    backend = await open_backend(config.sandbox, state)
    try:
        demonstrations: list[Demonstration] = await collect(
            tasks,
            backend,
            habits=habits,
            seed=seed,
            tokenizer=BpeTokenizer.load(tokenizer_from),
            harness=config.harness,
            sandbox=config.sandbox,
        )
    finally:
        await backend.close()
    return [(demonstration.samples, demonstration.passed) for demonstration in demonstrations]
