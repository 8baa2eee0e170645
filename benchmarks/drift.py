"""What re-encoding an episode's text costs, against keeping the ids that were drawn. One table row a temperature.

Episodes of a trained model are drawn through the recorder at each temperature. The trainer then scores each twice:

- exact: the ids as drawn (`components.tito.stitch`);
- re-encoded: the episode's text, encoded once more, as a trainer that is handed text would have it.

`drifted_tokens` is the share of drawn ids that the encoding of their text does not have, `drifted_episodes` the share
of episodes with at least one. `exact_error` and `reencoded_error` are how far the trainer's log-prob of an episode is
from the sampler's, in nats: the largest over all episodes, and the median and the largest over those that drifted.

Without --checkpoint a model of the miniature's shape is trained first, on imagined demonstrations: minutes, and enough
to write well-formed answers.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe
from components.config import CampaignConfig, HabitConfig, load
from components.demonstrations import Demonstrator, corpus, train_tokenizer
from components.gateway import ChatTemplate, SamplerPolicy, Trajectory, user
from components.harness import ScriptedPolicy, template_for, wording_for
from components.learning.supervised import Supervised
from components.pool import GeneratedTask, Split, generate
from components.records import Sample, Sampling
from components.sampler import ModelGeometry, Sampler, SGLangClient, launch_sampler
from components.tito import BpeTokenizer, Tokenizer, audit, stitch
from components.trainer import Trainer
from components.trainer.megatron import MegatronTrainer

ROOT = Path(__file__).parents[1]
TEMPERATURES = (1.0, 1.6, 2.0)
TURNS, ANSWER_TOKENS = 4, 90
SCREEN = "$ "
HABITS = HabitConfig(blind_error_rate=0.5, other_error_rate=0.2, early_stop_rate=0.1)


@dataclass(frozen=True)
class Scored:
    """One episode: its drawn tokens, those that re-encoding changes, and the errors of both ways in nats."""

    tokens: int
    drifted: int
    exact_error: float
    reencoded_error: float


def main() -> None:
    """Measures and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="a model folder of the miniature")
    parser.add_argument("--episodes", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=300_000, help="to train on without a checkpoint")
    args = parser.parse_args()
    config = load(ROOT / "configs" / "miniature.yaml")
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.checkpoint or train(config, args.tokens, Path(scratch) / "model")
        rows = measure(config, folder, args.episodes, Path(scratch))
    figures = {f"T={temperature:g}": summary(rows[temperature]) for temperature in rows}
    figures |= {"episodes": args.episodes, "turns": TURNS, "trained_tokens": None if args.checkpoint else args.tokens}
    print(json.dumps(figures | {"machine": describe()}))


def train(config: CampaignConfig, tokens: int, folder: Path) -> Path:
    """A model folder: a tokenizer, and weights trained on demonstrations that nobody executed."""
    assert config.base is not None
    separator = wording_for(config.harness).separator
    vocabulary = config.model.vocab_size
    beside = folder.with_name(f"{folder.name}-tokenizer")
    tokenizer = train_tokenizer(corpus(config.pool, seed=1), vocab_size=vocabulary, folder=beside, separator=separator)
    template = template_for(tokenizer, config.harness)
    tasks = islice(generate(config.pool, Split.DEMONSTRATION, seed=1), 1_200)
    samples = [asyncio.run(_imagined(task, config, template)) for task in tasks]
    stage = config.base.model_copy(update={"tokens": tokens})
    trainer = MegatronTrainer(config.model, config.trainer, actor=stage.optimizer, seed=1)
    for _, share, batch in Supervised(samples, stage, 1).batches():
        trainer.sft_step(batch, lr_share=share, aux_loss_coef=stage.aux_loss_coef)
    trainer.save_hf(folder)
    for file in beside.iterdir():
        file.rename(folder / file.name)
    return folder


async def _imagined(task: GeneratedTask, config: CampaignConfig, template: ChatTemplate) -> Sample:
    """What a demonstrator types at a terminal that shows nothing."""
    trajectory = Trajectory(ScriptedPolicy(template, Demonstrator(task, HABITS, 1)), template)
    text, answer = wording_for(config.harness).opening(task.instruction, SCREEN), None
    while answer is None or '"task_complete":true' not in answer.text:
        prompt = trajectory.follow(answer, [user(text)])
        answer = await trajectory.draw(prompt, max_new_tokens=config.harness.max_turn_tokens)
        text = SCREEN
    (sample,) = stitch(trajectory.turns, template.tokenizer, trial_id=task.task_id)
    return sample


