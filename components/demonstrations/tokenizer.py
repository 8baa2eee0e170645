"""The miniature's tokenizer: byte-level BPE trained on generated text.

Invariants: decoding the encoding of any text gives the text back; the JSON scaffold of an answer is a handful of
tokens, a digit is always one token, a word of the lexicon is one token. The folder loads in `transformers` and SGLang.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Model

from components.errors import CheckpointError, ConfigError

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (PAD, START, END)
PIECES = (
    r'(?:\\n)?[\[\]{},":]*"(?:(?:analysis|plan|commands|keystrokes|duration|task_complete)"[\[\]{},":]*)+'
    r"|\\n|\d|[ ]?[A-Za-z]+|[\"\\]|[^A-Za-z\d\s\"\\]+|\s+"
)
"""What no token may cross: a run of JSON keys with its punctuation, an escaped newline, a digit, a word."""

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + SEPARATOR }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)


def train_tokenizer(texts: Iterable[str], *, vocab_size: int, folder: Path, separator: str) -> BpeTokenizer:
    """Trains a tokenizer of exactly `vocab_size` entries and writes it into `folder`.

    `separator` stands after every end token in the chat template, as in the harness's rendering.

    Raises:
        ConfigError: the texts do not hold that many distinct pieces.
    """
    model = Model(models.BPE())
    split = pre_tokenizers.Split(Regex(PIECES), "isolated")
    model.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(texts, trainer)
    if model.get_vocab_size() != vocab_size:
        found = model.get_vocab_size()
        raise ConfigError([f"vocab_size: the generated text gives {found} entries, not {vocab_size}"], "model")
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "tokenizer_config.json", json.dumps(_settings(separator), indent=2))
    _write(folder / "tokenizer.json", model.to_str(pretty=True))
    return BpeTokenizer(model)


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

    def encode(self, text: str) -> list[int]:
        return self._model.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._model.decode([int(token) for token in ids], skip_special_tokens=False)

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids, and the [start, end) of each in the characters of `text`."""
        encoding = self._model.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets


def _settings(separator: str) -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": END,
        "extra_special_tokens": [START],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000,
        "chat_template": CHAT_TEMPLATE.replace("SEPARATOR", json.dumps(separator)),
    }


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text(text, encoding="utf-8")
    temporary.rename(path)
