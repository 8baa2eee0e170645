"""Continuous batching over the slots: admission, prompt chunks, decoding, and answers.

Invariant: every request that was added ends in exactly one `Answer`, returned by `step`, `abort` or `abort_all`.
Between steps the state is whole: requests may be added or aborted and weights exchanged at any such point.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from components.records import Float32
from components.sampler.engine.architecture import Architecture
from components.sampler.engine.cache import SlotCache
from components.sampler.engine.forward import Batch, Chunk, DecodeRun, Model
from components.sampler.engine.request import Answer, Request
from components.sampler.engine.sampling import DrawPlan, draw, plan_draws
from components.sampler.engine.seeds import SeedSequence
from components.sampler.engine.weights import Weights

# Positions computed in vain that a run of slots may cost before a second kernel launch is cheaper (measured).
_RUN_WASTE = 256


@dataclass(slots=True, eq=False)
class _Live:
    """A request in a slot. `done` prompt positions are computed; `drawn` tokens are sampled."""

    request: Request
    slot: int
    cached: int
    done: int
    drawn: int = 0
    input_logprobs: list[Float32] = field(default_factory=list)

    @property
    def decoding(self) -> bool:
        return self.drawn > 0


@dataclass(slots=True, eq=False)
class _Decoding:
    """Row tensors of the decoding sequences, moved on by one position a step while nobody joins or leaves."""

    lives: list[_Live]
    slots: Tensor
    positions: Tensor
    flat: Tensor
    kv: Tensor
    runs: list[DecodeRun]
    draws: DrawPlan

    def advance(self) -> None:
        for rows in (self.positions, self.flat, self.kv):
            rows.add_(1)
        for run in self.runs:
            run.span += 1


class Engine:
    """Samples from a Qwen3-MoE.

    Args:
        prefill_tokens: prompt tokens computed in one step at most; bounds how long decoding sequences wait.
    """

    def __init__(
        self,
        arch: Architecture,
        weights: Weights,
        *,
        slots: int,
        context: int,
        prefill_tokens: int = 512,
        routing: bool = True,
        seed: int = 0,
        version: str = "0",
    ) -> None:
        self.arch, self.context, self.version = arch, context, version
        self._cache = SlotCache(arch, slots, context, weights.embedding.dtype, routing=routing)
        self._model = Model(arch, weights, self._cache)
        self._prefill_tokens = prefill_tokens
        self._seeds = SeedSequence(seed)
        self._seeds.restart(version)
        self._waiting: deque[Request] = deque()
        self._live: dict[str, _Live] = {}
        self._decoding: _Decoding | None = None
        self._temperature = torch.ones(slots)
        self._top_p = torch.ones(slots)
        self._top_k = torch.full((slots,), -1, dtype=torch.int64)

    @property
    def busy(self) -> bool:
        """Whether a step would compute anything."""
        return bool(self._waiting or self._live)

    @property
    def running(self) -> int:
        return len(self._live)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, request: Request) -> None:
        """Queues a request."""
        self._waiting.append(request)

    @torch.inference_mode()
    def step(self) -> list[Answer]:
        """Admits what fits, computes one step, returns the answers that ended in it."""
        self._admit()
        if not self._live:
            return []
        decoding = self._decoding or self._gather_decoding()
        prefill = self._plan_chunks(len(decoding.lives))
        if prefill:
            return self._mixed_step(decoding, prefill)
        runs = Batch(decoding.positions, decoding.flat, decoding.kv, decoding.runs, [], None)
        answers = self._emit(decoding.lives, decoding.flat, self._model.logits(runs), decoding.draws)
        decoding.advance()
        return answers

    def abort(self, rid: str) -> list[Answer]:
        """Ends a request with what it has drawn so far; an unknown rid is no error."""
        if rid in self._live:
            message = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
            return [self._finish(self._live[rid], message)]
        for request in self._waiting:
            if request.rid == rid:
                self._waiting.remove(request)
                return [never_ran(request)]
        return []

    def abort_all(self) -> list[Answer]:
        """Ends every request."""
        rids = [request.rid for request in self._waiting] + list(self._live)
        return [answer for rid in rids for answer in self.abort(rid)]

    def load(self, weights: Weights, version: str) -> None:
        """Exchanges the weights. What running sequences have cached stays as the old weights computed it."""
        self._model.weights = weights
        self.version = version
        self._seeds.restart(version)

    def flush(self) -> None:
        """Forgets every cached prefix; only without requests."""
        assert not self.busy, "flush with requests alive"
        self._cache.clear()

    def _admit(self) -> None:
        while self._waiting and self._cache.free.any():
            request = self._waiting.popleft()
            prompt, start = request.prompt, request.input_logprobs_from
            size = len(prompt)
            slot, held = self._cache.acquire(prompt, size - 1 if start is None else min(start, size - 1))
            uniforms = self._seeds.uniforms(prompt, request.max_new_tokens, request.seed)
            self._cache.uniforms[slot, size : size + request.max_new_tokens] = torch.from_numpy(uniforms)
            self._temperature[slot] = request.temperature
            self._top_p[slot] = request.top_p
            self._top_k[slot] = request.top_k
            self._live[request.rid] = _Live(request, slot, held, held)

    def _gather_decoding(self) -> _Decoding:
        """Row tensors of every decoding sequence, in slot order."""
        lives = sorted((live for live in self._live.values() if live.decoding), key=lambda live: live.slot)
        slots = torch.tensor([live.slot for live in lives], dtype=torch.int64)
        heads = [len(live.request.prompt) + live.drawn - 1 for live in lives]
        positions = torch.tensor(heads, dtype=torch.int64)
        for live, position in zip(lives, heads, strict=True):
            self._cache.open_mask(live.slot, position + 1)
        self._decoding = _Decoding(
            lives=lives,
            slots=slots,
            positions=positions,
            flat=self._cache.flat_index(slots, positions),
            kv=self._cache.kv_index(slots, positions),
            runs=_runs([live.slot for live in lives], [position + 1 for position in heads]),
            draws=self._draws(slots),
        )
        return self._decoding

    def _plan_chunks(self, row: int) -> list[tuple[_Live, Chunk]]:
        """Prompt chunks of this step in order of admission, from row `row` on."""
        budget = self._prefill_tokens
        chunks = []
        for live in self._live.values():
            if live.decoding or not budget:
                continue
            end = min(len(live.request.prompt), live.done + budget)
            chunks.append((live, Chunk(row, live.slot, live.done, end)))
            row += end - live.done
            budget -= end - live.done
        return chunks

    def _mixed_step(self, decoding: _Decoding, prefill: list[tuple[_Live, Chunk]]) -> list[Answer]:
        slots = torch.cat([torch.full((chunk.end - chunk.start,), chunk.slot) for _, chunk in prefill])
        positions = torch.cat([torch.arange(chunk.start, chunk.end) for _, chunk in prefill])
        flat = torch.cat([decoding.flat, self._cache.flat_index(slots, positions)])
        kv = torch.cat([decoding.kv, self._cache.kv_index(slots, positions)])
        scored = [pair for pair in prefill if pair[0].request.input_logprobs_from is not None]
        drawing = list(range(len(decoding.lives)))
        lives = list(decoding.lives)
        for live, chunk in prefill:
            live.done = chunk.end
            self._cache.length[live.slot] = chunk.end
            if chunk.end == len(live.request.prompt):
                drawing.append(chunk.row + chunk.end - chunk.start - 1)
                lives.append(live)
        rows = drawing + [row for _, chunk in scored for row in range(chunk.row, chunk.row + chunk.end - chunk.start)]
        chunks = [chunk for _, chunk in prefill]
        batch = Batch(
            torch.cat([decoding.positions, positions]),
            flat,
            kv,
            decoding.runs,
            chunks,
            torch.tensor(rows, dtype=torch.int64),
        )
        logits = self._model.logits(batch)
        self._score_prompts(scored, logits[len(drawing) :])
        if not lives:
            return []
        self._decoding = None
        draws = self._draws(torch.tensor([live.slot for live in lives]))
        return self._emit(lives, flat[torch.tensor(drawing)], logits[: len(drawing)], draws)

    def _score_prompts(self, scored: list[tuple[_Live, Chunk]], logits: Tensor) -> None:
        """Keeps log-probs of the prompt tokens that a chunk predicts."""
        for live, chunk in scored:
            own, logits = logits[: chunk.end - chunk.start], logits[chunk.end - chunk.start :]
            targets = torch.from_numpy(live.request.prompt[chunk.start + 1 : chunk.end + 1]).long()
            logprobs = own[: len(targets)].log_softmax(-1).gather(1, targets[:, None])[:, 0].numpy()
            start = live.request.input_logprobs_from
            assert start is not None
            live.input_logprobs.append(logprobs[max(0, start - chunk.start) :])

    def _draws(self, slots: Tensor) -> DrawPlan:
        return plan_draws(self._temperature[slots], self._top_k[slots], self._top_p[slots], self.arch.vocab)

    def _emit(self, lives: list[_Live], flat: Tensor, logits: Tensor, draws: DrawPlan) -> list[Answer]:
        """Draws a token for each of `lives`, whose last computed rows are `flat`; ends those that are through."""
        cache = self._cache
        after = flat + 1
        tokens, logprobs = draw(logits, cache.uniforms.view(-1).index_select(0, after), draws)
        cache.tokens.view(-1).index_copy_(0, after, tokens.int())
        cache.logprobs.view(-1).index_copy_(0, after, logprobs)
        cache.mask.view(-1).index_fill_(0, after, 0.0)
        answers = []
        for live, token in zip(lives, tokens.tolist(), strict=True):
            live.drawn += 1
            if token in live.request.stop_ids:
                answers.append(self._finish(live, {"type": "stop", "matched": token}))
            elif live.drawn == live.request.max_new_tokens:
                answers.append(self._finish(live, {"type": "length", "length": live.drawn}))
        return answers

    def _finish(self, live: _Live, reason: dict[str, Any]) -> Answer:
        cache, request, slot = self._cache, live.request, live.slot
        size = len(request.prompt)
        end = size + live.drawn
        computed = end - 1 if live.decoding else live.done
        del self._live[request.rid]
        cache.release(slot, computed)
        self._decoding = None
        whole = live.decoding and cache.routing is not None
        scores = np.concatenate(live.input_logprobs) if live.input_logprobs else np.zeros(0, dtype=np.float32)
        return Answer(
            request=request,
            output_ids=cache.tokens[slot, size:end].numpy().copy(),
            logprobs=cache.logprobs[slot, size:end].numpy().copy(),
            routing=cache.routing[slot, : end - 1].numpy().copy() if whole and cache.routing is not None else None,
            finish=reason,
            cached_tokens=live.cached,
            input_logprobs=None if request.input_logprobs_from is None else scores,
        )


def never_ran(request: Request) -> Answer:
    """The answer to a request that was aborted before it got a slot."""
    nothing = np.zeros(0, dtype=np.float32)
    finish = {"type": "abort", "message": "Abort in waiting queue", "status_code": None, "err_type": None}
    return Answer(request, nothing.astype(np.int32), nothing, None, finish, None, None)


def _runs(slots: list[int], spans: list[int]) -> list[DecodeRun]:
    """Cuts rows in slot order into runs of neighbouring slots of similar length."""
    runs: list[DecodeRun] = []
    waste = 0
    for row, (slot, span) in enumerate(zip(slots, spans, strict=True)):
        last = runs[-1] if runs else None
        if last is not None and slot == last.slot + last.count:
            longest = max(last.span, span)
            grown = waste + (longest - last.span) * last.count + longest - span
            if grown <= _RUN_WASTE:
                last.count, last.span, waste = last.count + 1, longest, grown
                continue
        runs.append(DecodeRun(row, slot, 1, span))
        waste = 0
    return runs
