"""The tokenizer of a model folder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from tokenizers import Encoding
from tokenizers import Tokenizer as Model

from components.errors import CheckpointError

LONG = 16 * 1024
"""Characters, some milliseconds: what is longer is encoded without holding up the other threads of the interpreter."""


class BpeTokenizer:
    """Ids of text and back. Special-token markers in the text are encoded as the special tokens."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @classmethod
    def load(cls, folder: Path) -> BpeTokenizer:
        """The tokenizer of a model folder.

        Raises:
            CheckpointError: there is none, or it cannot be read.
        """
        path = folder / "tokenizer.json"
        try:
            return cls(Model.from_str(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror}") from error
        except Exception as error:  # the library raises bare Exception for every malformed file
            raise CheckpointError(f"{path}: not a tokenizer: {error}") from error

    @property
    def vocab_size(self) -> int:
        return self._model.get_vocab_size()

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of the special tokens: what only a template may write."""
        return frozenset(number for number, token in self._model.get_added_tokens_decoder().items() if token.special)

    @cached_property
    def longest_token(self) -> int:
        """Most bytes of a text that one id stands for, or a little more: a vocabulary spells some bytes by two."""
        return max(len(token.encode()) for token in self._model.get_vocab())

    def encode(self, text: str) -> list[int]:
        return self._encoding(text).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._model.decode([int(token) for token in ids], skip_special_tokens=False)

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids, and the [start, end) of each in the characters of `text`."""
        encoding = self._encoding(text)
        return encoding.ids, encoding.offsets

    def _encoding(self, text: str) -> Encoding:
        if len(text) <= LONG:
            return self._model.encode(text, add_special_tokens=False)
        # Only for a batch does the library let the interpreter go.
        return self._model.encode_batch([text], add_special_tokens=False)[0]
