"""What a trainer computes with lies where its weights lie. Told on a CPU: some of its memory stands for a GPU's.

Found by a reader: batches were made on the CPU and stayed there, so that on a GPU not one forward pass was possible.
Nothing here was run on a GPU, and backward passes are not looked at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from components.config import CriticConfig, HlGaussConfig, ModelConfig, TrainerConfig
from components.records import Sample
from components.sampler import GroupAddress, weight_group
from components.sampler.weight_group import WeightGroup
from components.trainer.batching import gather, micro_batches, scatter
from components.trainer.megatron import MegatronTrainer, network, optimizer, platform, specs, trainer
from components.trainer.megatron.muon import matrix_parts
from components.trainer.megatron.network import Network
from components.trainer.megatron.optimizer import Adam
from tests.conformance.trainer_suite import ADAM, CRITIC, items, random_sample, same
from tests.trainer.conftest import HYBRID, MODEL

HERE = torch.device("cpu", 0)
"""Stands for the accelerator. Plain "cpu" is the host."""
META = torch.device("meta")


def here(tensor: Tensor) -> bool:
    """Whether a tensor's memory is the accelerator's."""
    return "here" in vars(tensor.untyped_storage())


def _placed(tensor: Tensor, device: Any) -> Tensor:
    """A tensor there; a copy, unless it is there already."""
    wanted = torch.device(device) in (HERE, torch.device("cuda"))
    if wanted == here(tensor):
        return tensor
    moved = tensor.clone()
    if wanted:
        vars(moved.untyped_storage())["here"] = True
    return moved


def _wanted(values: Sequence[Any]) -> tuple[Any, torch.dtype | None]:
    """Of the arguments of `Tensor.to`: where to, and as what."""
    device, dtype = None, None
    for value in values:
        if isinstance(value, Tensor):
            device, dtype = HERE if here(value) else torch.device("cpu"), value.dtype
        elif isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, torch.device | str):
            device = torch.device(value)
    return device, dtype


class Apart(TorchFunctionMode):
    """Refuses whatever CUDA refuses: to compute with tensors of the host and of the accelerator together."""

    MAY_MIX = (Tensor.copy_, Tensor.data.__set__, torch._has_compatible_shallow_copy_type)  # type: ignore[attr-defined]
    JOINS = (torch.stack, torch.cat)
    """Which do not take single numbers of the host either."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func == Tensor.device.__get__:  # type: ignore[attr-defined]
            return HERE if here(args[0]) else func(*args)
        if func is Tensor.cuda:
            return _placed(args[0], HERE)
        if func is Tensor.cpu:
            return _placed(args[0], "cpu")
        if func is Tensor.numpy:
            assert not here(args[0]), "numpy of the accelerator's memory"
        if func is Tensor.to:
            device, dtype = _wanted([*args[1:], *kwargs.values()])
            result = args[0] if dtype is None else func(args[0], dtype)
            return _placed(result, device or (HERE if here(args[0]) else "cpu"))
        if func is Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.")
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        self._check(func, given)
        device = kwargs.get("device")
        made = func(*args, **({**kwargs, "device": "cpu", "pin_memory": False} if device is not None else kwargs))
        if device is not None and not given:
            return _placed(made, device)
        if any(map(here, given)):
            for leaf in tree_leaves(made):
                if isinstance(leaf, Tensor):
                    vars(leaf.untyped_storage())["here"] = True
        return made

    def _check(self, func: Callable[..., Any], given: Sequence[Tensor]) -> None:
        if func in self.MAY_MIX:
            return
        if func in (Tensor.__getitem__, Tensor.__setitem__) and given and here(given[0]):
            return  # places may be the host's
        places = {here(tensor) for tensor in given if tensor.ndim or func in self.JOINS}
        assert len(places) < 2, f"{func.__name__} of tensors of the host and of the accelerator"


@contextlib.contextmanager
def accelerator() -> Iterator[None]:
    """Trainers are told that they have one."""
    platform.prepare()
    with pytest.MonkeyPatch.context() as patch:
        for module in (network, specs, trainer):
            patch.setattr(module, "device", lambda: HERE)
        for module in (network, specs, optimizer):
            patch.setattr(module, "cuda_as_cpu", contextlib.nullcontext)
        patch.setattr(network, "plain_torch", contextlib.nullcontext)  # it would end the mode, too
        for owner, name in ((torch.cuda, "current_device"), (platform, "_cpu_device")):  # the one becomes the other
            patch.setattr(owner, name, lambda: HERE)
        with Apart():
            yield


@pytest.fixture
def apart() -> Iterator[None]:
    """A test as a whole."""
    with accelerator():
        yield


def evaluated(self: Network, batches: Any, loss: Any, **_: Any) -> tuple[list[Any], float]:
    """In the place of `Network.train`: the loss of every micro-batch, and no backward pass."""
    return [kept for _, kept in self.evaluate(batches, loss)], 0.0


def made(model: ModelConfig, critic: CriticConfig = CRITIC) -> MegatronTrainer:
    return MegatronTrainer(model, TrainerConfig(micro_batch_tokens=128), actor=ADAM, critic=critic, seed=3)