def measure(config: CampaignConfig, folder: Path, episodes: int, scratch: Path) -> dict[float, list[Scored]]:
    """Draws and scores `episodes` episodes at each temperature, all under one set of float32 weights."""
    tokenizer = BpeTokenizer.load(folder)
    trainer = MegatronTrainer(config.model, config.trainer)
    trainer.load_hf(folder)
    tasks = list(islice(generate(config.pool, Split.HELDOUT, seed=1), episodes))
    openings = [wording_for(config.harness).opening(task.instruction, SCREEN) for task in tasks]
    template = template_for(tokenizer, config.harness)
    geometry = ModelGeometry.read(folder, config.sampler.context_tokens)
    log = scratch / "sampler.log"
    with launch_sampler(config.sampler, folder, seed=1, routing=True, log_path=log) as server:
        drawn = {
            temperature: asyncio.run(_draw(server.url, geometry, template, openings, temperature))
            for temperature in TEMPERATURES
        }
    return {t: list(score(samples, tokenizer, trainer, t)) for t, samples in drawn.items()}


async def _draw(
    url: str, geometry: ModelGeometry, template: ChatTemplate, openings: Sequence[str], temperature: float
) -> list[Sample]:
    client = SGLangClient(url, model=geometry)
    try:
        return await asyncio.gather(*(_episode(client, template, text, temperature) for text in openings))
    finally:
        await client.close()


async def _episode(sampler: Sampler, template: ChatTemplate, opening: str, temperature: float) -> Sample:
    """A trial of a few turns at a terminal that shows nothing, as the one stream that it is."""
    policy = SamplerPolicy(sampler, stop_token_ids=template.stop_token_ids, session_id=opening, capture=True)
    trajectory = Trajectory(policy, template, sampling=Sampling(temperature))
    answer, text = None, opening
    for _ in range(TURNS):
        answer = await trajectory.draw(trajectory.follow(answer, [user(text)]), max_new_tokens=ANSWER_TOKENS)
        text = SCREEN
    samples = stitch(trajectory.turns, template.tokenizer, trial_id=opening)
    report = audit(trajectory.turns, samples, template.tokenizer)
    assert report.clean
    assert report.reencoded_context == 0
    return samples[0]


def score(samples: Sequence[Sample], tokenizer: Tokenizer, trainer: Trainer, temperature: float) -> Iterator[Scored]:
    """The trainer's log-prob of each episode, by its ids and by its text, against the sampler's."""
    again = [reencode(sample, tokenizer) for sample in samples]
    exact = trainer.logprobs(samples, weights="current", replay=True, temperature=temperature)
    other = trainer.logprobs([sample for sample, _ in again], weights="current", replay=False, temperature=temperature)
    for sample, (_, drifted), mine, theirs in zip(samples, again, exact, other, strict=True):
        said = float(sample.logprobs.astype(np.float64).sum())
        errors = [abs(float(logprobs.astype(np.float64).sum()) - said) for logprobs in (mine, theirs)]
        yield Scored(int(sample.loss_mask.sum()), drifted, *errors)


def reencode(sample: Sample, tokenizer: Tokenizer) -> tuple[Sample, int]:
    """The episode as its text says it, and how many of its drawn ids are not in that."""
    edges = np.flatnonzero(np.diff(sample.loss_mask, prepend=False, append=False)).tolist()
    text, spans, at = "", [], 0
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        text += tokenizer.decode(sample.tokens[at:start].tolist())
        answer = tokenizer.decode(sample.tokens[start:end].tolist())
        spans.append((len(text), len(text) + len(answer)))
        text, at = text + answer, end
    ids, offsets = tokenizer.encode_with_offsets(text)
    mask = np.array([any(a <= start < b for a, b in spans) for start, _ in offsets])
    drifted = 0
    for (start, end), (a, b) in zip(zip(edges[::2], edges[1::2], strict=True), spans, strict=True):
        drawn = sample.tokens[start:end].tolist()
        encoded = [token for token, (begin, _) in zip(ids, offsets, strict=True) if a <= begin < b]
        matcher = difflib.SequenceMatcher(None, drawn, encoded, autojunk=False)
        drifted += len(drawn) - sum(block.size for block in matcher.get_matching_blocks())
    tokens = np.array(ids, np.int32)
    return Sample(tokens, mask, np.zeros(len(tokens), np.float32), None, sample.trial_id), drifted


def summary(episodes: Sequence[Scored]) -> dict[str, Any]:
    """The figures of one temperature. An error over no episodes is null."""
    drifted = [episode for episode in episodes if episode.drifted]
    return {
        "drifted_tokens": round(sum(e.drifted for e in episodes) / sum(e.tokens for e in episodes), 5),
        "drifted_episodes": round(len(drifted) / len(episodes), 3),
        "exact_error_max": max(e.exact_error for e in episodes),
        "reencoded_error_median": statistics.median(e.reencoded_error for e in drifted) if drifted else None,
        "reencoded_error_max": max((e.reencoded_error for e in drifted), default=None),
        "tokens": sum(e.tokens for e in episodes),
    }


if __name__ == "__main__":
    main()
