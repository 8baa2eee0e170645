"""The embedded engine against transformers' `generate`, in one process, one thread each, same weights, same run.

- decoding: 100 prompt tokens and 96 drawn ones, at batch 1 and 32;
- multi-turn: 32 trajectories of 5 turns with ragged prompts, answers and observations. transformers runs them as one
  left-padded batch a turn and reads the whole history every turn; the engine goes on from its slots, each trajectory at
  its own pace.

transformers gets the fastest of its settings on this machine, measured first for each shape of work: expert kernels
eager or grouped_mm, cache dynamic or static. Repetitions are interleaved; figures are medians. Rates are per second of
this process's processor time: both sides compute in one thread and wait for nothing, so that is the clock of an idle
machine, and on a busy one it still compares the two. Repetitions end early, but not before the first, when a shape of
work has taken its share of the clock; the figures say how many there were.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import describe
from components.config import load
from components.sampler.engine import Engine, Request, open_engine

_ROOT = Path(__file__).parents[1]
_CONTEXT = 1_024
_SHAPE = {
    "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "num_experts", "num_experts_per_tok", "moe_intermediate_size", "vocab_size",
}  # fmt: skip
Rate = Callable[[tuple[str, str]], float]
"""From transformers' setting to its tokens a second."""
_SETTINGS = [(experts, cache) for experts in ("eager", "grouped_mm") for cache in ("dynamic", "static")]


