"""ChatML, rendered to token ids and never back.

Invariant: rendering only ever appends. The next prompt is `previous prompt ids ‖ sampled ids ‖ suffix ids`; the sampled
ids are never decoded and encoded again, so a token is trained under exactly the history it was drawn under. An answer
that was cut by length gets the end token as context, not as something the policy said.

Text that comes from outside (task, terminal) cannot speak for the template: its special-token markers are disarmed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from components.errors import ConfigError
from components.records import Int32

Ids = Sequence[int] | Int32
START, END = "<|im_start|>", "<|im_end|>"
MARKER = re.compile(r"<\|([A-Za-z0-9_]{1,32})\|>")


class TextCodec(Protocol):
    """What rendering needs of a tokenizer (the protocol of design section 12 has more)."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


def disarm(text: str) -> str:
    """Makes special-token markers in foreign text plain text: `<|im_end|>` becomes `<im_end>`."""
    return MARKER.sub(r"<\1>", text)


class Chat:
    """Renders user turns around the answers of a policy.

    `separator` stands after every end token: a newline in ChatML, nothing for models that count every token.

    Raises:
        ConfigError: the tokenizer does not encode a marker as one token.
    """

    def __init__(self, tokenizer: TextCodec, *, separator: str = "\n") -> None:
        self.tokenizer = tokenizer
        self.separator = separator
        self.end_id = self._marker_id(END)
        self._marker_id(START)

    def _marker_id(self, marker: str) -> int:
        ids = self.tokenizer.encode(marker)
        if len(ids) != 1:
            raise ConfigError([f"{marker} must be one token, is {len(ids)}"], "tokenizer")
        return ids[0]

    def opening(self, user_text: str) -> list[int]:
        """Ids of the first prompt: one user turn and the head of the assistant's answer."""
        return self.tokenizer.encode(self._user_turn(user_text))

    def suffix(self, user_text: str, *, answer_ids: Ids) -> list[int]:
        """Ids that follow an answer: its end if it lacks one, the next user turn, the head of the next answer."""
        closing = [] if self.is_closed(answer_ids) else [self.end_id]
        return closing + self.tokenizer.encode(self.separator + self._user_turn(user_text))

    def is_closed(self, answer_ids: Ids) -> bool:
        return len(answer_ids) > 0 and int(answer_ids[-1]) == self.end_id

    def answer_text(self, answer_ids: Ids) -> str:
        """The text of sampled ids, without the end token."""
        ids = [int(token) for token in answer_ids]
        return self.tokenizer.decode(ids[:-1] if self.is_closed(ids) else ids)

    def answer_ids(self, text: str) -> list[int]:
        """Ids of an answer that was written rather than sampled, with its end token."""
        return [*self.tokenizer.encode(disarm(text)), self.end_id]

    def _user_turn(self, text: str) -> str:
        return f"{START}user\n{disarm(text)}{END}{self.separator}{START}assistant\n"
