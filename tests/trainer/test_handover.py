"""The delta net's recurrence over a context-parallel group, held against one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from components.trainer.megatron.delta_rule import CHUNK
from components.trainer.megatron.handover import Plan, Streams
from components.trainer.megatron.hybrid import Recurrence
from components.trainer.ranks import Ranks

GROUPS, SHARED, KEYS, VALUES, TAPS = 2, 2, 6, 5, 4


def even(ranks: int) -> tuple[int, ...]:
    """Lengths whose shards are whole chunks: every rank solves the systems that one process solves."""
    return (CHUNK * 2 * ranks, CHUNK * ranks)


def uneven(ranks: int) -> tuple[int, ...]:
    """Lengths whose shards end inside a chunk; one is shorter than the convolution."""
    return (160, 8, 2 * ranks, 72)


ROWS = ("output", "rows")
"""Results that each rank has of its own rows; of the others it has a summand."""
CASES = [(even, torch.float32), (uneven, torch.float32), (even, torch.float64), (uneven, torch.float64)]


def recurrence(kind: torch.dtype) -> Recurrence:
    torch.manual_seed(1)
    core = Recurrence(GROUPS, SHARED, KEYS, VALUES, TAPS, torch.float32)
    core.draw()
    return core.to(kind)


def inputs(kind: torch.dtype, lengths: Sequence[int]) -> list[Tensor]:
    """Of the whole streams: mixed, beta, alpha, and the weights of the loss."""
    torch.manual_seed(2)
    channels, heads = GROUPS * (2 * KEYS + SHARED * VALUES), GROUPS * SHARED
    widths = (channels, heads, heads, heads * VALUES)
    return [torch.randn(sum(lengths), width).to(kind) for width in widths]


def balanced_rows(rank: int, ranks: int, lengths: Sequence[int]) -> Tensor:
    """Places of a rank's rows in the whole streams, as the trainer cuts them."""
    places, start = [], 0
    for length in lengths:
        pieces = (torch.arange(length) + start).chunk(2 * ranks)
        places += [pieces[rank], pieces[2 * ranks - 1 - rank]]
        start += length
    return torch.cat(places)


def run(rank: int, ranks: int, kind: torch.dtype, lengths: Sequence[int]) -> dict[str, Tensor]:
    """One rank's outputs, and its gradients of rows and parameters, for a loss over all rows."""
    core = recurrence(kind)
    rows = balanced_rows(rank, ranks, lengths) if ranks > 1 else torch.arange(sum(lengths))
    mixed, beta, alpha, weights = (x[rows] for x in inputs(kind, lengths))
    leaves = [x.requires_grad_() for x in (mixed, beta, alpha)]
    streams = Streams(lengths, dist.group.WORLD if ranks > 1 else None)
    output = streams.balanced(core(*(streams.contiguous(x) for x in leaves), streams).flatten(1))
    (output * weights).sum().backward()
    named = {name: p.grad for name, p in core.named_parameters()}
    return {"output": output.detach(), "rows": torch.cat([x.grad for x in leaves], 1), **named}


def run_all(stage: dict[str, Any]) -> list[dict[str, NDArray[Any]]]:
    """Every case on one rank of all that there are."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found = [run(rank, ranks, kind, lengths(ranks)) for lengths, kind in CASES]
    return [{name: value.numpy() for name, value in case.items()} for case in found]


def test_two_ranks_that_hand_their_state_on_compute_what_one_process_computes(ranks: Ranks) -> None:
    check(ranks, 2)


@pytest.mark.nightly
def test_four_ranks_that_hand_their_state_on_compute_what_one_process_computes(four_ranks: Ranks) -> None:
    check(four_ranks, 4)


def check(pool: Ranks, ranks: int) -> None:
    answers = pool.call(run_all)
    found = [[{n: torch.tensor(value) for n, value in case.items()} for case in cases] for cases in answers]
    cases = []
    for case, (lengths, kind) in enumerate(CASES):
        order = torch.cat([balanced_rows(rank, ranks, lengths(ranks)) for rank in range(ranks)]).argsort()
        parts = {name: [part[case][name] for part in found] for name in found[0][case]}
        cases.append(
            (
                {n: torch.cat(x)[order] if n in ROWS else torch.stack(x).sum(0) for n, x in parts.items()},
                run(0, 1, kind, lengths(ranks)),
            )
        )
    (even_32, even_32_alone), (uneven_32, uneven_32_alone), even_64, uneven_64 = cases
    for found_64, alone_64 in (even_64, uneven_64):
        for name, expected in alone_64.items():
            torch.testing.assert_close(found_64[name], expected, atol=1e-12, rtol=1e-11, msg=name)
    assert torch.equal(even_32["output"], even_32_alone["output"])
    assert relative(gradients(even_32), gradients(even_32_alone)) <= 1e-6
    # Other chunks round otherwise: no further from the truth than one process is.
    assert relative(uneven_32["output"], uneven_32_alone["output"]) <= 1e-6
    truth = gradients(uneven_64[1])
    assert relative(gradients(uneven_32).double(), truth) <= 2 * relative(gradients(uneven_32_alone).double(), truth)


def gradients(found: dict[str, Tensor]) -> Tensor:
    return torch.cat([x.flatten() for name, x in found.items() if name != "output"])


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_rank_gets_its_shard_of_every_stream_in_order(ranks: int) -> None:
    lengths = tuple(2 * ranks * pieces for pieces in (5, 1, 4))
    whole = torch.arange(sum(lengths))
    plans = [Plan(lengths, rank, ranks) for rank in range(ranks)]
    sent = [whole[balanced_rows(rank, ranks, lengths)][plan.order] for rank, plan in enumerate(plans)]
    for rank, plan in enumerate(plans):
        arrived = [torch.split(sent[source], plans[source].sent)[rank] for source in range(ranks)]
        assert [len(rows) for rows in arrived] == plan.received
        shards = torch.cat(arrived)[plan.places]
        assert torch.equal(shards, torch.cat([stream.chunk(ranks)[rank] for stream in torch.split(whole, lengths)]))
        assert torch.equal(shards[plan.back], torch.cat(arrived))
        assert torch.equal(sent[rank][plan.home], whole[balanced_rows(rank, ranks, lengths)])
