"""The log-prob gap between the sampler and the float32 trainer, with and without replayed routing (paper Eq 15, 24).

Same weights, same trajectories: a model is made, the embedded engine samples from it, and the trainer scores what was
sampled twice, routing freely and replaying the sampler's experts. Token ids are exact both times, so what differs is
routing alone; the paper's figure (0.021 -> 0.013, a ratio of 0.62) has the effect of exact ids in it as well.

- `trained`: the miniature's shape, trained on the text of its demonstrations until it writes turns.
- `deep`: 8 layers, 16 experts, random weights.

Each with three seeds and each engine: all float32, all float32 but a bfloat16 router, all bfloat16. A figure is the
mean over seeds; `ratio` is replayed / free.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.machine import describe
from components.config import CampaignConfig, ModelConfig, TrainerConfig, load
from components.demonstrations import corpus, train_tokenizer
from components.ppo import logprob_gap
from components.records import Int32, Sample, Sampling, Turn
from components.routing import flips
from components.sampler.engine import Engine, Request, open_engine
from components.tito import BpeTokenizer, Tokenizer, stitch
from components.trainer.megatron import MegatronTrainer

_ROOT = Path(__file__).parents[1]
ENGINES = {
    "float32": ("float32", "float32"),
    "bfloat16 router": ("float32", "bfloat16"),
    "bfloat16": ("bfloat16", "bfloat16"),
}
"""Name: dtype and router_dtype of `sampler`."""
DEEP = ModelConfig(num_hidden_layers=8, num_experts=16, num_experts_per_tok=4)
DOCUMENT, PROMPT, ANSWER = 128, 48, 96
"""Tokens of a training document, of a prompt and of an answer."""
TRAJECTORIES = 96
CAPACITY = 4_096
SERIES = ("token_mean", "k3", "max")


def main() -> None:
    """Measures and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300, help="training steps of the small model")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    config = load(_ROOT / "configs/miniature.yaml")
    seeds = range(1, args.seeds + 1)
    with tempfile.TemporaryDirectory() as folder:
        trained = [_trained(config, seed, args.steps, Path(folder) / f"trained-{seed}") for seed in seeds]
        deep = [random_case(seed, Path(folder) / f"deep-{seed}") for seed in seeds]
        figures = {
            "trained": {name: _over_seeds(trained, config.model, *engine) for name, engine in ENGINES.items()},
            "deep": {name: _over_seeds(deep, DEEP, *engine) for name, engine in ENGINES.items()},
        }
    summary = {"seeds": args.seeds, "steps": args.steps, "loss": [round(case.loss, 3) for case in trained]}
    print(json.dumps({**figures, **summary, "machine": describe()}))


class Case:
    """A model on disk, and prompts for it."""

    def __init__(self, folder: Path, seed: int, tokenizer: Tokenizer, prompts: list[Int32], loss: float) -> None:
        self.folder, self.seed, self.tokenizer, self.prompts, self.loss = folder, seed, tokenizer, prompts, loss


