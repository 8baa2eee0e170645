"""Documents that say a random string of tokens twice: the shortest text from which a model learns to copy.

Every command of a trajectory copies names out of the instruction, and a model of two layers finds out how only when
one head attends to the token before and another to what followed the same token earlier. Demonstrations alone bring
that about early with one seed and late with another; the second half of these documents is predictable in no other way.
"""

from __future__ import annotations

from random import Random

import numpy as np

from components.demonstrations.tokenizer import SPECIALS
from components.records import Sample

LENGTH = 24
"""Tokens that are said twice."""


def repeats(count: int, *, vocab_size: int, seed: int) -> list[Sample]:
    """`count` documents of 2 * LENGTH tokens, uniform over the vocabulary without its special tokens.

    The repetition carries the loss, without its first token: nothing says which that will be.
    """
    random = Random(f"repeats/{seed}")
    mask = np.arange(2 * LENGTH) > LENGTH
    return [
        Sample(
            tokens=np.array(2 * [random.randrange(len(SPECIALS), vocab_size) for _ in range(LENGTH)], dtype=np.int32),
            loss_mask=mask,
            logprobs=np.zeros(2 * LENGTH, dtype=np.float32),
            routing=None,
            trial_id=f"repeat-{seed}-{number}",
        )
        for number in range(count)
    ]
