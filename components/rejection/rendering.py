"""The token-exact rendering check: what SFT trains on is what inference draws, and is given, for the same history.

Invariants: of our own sampler, the ids that are trained on are those that it drew, where it drew them, behind the very
prompts it saw. Of a teacher, whose text is all that there is, the ids are those of the whole conversation rendered at
once, and of each of its prompts; loss lies on its answers alone, and no answer holds a control token but its own end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from components.errors import DriftError
from components.gateway import Answer, ChatTemplate, Message, Trajectory
from components.records import Sample, Turn
from components.tito import BpeTokenizer, Tokenizer, audit


def check_sampled(turns: Sequence[Turn], samples: Sequence[Sample], tokenizer: Tokenizer) -> None:
    """Holds the streams of a trial against its turns.

    Raises:
        DriftError: a trained token is not one that was drawn there, a turn is missing or trained on twice, or the ids
            before an answer are not those that it was drawn behind.
    """
    report = audit(turns, samples, tokenizer)
    if not report.clean or report.reencoded_tokens:
        raise DriftError(f"what is trained is not what was sampled: {report}")


def check_rendered(trajectory: Trajectory, samples: Sequence[Sample], tokenizer: BpeTokenizer) -> None:
    """Holds the streams of a trial whose answers were written against its conversations, rendered anew.

    Raises:
        DriftError: as `check_sampled`; or a conversation rendered whole has other ids than it had turn by turn, or an
            answer holds a control token.
    """
    turns = [_unmeasured(turn) for turn in trajectory.turns]
    check_sampled(turns, [replace(each, logprobs=np.zeros_like(each.logprobs)) for each in samples], tokenizer)
    template = trajectory.template
    for answer in trajectory.answers:
        _check_plain(answer, template, tokenizer.special_ids)
        if not answer.followers:  # the prompts before it are beginnings of its own: that was checked above
            _check_whole(answer, template, tokenizer)


def history(answer: Answer | None, messages: Sequence[Message] = ()) -> list[Message]:
    """A conversation as messages: all that led to a recorded answer, the answer, and what is new after it."""
    pieces: list[Sequence[Message]] = [messages]
    while answer is not None:
        pieces.append((*answer.prompt.messages, Message("assistant", answer.text)))
        answer = answer.prompt.after
    return [message for piece in reversed(pieces) for message in piece]


def _unmeasured(turn: Turn) -> Turn:
    """A written turn has NaN for log-probs, which equals nothing; what is compared are its ids."""
    return replace(turn, logprobs=np.zeros_like(turn.logprobs))


def _check_whole(answer: Answer, template: ChatTemplate, tokenizer: Tokenizer) -> None:
    """The prompt, as the template renders it from the messages; and the answer behind it, as text encodes."""
    prompt = answer.turn.prompt_ids.tolist()
    whole = template.opening(history(answer.prompt.after, answer.prompt.messages), answer.prompt.tools)
    if whole != prompt:
        at = next((at for at, (a, b) in enumerate(zip(whole, prompt, strict=False)) if a != b), len(prompt))
        raise DriftError(f"a conversation of {len(prompt)} ids has {len(whole)} rendered whole, others from {at} on")
    stream = [*prompt, *answer.turn.completion_ids.tolist()]
    if tokenizer.encode(tokenizer.decode(stream)) != stream:
        raise DriftError(f"a conversation of {len(stream)} ids is encoded otherwise as text")


def _check_plain(answer: Answer, template: ChatTemplate, special: frozenset[int]) -> None:
    ids = answer.turn.completion_ids.tolist()
    said = ids[:-1] if template.is_closed(ids) else ids
    if found := special.intersection(said):
        raise DriftError(f"an answer holds control tokens ({', '.join(map(str, sorted(found)))})")
