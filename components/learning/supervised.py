"""The supervised stages (base, SFT): which samples make the next batch, and at which learning rate.

Invariant: batches are a pure function of (samples, seed, cursor), so a stage that resumes at a cursor sees exactly the
batches it would have seen.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from components.config import SupervisedConfig
from components.records import Sample


@dataclass(frozen=True, slots=True)
class Supervised:
    """A supervised run over `samples`, repeated in epochs until `config.tokens` tokens were seen."""

    samples: Sequence[Sample]
    config: SupervisedConfig
    seed: int

    def steps(self) -> int:
        """How many batches the run has, exactly."""
        return sum(1 for _ in self.batches())

    def batches(self, first_step: int = 0) -> Iterator[tuple[int, float, list[Sample]]]:
        """Yields (step, lr share, samples of the batch) from `first_step` on."""
        seen = 0
        step = 0
        epoch = 0
        while seen < self.config.tokens:
            for batch in self._epoch(epoch):
                if seen >= self.config.tokens:
                    return
                if step >= first_step:
                    yield step, self.lr_share(seen), batch
                seen += sum(len(sample.tokens) for sample in batch)
                step += 1
            epoch += 1

    def lr_share(self, seen: int) -> float:
        """Share of the full learning rate after `seen` tokens: constant, then linear down to `final_lr_share`."""
        progress = seen / self.config.tokens
        constant = self.config.constant_share
        if progress <= constant or constant == 1.0:
            return 1.0
        return max(self.config.final_lr_share, 1.0 - (progress - constant) / (1.0 - constant))

    def _epoch(self, epoch: int) -> list[list[Sample]]:
        """All samples once, in a seeded order, cut where the next one would exceed `batch_tokens`."""
        order = list(range(len(self.samples)))
        random.Random(f"{self.seed}/{epoch}").shuffle(order)
        batches: list[list[Sample]] = [[]]
        tokens = 0
        for sample in map(self.samples.__getitem__, order):
            if batches[-1] and tokens + len(sample.tokens) > self.config.batch_tokens:
                batches.append([])
                tokens = 0
            batches[-1].append(sample)
            tokens += len(sample.tokens)
        return batches
