"""Conversations as token ids, by a model's own chat template: rendered once, and never back.

Invariant: rendering only appends. What follows an answer does not depend on the conversation before it: the new
messages are rendered after a place-holder answer, and their ids are the slice behind the end token of the encoding of
(end token ‖ suffix). So the next prompt is `previous prompt ids ‖ sampled ids ‖ suffix ids` whatever the template
would make of the history by now (templates drop reasoning and join messages there), and no sampled id is ever decoded
and encoded again. An answer that was cut by length gets its end token as context, not as something the policy said.

Text that comes from outside (task, terminal, client) cannot speak for the template: special-token markers in it are
disarmed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jinja2
import jinja2.sandbox

from components.errors import CheckpointError, ConfigError, RecordError
from components.gateway.message import Message, made_plain
from components.records import Int32
from components.tito.boundary import Tokenizer

Ids = Sequence[int] | Int32
START, END = "<|im_start|>", "<|im_end|>"
MARKER = re.compile(r"<\|([A-Za-z0-9_]{1,32})\|>")
"""How most families spell their special tokens; a text may hold one that this tokenizer does not know, too."""

PLACE = "LONGSHELLPLACEHOLDER"
"""Content of the answer that new messages are rendered after. A word, so that no template changes it."""


def chatml(separator: str) -> str:
    """The ChatML template. `separator` stands after every end token: a newline, or nothing where tokens are counted."""
    return (
        "{%- for message in messages -%}"
        "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + SEPARATOR }}"
        "{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
    ).replace("SEPARATOR", json.dumps(separator))


class ChatTokenizer(Tokenizer, Protocol):
    """What a template needs of a tokenizer."""

    @property
    def special_ids(self) -> frozenset[int]:
        """What only a template may write."""
        ...

    @property
    def longest_token(self) -> int:
        """Most bytes of a text that one id stands for."""
        ...


class ChatTemplate:
    """Renders messages around the answers of a policy.

    Args:
        source: a Jinja chat template as model folders carry it; its language is that of `transformers`.
        end: the marker that ends an answer.
        variables: further variables of the template, `enable_thinking` for one.

    Raises:
        ConfigError: the template is no Jinja; a marker is not one token, or text cannot be kept from being one; or the
            template writes anything between an
            answer and its end marker, so that what was sampled could not stand in the conversation as it is.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        source: str,
        *,
        end: str = END,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._end = end
        self._variables = dict(variables or {})
        self._special = sorted({end, *(tokenizer.decode([number]) for number in tokenizer.special_ids)} - {""})
        self._spelled = re.compile("|".join(map(re.escape, sorted(self._special, key=len, reverse=True))))
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError([f"not a template: {error}"], "chat template") from error
        self.end_id = self._probe(end)

    @classmethod
    def load(
        cls, folder: Path, tokenizer: ChatTokenizer, *, variables: Mapping[str, Any] | None = None
    ) -> ChatTemplate:
        """The template of a model folder: `chat_template.jinja`, or the one in `tokenizer_config.json`.

        Raises:
            CheckpointError: there is none, or no end-of-sequence token.
        """
        path = folder / "tokenizer_config.json"
        try:
            settings = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: {error}") from error
        own = folder / "chat_template.jinja"
        source = own.read_text(encoding="utf-8") if own.is_file() else settings.get("chat_template")
        end = _token(settings, "eos_token")
        if not isinstance(source, str) or not end:
            raise CheckpointError(f"{folder}: has no chat template, or names no eos_token that ends an answer")
        tokens = {name: _token(settings, name) for name in ("bos_token", "eos_token", "pad_token")}
        return cls(tokenizer, source, end=end, variables=tokens | dict(variables or {}))

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """What ends an answer."""
        return (self.end_id,)

    def opening(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Ids of a first prompt: the messages, and the head of the answer.

        Raises:
            RecordError: the template refuses these messages.
        """
        return self.tokenizer.encode(self._render(messages, tools, opened=True))

    def suffix(
        self, messages: Sequence[Message], *, answer_ids: Ids, tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Ids that follow an answer: its end if it lacks one, the new messages, the head of the next answer.

        Raises:
            RecordError: the template refuses these messages.
        """
        ids, spans = self.tokenizer.encode_with_offsets(self._after_answer(messages, tools, opened=True))
        if not self.is_closed(answer_ids):
            return ids
        return ids[next(index for index, (start, _) in enumerate(spans) if start >= len(self._end)) :]

    def shows_tools(self, tools: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the template writes tools into the conversation at all."""
        probe = [Message("user", PLACE)]
        return self._render(probe, tools, opened=True) != self._render(probe, (), opened=True)

    def is_closed(self, answer_ids: Ids) -> bool:
        return len(answer_ids) > 0 and int(answer_ids[-1]) == self.end_id

    def answer_text(self, answer_ids: Ids) -> str:
        """The text of sampled ids, without the end token."""
        ids = [int(token) for token in answer_ids]
        return self.tokenizer.decode(ids[:-1] if self.is_closed(ids) else ids)

    def answer_ids(self, text: str) -> list[int]:
        """Ids of an answer that was written rather than sampled, with its end token."""
        return [*self.tokenizer.encode(self.disarm(text)), self.end_id]

    def disarm(self, text: str) -> str:
        """Makes special tokens that foreign text spells plain text: `<|im_end|>` becomes `<im_end>`, `</s>` `< /s>`."""
        return self._spelled.sub(lambda found: f"{found[0][0]} {found[0][1:]}", MARKER.sub(r"<\1>", text))

    def _probe(self, end: str) -> int:
        """The id of the end token, after the checks that appending rests on."""
        turns = self._after_answer([Message("user", "-"), Message("assistant", "-")], (), opened=True)
        if not turns.startswith(end):
            raise ConfigError([f"an answer must be followed by {end} at once"], "chat template")
        for marker in {end, *(found.group() for found in MARKER.finditer(turns))}:
            ids = self.tokenizer.encode(marker)
            if len(ids) != 1:
                raise ConfigError([f"{marker} must be one token, is {len(ids)}"], "tokenizer")
        never = {*self.tokenizer.special_ids, *self.tokenizer.encode(end)}
        if armed := [text for text in self._special if not never.isdisjoint(self.tokenizer.encode(self.disarm(text)))]:
            raise ConfigError([f"text cannot be kept from being {', '.join(armed[:5])}"], "tokenizer")
        return self.tokenizer.encode(end)[0]

    def _after_answer(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, opened: bool = False
    ) -> str:
        before = [Message("user", "-"), Message("assistant", PLACE)]
        return self._render([*before, *messages], tools, opened=opened).partition(PLACE)[2]

    def _render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, opened: bool) -> str:
        try:
            return self._template.render(
                messages=[message.fields(self.disarm) for message in messages],
                tools=[made_plain(dict(tool), self.disarm) for tool in tools] or None,
                add_generation_prompt=opened,
                **self._variables,
            )
        except TEMPLATE_FAILURES as error:
            raise RecordError(f"the chat template refuses the messages: {error}") from error


TEMPLATE_FAILURES = (
    *(jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError),
)
"""What a template raises on messages that it was not written for: it is a program of whoever made the model."""


def _environment() -> jinja2.Environment:
    """The dialect of `transformers`: sandboxed, blocks trimmed, loop controls, and a way to refuse."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = _refuse
    return environment


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _token(settings: Mapping[str, Any], name: str) -> str:
    """A special token of a tokenizer configuration, which may be a string or an object."""
    token = settings.get(name) or ""
    return str(token["content"] if isinstance(token, dict) else token)
