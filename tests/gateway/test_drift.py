"""The experiment on re-encoding: what it counts, and that its exact side is exact."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from benchmarks.drift import measure, reencode, summary, train
from components.config import load
from components.tito import stitch
from tests.tito.toy import END, RandomBpe, make_turn


@pytest.mark.parametrize("canonical", [True, False])
def test_ids_that_the_encoding_of_their_text_does_not_have_are_counted(canonical: bool) -> None:
    rng, tokenizer = random.Random(1), RandomBpe(2)
    text = "cabcabab cab{}ab  cabcab\n" * 4
    prompt = tokenizer.encode("<|user|>go<|end|>\n<|assistant|>")
    drawn = tokenizer.encode(text) if canonical else tokenizer.sample(text, rng)
    (sample,) = stitch([make_turn(prompt, [*drawn, END])], tokenizer)
    again, drifted = reencode(sample, tokenizer)
    assert tokenizer.decode(again.tokens.tolist()) == tokenizer.decode(sample.tokens.tolist())
    assert tokenizer.decode(again.tokens[again.loss_mask].tolist()) == text + "<|end|>"
    assert (drifted == 0) is canonical
    assert (again.tokens.tolist() == sample.tokens.tolist()) is canonical


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_re_encoding_drifts_at_high_temperature_where_exact_ids_do_not(tmp_path: Path) -> None:
    config = load("configs/miniature.yaml")
    rows = measure(config, train(config, 60_000, tmp_path / "model"), 16, tmp_path)
    for temperature, episodes in rows.items():
        figures = summary(episodes)
        assert figures["exact_error_max"] <= 1e-3
        if temperature >= 1.6:
            assert figures["drifted_tokens"] > 0
            assert figures["reencoded_error_median"] > 1
    assert np.isfinite([episode.reencoded_error for episodes in rows.values() for episode in episodes]).all()
