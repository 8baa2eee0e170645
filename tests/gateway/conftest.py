"""A tiny random model with a tokenizer and a template, the embedded sampler that serves it, and a gateway before it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from components.config import SamplerConfig
from components.gateway.template import END, START
from components.sampler import SamplerServer, launch_sampler
from tests.gateway.parts import MODEL, QWENISH
from tests.sampler.conftest import write_model

CONTEXT = 700
VOCABULARY = 258


def write_tokenizer(folder: Path) -> None:
    """Bytes and two markers, as a model folder carries them."""
    alphabet = {char: number for number, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(alphabet, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(START, special=True), AddedToken(END, special=True)])
    assert tokenizer.get_vocab_size() == VOCABULARY
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    settings = {"chat_template": QWENISH, "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Weights this small draw every byte now and then, and the end token, which ends an answer, too.
    shape = {"vocab_size": VOCABULARY, "eos_token_id": VOCABULARY - 1, "initializer_range": 0.1}
    folder = write_model(tmp_path_factory.mktemp("gateway") / MODEL, seed=0, **shape)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_sampler(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SamplerServer]:
    config = SamplerConfig(slots=8, context_tokens=CONTEXT, prefill_tokens=64)
    log = tmp_path_factory.mktemp("log") / "sampler.log"
    with launch_sampler(config, tiny_folder, seed=0, routing=True, log_path=log) as server:
        yield server


@pytest.fixture(scope="session")
def gateway_url(tiny_sampler: SamplerServer, tiny_folder: Path) -> Iterator[str]:
    """The gateway as its own process, started as the documentation says."""
    options = ["--sampler", tiny_sampler.url, "--model", str(tiny_folder), "--context", str(CONTEXT)]
    command = [sys.executable, "-m", "components.gateway", *options, "--open-unknown"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["model"] == MODEL
        yield ready["url"]
    finally:
        process.terminate()
        assert process.wait(60) == 0
        process.stdout.close()
