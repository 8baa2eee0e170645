"""Stitches the turns of a trial into training streams (paper Eq 5, 10, 13, 14; Algorithm 1).

Invariants: m_j = 1 exactly where id j was sampled and is trained nowhere else; q_j = 0 where m_j = 0; routing has one
row less than there are tokens; a chunk is of one weight version. Work per turn is proportional to its new tokens, but
for the comparison of its prompt with the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from components.errors import RecordError
from components.records import Float32, Int32, Routing, Sample, Turn
from components.routing import checksum
from components.tito.boundary import PROMPT_TAIL, Boundary, Case, Tokenizer, as_int32, decide

BLOCK = 512
"""Tokens of a prompt that are hashed at once."""


def stitch(turns: Sequence[Turn], tokenizer: Tokenizer, *, trial_id: str = "") -> list[Sample]:
    """The training streams of one trial: one, or one a chunk when its history was rewritten or its weights changed.

    Raises:
        RecordError: routing is present on some turns only, or differs in shape; or a gap in it cannot be repaired.
    """
    stitcher = Stitcher(tokenizer, trial_id=trial_id)
    for turn in turns:
        stitcher.append(turn)
    return stitcher.samples()


def boundaries(turns: Sequence[Turn], tokenizer: Tokenizer) -> list[Boundary | None]:
    """How each turn of a trial is joined to the one before it, as the stitcher decides; None before the first."""
    return [
        None if number == 0 else _between(as_int32(turns[number - 1]), as_int32(turn), tokenizer)
        for number, turn in enumerate(turns)
    ]


class Stitcher:
    """Stitches a trial while it runs. Copies what is new in a turn, so that every turn but the last may be dropped."""

    def __init__(self, tokenizer: Tokenizer, *, trial_id: str = "") -> None:
        self._tokenizer = tokenizer
        self._trial_id = trial_id
        self._chunks: list[_Chunk] = []
        self._last: Turn | None = None
        self._nodes: set[tuple[int | bytes, ...]] = set()
        self._prompts = _Prompts()

    def append(self, turn: Turn) -> None:
        """Adds the next turn of the trial."""
        if not len(turn.prompt_ids):
            raise RecordError(f"trial {self._trial_id}: a turn without a prompt has nothing to condition on")
        turn = as_int32(turn)
        self._check_routing(turn)
        boundary = None if self._last is None else _between(self._last, turn, self._tokenizer)
        if boundary is None or boundary.case is Case.SPLIT:
            self._chunks.append(_Chunk(turn.weight_version))
        chunk = self._chunks[-1]
        if boundary is not None:
            chunk.boundaries[boundary.case] += 1
        cut = 0 if boundary is None else boundary.cut
        context = turn.prompt_ids[cut:]
        if turn.routing is not None:
            chunk.add_routing(turn.routing, context, cut, same_token=self._resumes_on_sampled(turn, cut))
        prompt = self._prompts.hash(turn.prompt_ids, follows=cut > 0)
        chunk.add(context, turn.completion_ids, turn.logprobs, trained=self._is_new_node(turn, prompt))
        self._last = turn

    def samples(self) -> list[Sample]:
        """The streams so far. A chunk that only repeats nodes of other chunks is left out."""
        chunks = [chunk for chunk in self._chunks if not chunk.repeats_only]
        return [chunk.sample(self._trial_id, index) for index, chunk in enumerate(chunks)]

    def _resumes_on_sampled(self, turn: Turn, cut: int) -> bool:
        """Whether the token before the cut is the stream's last one, so that its routing row is that token's."""
        return cut == 0 or self._chunks[-1].last_id == turn.prompt_ids[cut - 1]

    def _is_new_node(self, turn: Turn, prompt: int) -> bool:
        """Branches that share a node list it once each; it is trained where it comes first.

        Known again by the hash of its prompt, its ids and their log-probs: the prompt itself is not kept.
        """
        node = (turn.weight_version, prompt, turn.completion_ids.tobytes(), turn.logprobs.tobytes())
        if node in self._nodes:
            return False
        self._nodes.add(node)
        return True

    def _check_routing(self, turn: Turn) -> None:
        last = self._last
        if last is None:
            return
        if (turn.routing is None) != (last.routing is None):
            raise RecordError(f"trial {self._trial_id}: routing on some turns and not on others")
        if turn.routing is None or last.routing is None:
            return
        form, known = (turn.routing.shape[1:], turn.routing.dtype), (last.routing.shape[1:], last.routing.dtype)
        if form != known:
            raise RecordError(f"trial {self._trial_id}: routing {form} after {known}")


def _between(last: Turn, turn: Turn, tokenizer: Tokenizer) -> Boundary:
    if turn.opens or last.weight_version != turn.weight_version:
        return Boundary(Case.SPLIT, 0)
    return decide(last, turn.prompt_ids, tokenizer)


class _Prompts:
    """Hashes of a trial's prompts, in blocks. Of one that follows, only blocks that are not known to be as in the one
    before are read: a template may have changed that one's tail (`PROMPT_TAIL`)."""

    def __init__(self) -> None:
        self._blocks = [0]
        """Of the last prompt's first blocks, none to all: each with those before it."""
        self._known = 0
        """Tokens that the next prompt has in common, if it follows."""

    def hash(self, prompt: Int32, *, follows: bool) -> int:
        """Of the whole prompt; comparable within this process."""
        del self._blocks[1 + (self._known // BLOCK if follows else 0) :]
        for start in range(BLOCK * (len(self._blocks) - 1), len(prompt) - BLOCK + 1, BLOCK):
            self._blocks.append(hash((self._blocks[-1], prompt[start : start + BLOCK].tobytes())))
        self._known = max(len(prompt) - PROMPT_TAIL, 0)
        return hash((self._blocks[-1], prompt[BLOCK * (len(self._blocks) - 1) :].tobytes()))


@dataclass(slots=True, eq=False)
class _Chunk:
    """One stream under construction, in pieces: context, answer, context, answer, ..."""

    weight_version: int
    pieces: list[Int32] = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)
    logprobs: list[Float32] = field(default_factory=list)
    routing: list[Routing] = field(default_factory=list)
    boundaries: dict[Case, int] = field(default_factory=lambda: dict.fromkeys(Case, 0))

    @property
    def last_id(self) -> int | None:
        """The stream's last token."""
        return next((int(piece[-1]) for piece in reversed(self.pieces) if len(piece)), None)

    @property
    def repeats_only(self) -> bool:
        """Every answer of this chunk is trained in another one."""
        return not any(self.trained)

    def add(self, context: Int32, answer: Int32, logprobs: Float32, *, trained: bool) -> None:
        """Appends a turn: its context without loss, its answer with loss unless another chunk trains it."""
        self.pieces += [context.copy(), answer.copy()]
        self.trained += [False, trained]
        if trained:
            self.logprobs.append(logprobs.copy())

    def add_routing(self, rows: Routing, context: Int32, cut: int, *, same_token: bool) -> None:
        """Appends the turn's rows from the stream's last token on (Eq 13).

        That token's row is a gap when the prompt has another token in its place. It may be filled from the row before
        it only where the token it predicts has no loss (Eq 14).
        """
        if cut == 0:
            self.routing.append(rows.copy())
            return
        if same_token:
            self.routing.append(rows[cut - 1 :].copy())
            return
        if not len(context):
            raise RecordError(f"routing row before prompt position {cut} predicts a sampled token and was not captured")
        before = next(piece for piece in reversed(self.routing) if len(piece))
        self.routing += [before[-1:].copy(), rows[cut:].copy()]

    def sample(self, trial_id: str, index: int) -> Sample:
        """The finished stream."""
        tokens = np.concatenate(self.pieces, dtype=np.int32)
        mask = np.repeat(self.trained, [len(piece) for piece in self.pieces])
        routing: Any = np.concatenate(self.routing) if self.routing else None
        logprobs = np.zeros(len(tokens), np.float32)
        if self.logprobs:
            logprobs[mask] = np.concatenate(self.logprobs)
        return Sample(
            tokens=tokens,
            loss_mask=mask,
            logprobs=logprobs,
            routing=routing,
            trial_id=trial_id,
            chunk=index,
            boundaries={case.value: count for case, count in self.boundaries.items()},
            weight_version=self.weight_version,
            routing_checksum=None if routing is None else checksum(routing),
        )
