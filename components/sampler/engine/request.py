"""What the engine is asked and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from components.records import Float32, Int32, Routing


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One sequence to continue. Values are valid: the protocol layer has checked them.

    Attributes:
        rid: unique among the requests that are alive.
        prompt: int32[P], P >= 1, P + max_new_tokens within the context.
        stop_ids: drawing one of these ends the answer; the id is part of it.
        top_k: <= 0 for none. Greedy is top_k 1 at temperature 1.
        seed: makes the draw depend on nothing else; None lets the engine derive one.
        input_logprobs_from: log-probs of prompt tokens from here on are wanted; None for none.
    """

    rid: str
    prompt: Int32
    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop_ids: frozenset[int] = frozenset()
    seed: int | None = None
    input_logprobs_from: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What became of a request.

    Attributes:
        routing: [P + A - 1, L, K] as captured, or None when capture is off or the request never ran.
        finish: SGLang's finish reason: {"type": "stop" | "length" | "abort", ...}.
        cached_tokens: prompt positions that were not computed again; None when the request never ran.
        input_logprobs: float32 of prompt tokens (from + 1 ..), at temperature 1; None when not asked.
    """

    request: Request
    output_ids: Int32
    logprobs: Float32
    routing: Routing | None
    finish: dict[str, Any]
    cached_tokens: int | None
    input_logprobs: Float32 | None
