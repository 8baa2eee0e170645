"""The miniature's tokenizer."""

import json
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.config import PoolConfig
from components.demonstrations import corpus, train_tokenizer
from components.errors import CheckpointError, ConfigError
from components.gateway import ChatTemplate, chatml, user
from components.tito import BpeTokenizer

CONFIG = PoolConfig()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(corpus(CONFIG, seed=1), vocab_size=768, folder=path, separator="")
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> BpeTokenizer:
    return BpeTokenizer.load(folder)


def texts(count: int) -> list[str]:
    return list(islice(corpus(CONFIG, seed=2), count))


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_decoding_gives_any_text_back(tokenizer: BpeTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=0x3000)))
def test_offsets_cut_the_text_where_the_ids_do(tokenizer: BpeTokenizer, text: str) -> None:
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text)
    assert len(ids) == len(offsets)
    assert all(0 <= start <= end <= len(text) for start, end in offsets)
    assert [start for start, _ in offsets] == sorted(start for start, _ in offsets)


def test_offsets_of_plain_text_are_its_pieces(tokenizer: BpeTokenizer) -> None:
    text = texts(2)[1]
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert [text[start:end] for start, end in offsets] == [tokenizer.decode([token]) for token in ids]


def test_scaffold_digits_words_and_roles_are_single_tokens(tokenizer: BpeTokenizer) -> None:
    for piece in ('","commands":[{"keystrokes":"', '{"analysis":"', '}],"task_complete":', "7", " alpha", " lemon"):
        assert len(tokenizer.encode(piece)) == 1, piece
    assert len(tokenizer.encode("user")) == len(tokenizer.encode("assistant")) == 1
    assert len(tokenizer.encode("123")) == 3
    assert tokenizer.encode("<|pad|><|im_start|><|im_end|>") == [0, 1, 2]


def test_the_vocabulary_has_exactly_the_configured_size(tokenizer: BpeTokenizer, tmp_path: Path) -> None:
    assert tokenizer.vocab_size == 768
    with pytest.raises(ConfigError, match="vocab_size: the generated text gives"):
        train_tokenizer(["too little"], vocab_size=768, folder=tmp_path, separator="")
    assert not list(tmp_path.iterdir())


def test_training_is_deterministic(folder: Path, tmp_path: Path) -> None:
    train_tokenizer(corpus(CONFIG, seed=1), vocab_size=768, folder=tmp_path, separator="")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_transformers_loads_it_and_encodes_alike(folder: Path, tokenizer: BpeTokenizer) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    assert (theirs.pad_token_id, theirs.eos_token_id, len(theirs)) == (0, 2, 768)
    for text in texts(60):
        assert theirs(text, add_special_tokens=False).input_ids == tokenizer.encode(text)


@pytest.mark.parametrize("separator", ["", "\n"])
def test_the_chat_template_renders_as_the_harness_does(tmp_path: Path, separator: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = train_tokenizer(corpus(CONFIG, seed=1), vocab_size=768, folder=tmp_path, separator=separator)
    chat = ChatTemplate(tokenizer, chatml(separator))
    answer = chat.answer_ids('{"analysis":"1"}')
    ours = [
        *chat.opening([user("1:write lemon inside alpha\n$ ")]),
        *answer,
        *chat.suffix([user("$ ")], answer_ids=answer),
    ]
    messages = [
        {"role": "user", "content": "1:write lemon inside alpha\n$ "},
        {"role": "assistant", "content": '{"analysis":"1"}'},
        {"role": "user", "content": "$ "},
    ]
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.encode(text) == ours


def test_a_missing_or_broken_tokenizer_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        BpeTokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(CheckpointError, match="not a tokenizer"):
        BpeTokenizer.load(tmp_path)
