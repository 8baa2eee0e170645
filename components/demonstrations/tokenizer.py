"""The miniature's tokenizer: byte-level BPE trained on generated text.

Invariants: decoding the encoding of any text gives the text back; the JSON scaffold of an answer is a handful of
tokens, a digit is always one token, a word of the lexicon is one token. The folder loads in `transformers` and SGLang.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Model

from components.errors import ConfigError
from components.gateway import chatml
from components.tito import BpeTokenizer

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (PAD, START, END)
PIECES = (
    r'(?:\\n)?[\[\]{},":]*"(?:(?:analysis|plan|commands|keystrokes|duration|task_complete)"[\[\]{},":]*)+'
    r"|\\n|\d|[ ]?[A-Za-z]+|[\"\\]|[^A-Za-z\d\s\"\\]+|\s+"
)
"""What no token may cross: a run of JSON keys with its punctuation, an escaped newline, a digit, a word."""


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


def _settings(separator: str) -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": END,
        "extra_special_tokens": [START],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000,
        "chat_template": chatml(separator),
    }


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text(text, encoding="utf-8")
    temporary.rename(path)
