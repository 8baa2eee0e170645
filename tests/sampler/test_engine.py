"""The engine against transformers, and against itself under every kind of batching."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from components.errors import CheckpointError
from components.sampler.engine import Answer, Architecture, Engine, Request, load_weights, open_engine
from tests.sampler.conftest import CONTEXT, Oracle, write_model


def prompt(seed: int, length: int, vocab: int = 96) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocab, length).astype(np.int32)


def engine(folder: Path, slots: int = 4, **settings: object) -> Engine:
    return open_engine(folder, slots=slots, context=CONTEXT, **settings)  # type: ignore[arg-type]


def run(engine: Engine, *requests: Request) -> dict[str, Answer]:
    for request in requests:
        engine.add(request)
    answers = {}
    while engine.busy:
        answers.update((answer.request.rid, answer) for answer in engine.step())
    return answers


def whole(answer: Answer) -> list[int]:
    return [*answer.request.prompt.tolist(), *answer.output_ids.tolist()]


def agrees(answer: Answer, oracle: Oracle, temperature: float = 1.0) -> None:
    ids = whole(answer)
    forced = oracle(ids)
    expected = forced.logprobs(ids, len(answer.request.prompt), temperature)
    np.testing.assert_allclose(answer.logprobs, expected, atol=1e-4, rtol=0)
    np.testing.assert_array_equal(answer.routing, forced.experts[:-1])


def test_experts_and_logprobs_are_those_of_transformers(model_folder: Path, oracle: Oracle) -> None:
    answers = run(engine(model_folder), *(Request(f"r{i}", prompt(i, 3 + 40 * i), 30) for i in range(7)))
    assert len(answers) == 7
    for answer in answers.values():
        agrees(answer, oracle)


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": True, "num_key_value_heads": 4, "num_experts_per_tok": 2},
        {"norm_topk_prob": False, "num_experts": 24, "num_hidden_layers": 1},
    ],
    ids=["tied without groups", "unnormalised shares, more experts than are computed densely"],
)
def test_other_shapes_agree_with_transformers(tmp_path: Path, changes: dict[str, object]) -> None:
    folder = write_model(tmp_path, seed=3, **changes)
    agrees(run(engine(folder), Request("a", prompt(1, 50), 30))["a"], Oracle(folder))


def test_a_prompt_in_small_chunks_gives_the_same_as_at_once(model_folder: Path, oracle: Oracle) -> None:
    request = Request("a", prompt(1, 100), 12, seed=5)
    at_once = run(engine(model_folder), request)["a"]
    chunked = run(engine(model_folder, prefill_tokens=7), request)["a"]
    np.testing.assert_array_equal(at_once.output_ids, chunked.output_ids)
    agrees(chunked, oracle)


def test_a_later_turn_continues_the_slot_and_gives_what_a_fresh_engine_gives(
    model_folder: Path, oracle: Oracle
) -> None:
    reused = engine(model_folder)
    ids = prompt(1, 40)
    for turn in range(4):
        request = Request(f"t{turn}", ids, 15, seed=turn)
        answer = run(reused, request)[f"t{turn}"]
        fresh = run(engine(model_folder), request)[f"t{turn}"]
        # Everything but the last sampled token, whose keys were never computed.
        assert answer.cached_tokens == (0 if turn == 0 else len(ids) - 10 - 1)
        np.testing.assert_array_equal(answer.output_ids, fresh.output_ids)
        agrees(answer, oracle)
        ids = np.concatenate([ids, answer.output_ids, prompt(100 + turn, 10)])


def test_a_fork_copies_the_shared_prefix_and_leaves_the_history_it_came_from(
    model_folder: Path, oracle: Oracle
) -> None:
    served = engine(model_folder)
    first = run(served, Request("a", prompt(1, 60), 20))["a"]
    fork = np.concatenate([np.array(whole(first)[:50], dtype=np.int32), prompt(9, 20)])
    forked = run(served, Request("b", fork, 20))["b"]
    assert forked.cached_tokens == 50
    agrees(forked, oracle)
    again = run(served, Request("c", np.array([*whole(first), 7, 8], dtype=np.int32), 20))["c"]
    assert again.cached_tokens == 79
    agrees(again, oracle)


def test_staggered_arrivals_and_more_requests_than_slots_give_what_each_gives_alone(
    model_folder: Path, oracle: Oracle
) -> None:
    requests = [Request(f"r{i}", prompt(i, 5 + 13 * i % 90), 10 + 7 * i % 40, top_k=1) for i in range(14)]
    served = engine(model_folder, slots=5, prefill_tokens=32)
    together: dict[str, Answer] = {}
    pending = list(requests)
    while pending or served.busy:
        if pending:
            served.add(pending.pop(0))
        together.update((answer.request.rid, answer) for answer in served.step())
    for request in requests:
        alone = run(engine(model_folder), request)[request.rid]
        np.testing.assert_array_equal(alone.output_ids, together[request.rid].output_ids)
        agrees(together[request.rid], oracle)


def test_draws_repeat_with_the_seed_and_do_not_depend_on_the_order_of_arrival(model_folder: Path) -> None:
    requests = [Request(f"r{i}", prompt(i % 3, 20), 20) for i in range(6)]
    forward = run(engine(model_folder, seed=1), *requests)
    backward = run(engine(model_folder, seed=1), *reversed(requests))
    outputs = [sorted(answer.output_ids.tobytes() for answer in answers.values()) for answers in (forward, backward)]
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0])) == 6, "the same prompt asked again is drawn anew"
    other = run(engine(model_folder, seed=2), *requests)
    assert sorted(answer.output_ids.tobytes() for answer in other.values()) != outputs[0]


def test_a_stop_id_ends_the_answer_and_is_part_of_it(model_folder: Path) -> None:
    free = run(engine(model_folder), Request("a", prompt(1, 20), 30, seed=1))["a"]
    stop = int(free.output_ids[10])
    stopped = run(engine(model_folder), Request("a", prompt(1, 20), 30, seed=1, stop_ids=frozenset([stop])))["a"]
    first = free.output_ids.tolist().index(stop)
    assert stopped.output_ids.tolist() == free.output_ids.tolist()[: first + 1]
    assert stopped.finish == {"type": "stop", "matched": stop}
    assert free.finish == {"type": "length", "length": 30}


def test_logprobs_of_the_prompt_are_untempered_and_start_where_asked(model_folder: Path, oracle: Oracle) -> None:
    served = engine(model_folder, prefill_tokens=16)
    run(served, Request("warm", prompt(1, 50), 2))
    for start in (0, 20, 49):
        request = Request("a", prompt(1, 50), 2, temperature=0.5, input_logprobs_from=start)
        answer = run(served, request)["a"]
        expected = oracle(request.prompt.tolist()).logprobs(request.prompt.tolist(), start + 1)
        np.testing.assert_allclose(answer.input_logprobs, expected, atol=1e-4, rtol=0)
        agrees(answer, oracle, temperature=0.5)


def test_an_aborted_request_keeps_what_it_drew_and_its_slot_is_reusable(model_folder: Path, oracle: Oracle) -> None:
    served = engine(model_folder, slots=1)
    served.add(Request("a", prompt(1, 20), 100))
    served.add(Request("b", prompt(2, 20), 5))
    for _ in range(10):
        served.step()
    (waiting,) = served.abort("b")
    assert waiting.cached_tokens is None
    assert waiting.routing is None
    (aborted,) = served.abort("a")
    assert aborted.finish["type"] == "abort"
    assert len(aborted.output_ids) == 10
    agrees(aborted, oracle)
    assert served.abort("a") == []
    after = run(served, Request("c", np.array([*whole(aborted), 5], dtype=np.int32), 5))["c"]
    assert after.cached_tokens == 29
    agrees(after, oracle)


def test_the_router_dtype_changes_choices_and_nothing_else_is_rounded(model_folder: Path, oracle: Oracle) -> None:
    requests = [Request(f"r{i}", prompt(i, 60), 60, seed=i) for i in range(8)]
    rounded = run(engine(model_folder, router_dtype="bfloat16"), *requests)
    flips = total = 0
    for answer in rounded.values():
        expected = np.sort(oracle(whole(answer)).experts[:-1], -1)
        assert answer.routing is not None
        flips += int((np.sort(answer.routing, -1) != expected).any(-1).sum())
        total += expected.shape[0] * expected.shape[1]
    assert 0 < flips < 0.2 * total


def test_bfloat16_stays_near_float32(model_folder: Path, oracle: Oracle) -> None:
    answer = run(engine(model_folder, dtype="bfloat16"), Request("a", prompt(1, 60), 60))["a"]
    ids = whole(answer)
    gap = np.abs(answer.logprobs - oracle(ids).logprobs(ids, 60))
    assert 1e-4 < gap.mean() < 0.3


def test_new_weights_are_used_at_once_after_a_flush(
    model_folder: Path, other_folder: Path, other_oracle: Oracle
) -> None:
    served = engine(model_folder)
    run(served, Request("a", prompt(1, 40), 10))
    served.load(load_weights(other_folder, served.arch, torch.float32, torch.float32), "7")
    served.flush()
    answer = run(served, Request("b", prompt(1, 40), 10))["b"]
    assert answer.cached_tokens == 0
    agrees(answer, other_oracle)


def test_a_broken_folder_is_named_with_what_is_wrong(model_folder: Path, tmp_path: Path) -> None:
    arch = Architecture.read(model_folder)
    with pytest.raises(CheckpointError, match="/nowhere does not exist"):
        Architecture.read(Path("/nowhere"))
    with pytest.raises(CheckpointError, match=r"has no model\.safetensors"):
        load_weights(tmp_path, arch, torch.float32, torch.float32)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "mlp_only_layers": [0]}))
    with pytest.raises(CheckpointError, match=r"model_type is 'llama'.*mlp_only_layers"):
        Architecture.read(tmp_path)
    tensors = load_file(model_folder / "model.safetensors")
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    kept = tensors.pop(name)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"no tensor {name}"):
        load_weights(tmp_path, arch, torch.float32, torch.float32)
    save_file({**tensors, name: kept * torch.nan}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="not finite"):
        load_weights(tmp_path, arch, torch.float32, torch.float32)
    save_file({**tensors, name: kept[:-1].contiguous()}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"config\.json implies"):
        load_weights(tmp_path, arch, torch.float32, torch.float32)
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_weights(tmp_path, arch, torch.float32, torch.float32)