def _trained(config: CampaignConfig, seed: int, steps: int, folder: Path) -> Case:
    """Trains the miniature's model on its demonstrations' text, all tokens bearing loss."""
    assert config.base is not None
    texts = list(corpus(config.pool, seed=seed))
    train_tokenizer(iter(texts), vocab_size=config.model.vocab_size, folder=folder / "tokenizer", separator="\n")
    tokenizer = BpeTokenizer.load(folder / "tokenizer")
    ids = np.array([token for text in texts for token in tokenizer.encode(text)], dtype=np.int32)
    documents = ids[: len(ids) // DOCUMENT * DOCUMENT].reshape(-1, DOCUMENT)
    learned, kept = documents[:-TRAJECTORIES], documents[-TRAJECTORIES:, :PROMPT]
    trainer = MegatronTrainer(
        config.model, TrainerConfig(micro_batch_tokens=CAPACITY), actor=config.base.optimizer, seed=seed
    )
    batches = _batches(learned, config.base.batch_tokens // DOCUMENT, seed)
    losses = []
    for step, batch in enumerate(islice(batches, steps)):
        share = min(1.0, 2 * (1 - step / steps))
        losses.append(trainer.sft_step(batch, lr_share=share, aux_loss_coef=config.base.aux_loss_coef)["loss"])
    trainer.save_hf(folder / "hf")
    return Case(folder / "hf", seed, tokenizer, list(kept), fmean(losses[-10:]))


def _batches(documents: NDArray[np.int32], size: int, seed: int) -> Iterator[list[Sample]]:
    random = np.random.default_rng(seed)
    mask = np.arange(DOCUMENT) > 0
    while True:
        chosen = random.choice(len(documents), size, replace=False)
        yield [Sample(documents[i], mask, np.zeros(DOCUMENT, np.float32), None, str(i)) for i in chosen]


def random_case(seed: int, folder: Path, model: ModelConfig = DEEP) -> Case:
    """Random weights, random prompts."""
    MegatronTrainer(model, TrainerConfig(), seed=seed).save_hf(folder)
    random = np.random.default_rng(seed)
    prompts = [random.integers(3, model.vocab_size, PROMPT).astype(np.int32) for _ in range(TRAJECTORIES)]
    return Case(folder, seed, _NoText(), prompts, float("nan"))


class _NoText:
    """One turn has no boundary, and so no text."""

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def decode(self, ids: Any) -> str:
        raise NotImplementedError

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        raise NotImplementedError


def _over_seeds(cases: list[Case], model: ModelConfig, dtype: str, router_dtype: str) -> dict[str, Any]:
    """Means over the seeds, and every seed's ratios."""
    runs = [measure(case, model, dtype, router_dtype) for case in cases]
    figures: dict[str, Any] = {
        routing: {name: fmean(run[routing][name] for run in runs) for name in SERIES}
        for routing in ("free", "replayed")
    }
    figures["flipped_choices"] = fmean(run["flipped_choices"] for run in runs)
    figures["tokens"] = sum(run["free"]["tokens"] for run in runs)
    figures["ratio"] = {name: figures["replayed"][name] / figures["free"][name] for name in ("token_mean", "k3")}
    figures["ratios_by_seed"] = [run["replayed"]["token_mean"] / run["free"]["token_mean"] for run in runs]
    return figures


def measure(case: Case, model: ModelConfig, dtype: str, router_dtype: str) -> dict[str, Any]:
    """`free` and `replayed`, each the series of `logprob_gap`, and `flipped_choices`."""
    engine = open_engine(
        case.folder, slots=len(case.prompts), context=PROMPT + ANSWER, dtype=dtype, router_dtype=router_dtype,
        seed=case.seed,
    )  # fmt: skip
    samples = _sample(engine, case)
    exact = open_engine(case.folder, slots=len(case.prompts), context=PROMPT + ANSWER + 1)
    trainer = MegatronTrainer(model, TrainerConfig(micro_batch_tokens=CAPACITY))
    trainer.load_hf(case.folder)
    gaps = {}
    for name, replay in (("free", False), ("replayed", True)):
        scored = trainer.logprobs(samples, weights="current", replay=replay, temperature=1.0)
        gaps[name] = logprob_gap(
            np.concatenate(scored),
            np.concatenate([sample.logprobs for sample in samples]),
            np.concatenate([sample.loss_mask for sample in samples]),
        )
    return {**gaps, "flipped_choices": _flipped(exact, samples)}


def _sample(engine: Engine, case: Case) -> list[Sample]:
    for index, prompt in enumerate(case.prompts):
        engine.add(Request(str(index), prompt, ANSWER, stop_ids=frozenset()))
    samples: list[Sample] = []
    while engine.busy:
        for answer in engine.step():
            turn = Turn(
                answer.request.prompt, answer.output_ids, answer.logprobs, answer.routing, 0, "length", Sampling()
            )
            samples += stitch([turn], case.tokenizer, trial_id=answer.request.rid)
    return samples


def _flipped(exact: Engine, samples: list[Sample]) -> float:
    """Share of (token, layer) for which the float32 engine, given the same tokens, chooses other experts."""
    routings = {}
    for sample in samples:
        exact.add(Request(sample.trial_id, sample.tokens, 1, stop_ids=frozenset()))
    while exact.busy:
        routings |= {answer.request.rid: answer.routing for answer in exact.step()}
    rows = [(sample.routing, routings[sample.trial_id][: len(sample.tokens) - 1]) for sample in samples]
    return flips(np.concatenate([a for a, _ in rows]), np.concatenate([b for _, b in rows])).choices


if __name__ == "__main__":
    main()