def main() -> None:
    """Measures and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--budget-s", type=float, default=30.0, help="clock seconds of each shape of work")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder))
        engine = open_engine(Path(folder), slots=32, context=_CONTEXT)
    figures: dict[str, Any] = {}
    for name, ours, theirs, trial in (
        ("1", lambda: _decode_ours(engine, 1), lambda s: _decode_theirs(model, 1, s), None),
        ("32", lambda: _decode_ours(engine, 32), lambda s: _decode_theirs(model, 32, s), None),
        (
            "multiturn",
            lambda: _turns_ours(engine),
            lambda s: _turns_theirs(model, s),
            lambda s: _turns_theirs(model, s, 2),
        ),
    ):
        figures[name] = _compare(ours, theirs, trial or theirs, args.repetitions, args.budget_s)
    summary = {
        "tokens_per_s_1": round(figures["1"]["ours"]),
        "tokens_per_s_32": round(figures["32"]["ours"]),
        "tokens_per_s_multiturn": round(figures["multiturn"]["ours"]),
        "speedup_1": round(figures["1"]["speedup"], 2),
        "speedup_32": round(figures["32"]["speedup"], 2),
        "speedup_multiturn": round(figures["multiturn"]["speedup"], 2),
        "transformers": {name: figure["transformers"] for name, figure in figures.items()},
        "repetitions": {name: figure["repetitions"] for name, figure in figures.items()},
        "machine": describe(),
    }
    print(json.dumps(summary))


def _compare(ours: Callable[[], float], theirs: Rate, trial: Rate, repetitions: int, budget_s: float) -> dict[str, Any]:
    """Rates in tokens a second. The speedup is the median of the ratios of neighbouring repetitions.

    Args:
        trial: what the settings are compared by; a shorter run of `theirs`.
    """
    end = time.monotonic() + budget_s
    ours(), trial(_SETTINGS[0])  # warm
    best = max(_SETTINGS, key=trial)
    pairs = [(ours(), theirs(best))]
    while len(pairs) < repetitions and time.monotonic() < end:
        pairs.append((ours(), theirs(best)))
    return {
        "ours": statistics.median(pair[0] for pair in pairs),
        "transformers": {
            "setting": list(best),
            "tokens_per_s": round(statistics.median(pair[1] for pair in pairs)),
        },
        "speedup": statistics.median(a / b for a, b in pairs),
        "repetitions": len(pairs),
    }


def _decode_ours(engine: Engine, batch: int) -> float:
    prompts = np.random.default_rng(0).integers(3, engine.arch.vocab, (batch, 100)).astype(np.int32)
    engine.flush()
    started = time.process_time()
    for index, prompt in enumerate(prompts):
        engine.add(Request(str(index), prompt, 96))
    while engine.busy:
        engine.step()
    return batch * 96 / (time.process_time() - started)


def _decode_theirs(model: Any, batch: int, setting: tuple[str, str]) -> float:
    prompts = torch.from_numpy(np.random.default_rng(0).integers(3, model.config.vocab_size, (batch, 100)))
    started = time.process_time()
    _generate(model, prompts, torch.ones_like(prompts), 96, setting)
    return batch * 96 / (time.process_time() - started)


def _trajectories(vocab: int) -> list[tuple[list[int], list[int], list[list[int]]]]:
    """Prompt, answer lengths and observations of 32 trajectories; lengths as in the miniature, more ragged."""
    random = np.random.default_rng(1)

    def ids(low: int, high: int) -> list[int]:
        drawn: list[int] = random.integers(3, vocab, random.integers(low, high)).tolist()
        return drawn

    return [(ids(60, 240), random.integers(8, 40, 5).tolist(), [ids(10, 60) for _ in range(5)]) for _ in range(32)]


def _turns_ours(engine: Engine) -> float:
    trajectories = _trajectories(engine.arch.vocab)
    engine.flush()
    histories = [list(prompt) for prompt, _, _ in trajectories]
    started = time.process_time()

    def ask(index: int, turn: int) -> None:
        history = np.array(histories[index], dtype=np.int32)
        engine.add(Request(f"{index} {turn}", history, trajectories[index][1][turn]))

    for index in range(len(trajectories)):
        ask(index, 0)
    drawn = 0
    while engine.busy:
        for answer in engine.step():
            index, turn = map(int, answer.request.rid.split())
            drawn += len(answer.output_ids)
            histories[index] += answer.output_ids.tolist() + trajectories[index][2][turn]
            if turn < 4:
                ask(index, turn + 1)
    return drawn / (time.process_time() - started)


def _turns_theirs(model: Any, setting: tuple[str, str], turns: int = 5) -> float:
    trajectories = _trajectories(model.config.vocab_size)
    histories = [list(prompt) for prompt, _, _ in trajectories]
    started = time.process_time()
    drawn = 0
    for turn in range(turns):
        longest = max(map(len, histories))
        ids = torch.tensor([[0] * (longest - len(history)) + history for history in histories])
        mask = torch.tensor([[0] * (longest - len(history)) + [1] * len(history) for history in histories])
        lengths = [trajectory[1][turn] for trajectory in trajectories]
        out = _generate(model, ids, mask, max(lengths), setting)[:, longest:].tolist()
        for history, answer, length, trajectory in zip(histories, out, lengths, trajectories, strict=True):
            drawn += length  # a batch runs to its longest answer; what a shorter one did not ask for is not counted
            history += answer[:length] + trajectory[2][turn]
    return drawn / (time.process_time() - started)


@torch.inference_mode()
def _generate(model: Any, ids: torch.Tensor, mask: torch.Tensor, new: int, setting: tuple[str, str]) -> torch.Tensor:
    experts, cache = setting
    model.set_experts_implementation(experts)
    extra = {"cache_implementation": "static"} if cache == "static" else {}
    drawn: torch.Tensor = model.generate(
        ids, attention_mask=mask, max_new_tokens=new, do_sample=True, temperature=1.0, top_p=1.0, top_k=0, **extra
    )
    return drawn


def write_model(folder: Path) -> Any:
    """The miniature's model with random weights; also returned as transformers runs it."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    shape = load(_ROOT / "configs/miniature.yaml").model
    config = Qwen3MoeConfig(
        **shape.model_dump(include=_SHAPE),
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        initializer_range=shape.init_std,
        norm_topk_prob=True,
        tie_word_embeddings=True,
        max_position_embeddings=_CONTEXT,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(config).eval()
    model.save_pretrained(folder)
    return model


if __name__ == "__main__":
    main()