def figures(made: MegatronTrainer, samples: Sequence[Sample]) -> list[Any]:
    """Of everything that it computes going forward."""
    learned = [
        made.sft_step(samples, lr_share=1.0, aux_loss_coef=0.0),
        made.critic_step(items(made, samples)),
        made.actor_step(items(made, samples), clip=0.2, temperature=1.0, level="token"),
        made.actor_step(items(made, samples), clip=0.2, temperature=1.0, level="sequence"),
    ]
    values = made.values(samples)
    scored = made.logprobs(samples, weights="behaviour", replay=True, temperature=1.0)
    return [*learned, *(array.tolist() for array in (*values, *scored))]


@pytest.mark.parametrize("model", [MODEL, HYBRID], ids=["attention", "delta nets"])
def test_a_forward_pass_and_every_loss_take_their_tensors_to_the_weights(
    model: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Network, "train", evaluated)
    generator = np.random.default_rng(7)
    samples = [random_sample(generator, model, length) for length in (40, 9, 61, 2)]
    plain = figures(made(model), samples)
    with accelerator():
        there = made(model)
        assert there.critic is not None
        assert all(map(here, [*there.actor.parameters().values(), *there.critic.parameters().values()]))
        assert figures(there, samples) == plain


def test_a_critic_of_bins_takes_its_tensors_there_too(
    apart: None, samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Network, "train", evaluated)
    there = made(MODEL, CRITIC.model_copy(update={"loss": HlGaussConfig(kind="hl_gauss", low=0, high=2, bins=5)}))
    assert there.critic_step(items(there, samples))["loss"] > 0


def test_what_ranks_add_up_is_on_the_accelerator(
    apart: None, samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Network, "train", evaluated)
    there, added = made(MODEL), list[bool]()
    alone = there.logprobs(samples, weights="current", replay=True, temperature=1.0)
    monkeypatch.setattr(there, "_data_ranks", lambda: SimpleNamespace(size=lambda: 2))
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, *_, **__: added.append(here(tensor)))
    assert same(there.logprobs(samples, weights="current", replay=True, temperature=1.0), alone)
    there.sft_step(samples, lr_share=1.0, aux_loss_coef=0.0)
    assert len(added) > 1
    assert all(added), "NCCL sends nothing from the host"


def test_a_tensor_that_was_forgotten_is_noticed(
    apart: None, samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = made(MODEL)
    monkeypatch.setattr(trainer, "logprobs", lambda outputs, targets, **_: outputs[:, 0] + targets.cpu())
    with pytest.raises(AssertionError, match="of the host and of the accelerator"):
        there.logprobs(samples, weights="current", replay=True, temperature=1.0)


def test_a_batch_moves_whole_but_for_the_routing(samples: list[Sample]) -> None:
    (batch,) = micro_batches(samples, 8_192, replay=True)
    moved = batch.to(META)
    names = ("ids_T", "offsets_T", "rows_M", "places_M", "targets_M", "streams_M")
    assert {getattr(moved, name).device.type for name in names} == {"meta"}
    assert moved.routing_LRK is batch.routing_LRK
    assert gather(moved, [sample.logprobs for sample in samples]).device.type == "meta"
    assert gather(replace(moved, streams=()), []).device.type == "meta"


def test_values_come_back_from_a_batch_that_was_moved(apart: None, samples: list[Sample]) -> None:
    (batch,) = micro_batches(samples, 8_192, replay=False)
    arrays = [sample.logprobs.copy() for sample in samples]
    wanted = [array.copy() for array in arrays]
    values = gather(batch.to(HERE), arrays)
    for array in arrays:
        array[1:] = 0
    scatter(batch.to(HERE), values, arrays)
    assert same([array[1:] for array in arrays], [array[1:] for array in wanted])


def test_what_an_optimizer_keeps_lies_with_its_parameters() -> None:
    weight = torch.empty(64, 32, device=META)
    assert {x.device.type for x in Adam([weight], 1e-3, (0.9, 0.98), 0.1).state[weight].values()} == {"meta"}
    parts = matrix_parts({weight: "decoder.layers.0.self_attention.linear_qkv.weight"}, MODEL)
    assert [part.rows.device.type for part in parts if part.rows is not None] == ["meta"] * 3


def test_weights_are_broadcast_from_where_the_backend_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    class Group:
        def broadcast(self, tensors: list[Tensor], _: Any) -> Any:
            sent.append(tensors[0].device.type)
            return SimpleNamespace(wait=lambda: None)

    monkeypatch.setitem(weight_group._DEVICE, "nccl", "meta")
    monkeypatch.setattr(weight_group, "_backend", lambda *_: Group())
    for backend in ("nccl", "gloo"):
        address = GroupAddress("g", "127.0.0.1", 1, 2, backend)
        WeightGroup(address, 0, timeout_s=1.0, store=HashStore()).broadcast([torch.zeros(2)])
    assert sent == ["meta", "cpu"]
