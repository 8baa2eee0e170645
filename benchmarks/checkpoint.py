"""How long a step waits for its commit: written before the next step begins, and behind it (`jobs.commits`).

A trainer with actor, critic and snapshot takes steps of PPO on random streams, in alternation waiting for its commit
and not, so both see the same machine. `slower` is what the writing costs the step that runs beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.machine import describe
from components.artifacts import LocalStore
from components.config import ModelConfig, load
from components.jobs.commits import Commits
from components.jobs.job import Job
from components.records import Sample
from components.trainer import LearnItem, Trainer
from components.trainer.megatron import open_trainer

MINIATURE = Path(__file__).parents[1] / "configs" / "miniature.yaml"
STREAMS = 64
TOKENS = 256


def items(model: ModelConfig) -> list[LearnItem]:
    """Streams of random tokens of which half are trained on. Nothing is replayed."""
    generator = np.random.default_rng(0)
    made = []
    for number in range(STREAMS):
        mask = np.arange(TOKENS) >= TOKENS // 2
        logprobs = np.where(mask, -6.0, 0.0).astype(np.float32)
        tokens = generator.integers(0, model.vocab_size, TOKENS).astype(np.int32)
        sample = Sample(tokens, mask, logprobs, None, f"t{number}")
        returns = np.where(mask, 0.5, 0.0).astype(np.float32)
        made.append(LearnItem(sample, returns, logprobs, returns, np.zeros_like(returns)))
    return made


def step(trainer: Trainer, batch: list[LearnItem]) -> float:
    """Critic, then actor; seconds."""
    started = time.perf_counter()
    trainer.critic_step(batch)
    trainer.actor_step(batch, clip=0.2, temperature=1.0, replay=False)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--hidden", type=int, default=512, help="width of the model; the miniature's is 128")
    arguments = parser.parse_args()
    config = load(MINIATURE, [f"model.hidden_size={arguments.hidden}"])
    batch = items(config.model)
    before, behind, alone, beside = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        job = Job("rl", "benchmark", 1, config, {}, LocalStore(Path(folder) / "store"), Path(folder))
        with (
            Commits(job, "rl", first=0, total=2 * arguments.rounds) as commits,
            open_trainer(config.model, config.trainer, actor=config.ppo.actor, critic=config.ppo.critic) as trainer,
        ):
            step(trainer, batch)
            for round_ in range(arguments.rounds):
                started = time.perf_counter()
                commits.commit(2 * round_, trainer, {})
                commits.wait()
                before.append(time.perf_counter() - started)
                alone.append(step(trainer, batch))
                started = time.perf_counter()
                commits.commit(2 * round_ + 1, trainer, {})
                behind.append(time.perf_counter() - started)
                beside.append(step(trainer, batch))
                commits.wait()
            size = sum(data.nbytes for data in trainer.state().files.values())
    waited = [statistics.median(times) for times in (before, behind)]
    figures = {
        "state_mb": round(size / 1e6, 1),
        "step_s": round(statistics.median(alone), 3),
        "wait_before_ms": round(1e3 * waited[0], 1),
        "wait_behind_ms": round(1e3 * waited[1], 1),
        "ratio": round(waited[0] / waited[1], 1),
        "slower": round(statistics.median(beside) / statistics.median(alone), 3),
        "rounds": arguments.rounds,
        **describe(),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
