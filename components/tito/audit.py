"""The drift auditor (paper Eq 11): is every trained token one that was sampled, and where it was sampled?

Invariant: it shares no decision with the stitcher. It takes the streams as they are, re-locates every turn's answer in
them by its ids and log-probs, and calls whatever has loss and is not located drift. What is not `clean` is in no batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from components.records import Int32, Sample, Turn
from components.tito.boundary import Tokenizer, as_int32, same_ids


@dataclass(frozen=True, slots=True)
class DriftReport:
    """What the auditor found.

    Attributes:
        drift: share of loss positions that are not what was sampled (Eq 11); NaN when there are none.
        reencoded_context: share of loss positions whose stream up to their turn is not, id for id, the prompt it saw.
        reencoded_tokens: the number of these positions.
        positions: loss positions by class: `aligned` (sampled here), `retokenized` (a turn's text in other ids),
            `placeholder` (anything else, among them sampled ids with other log-probs or weights).
        missing_turns: turns with an answer that no stream trains on.
        repeated_turns: times that a turn is trained on again.
        placeholder_rows: routing rows that were filled from the row before them (Eq 14).
    """

    drift: float
    reencoded_context: float
    reencoded_tokens: int
    positions: Mapping[str, int]
    missing_turns: int
    repeated_turns: int
    placeholder_rows: int

    @property
    def loss_tokens(self) -> int:
        """Loss positions of all streams: what shares of several trials are weighted by."""
        return sum(self.positions.values())

    @property
    def clean(self) -> bool:
        """Every sampled token is trained exactly once, and nothing else is."""
        strays = self.positions["retokenized"] + self.positions["placeholder"]
        return not (strays or self.missing_turns or self.repeated_turns)


def audit(turns: Sequence[Turn], samples: Sequence[Sample], tokenizer: Tokenizer) -> DriftReport:
    """Compares the streams of one trial with the turns they claim to hold."""
    ledger = _Ledger([as_int32(turn) for turn in turns])
    positions = dict.fromkeys(("aligned", "retokenized", "placeholder"), 0)
    reencoded = placeholder_rows = 0
    for sample in samples:
        before: tuple[Turn, int] | None = None
        for start, end in _loss_runs(sample):
            at = start
            while at < end:
                turn = ledger.claim(sample, at, end)
                if turn is None:
                    kind = "retokenized" if ledger.holds_text(sample.tokens[at:end], tokenizer) else "placeholder"
                    positions[kind] += end - at
                    before = None
                    break
                size = len(turn.completion_ids)
                positions["aligned"] += size
                reencoded += 0 if _saw(turn, sample.tokens[:at]) else size
                if before is not None and sample.routing is not None:
                    placeholder_rows += _is_placeholder(before, turn, at)
                at += size
                before = (turn, at)
    total = sum(positions.values())
    drifted = positions["retokenized"] + positions["placeholder"]
    return DriftReport(
        drift=drifted / total if total else float("nan"),
        reencoded_context=reencoded / total if total else float("nan"),
        reencoded_tokens=reencoded,
        positions=positions,
        missing_turns=ledger.unclaimed,
        repeated_turns=ledger.repeated,
        placeholder_rows=placeholder_rows,
    )


@dataclass(slots=True)
class _Ledger:
    """Which turns have been found in the streams. A node that branches list twice is listed once."""

    turns: Sequence[Turn]
    nodes: dict[bytes, list[Turn]] = field(default_factory=dict)
    claimed: set[int] = field(default_factory=set)
    repeated: int = 0

    def __post_init__(self) -> None:
        for turn in self.turns:
            like = self.nodes.setdefault(turn.completion_ids.tobytes(), [])
            if len(turn.completion_ids) and not any(_same_node(turn, known) for known in like):
                like.append(turn)

    @property
    def unclaimed(self) -> int:
        return sum(map(len, self.nodes.values())) - len(self.claimed)

    def claim(self, sample: Sample, at: int, end: int) -> Turn | None:
        """The turn whose answer stands at `at`: one that fills the run, else the longest that fits into it.

        Of several alike, one not found before goes first, and of these the one whose very prompt stands before it.
        """
        whole = self.nodes.get(sample.tokens[at:end].tobytes(), [])
        fitting = [turn for turn in whole if _stands_at(turn, sample, at, end)]
        if not fitting:
            every = (turn for like in self.nodes.values() for turn in like)
            fitting = [turn for turn in every if _stands_at(turn, sample, at, end)]
        fresh = [turn for turn in fitting if id(turn) not in self.claimed]
        if not fresh:
            self.repeated += bool(fitting)
            return fitting[0] if fitting else None
        if len(fresh) > 1:
            fresh.sort(key=lambda turn: (not _saw(turn, sample.tokens[:at]), -len(turn.completion_ids)))
        self.claimed.add(id(fresh[0]))
        return fresh[0]

    def holds_text(self, ids: Int32, tokenizer: Tokenizer) -> bool:
        """Whether these ids spell some turn's answer in other tokens."""
        text = tokenizer.decode(ids.tolist())
        others = (turn.completion_ids for turn in self.turns if not np.array_equal(turn.completion_ids, ids))
        return any(tokenizer.decode(other.tolist()) == text for other in others)


def _loss_runs(sample: Sample) -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(sample.loss_mask, prepend=False, append=False))
    return zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _stands_at(turn: Turn, sample: Sample, at: int, end: int) -> bool:
    stop = at + len(turn.completion_ids)
    return (
        stop <= end
        and turn.weight_version == sample.weight_version
        and np.array_equal(turn.completion_ids, sample.tokens[at:stop])
        and np.array_equal(turn.logprobs, sample.logprobs[at:stop])
    )


def _saw(turn: Turn, before: Int32) -> bool:
    """Whether the sampler was conditioned on exactly these ids."""
    return len(turn.prompt_ids) == len(before) and same_ids(turn.prompt_ids, before)


def _same_node(turn: Turn, other: Turn) -> bool:
    return (
        turn.weight_version == other.weight_version
        and np.array_equal(turn.completion_ids, other.completion_ids)
        and np.array_equal(turn.logprobs, other.logprobs)
        and _saw(turn, other.prompt_ids)
    )


def _is_placeholder(before: tuple[Turn, int], turn: Turn, at: int) -> bool:
    """Whether the prompt that `turn` saw has another token where the answer before it ends."""
    answered, end = before
    place = len(turn.prompt_ids) - (at - end) - 1
    return bool(turn.prompt_ids[place] != answered.completion_ids[-1])
