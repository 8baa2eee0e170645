"""Every layout that two processes can have computes what one process computes: forward, backward, three steps.

Gradients are compared parameter by parameter: after the first step Adam's first moment is the clipped gradient, and a
trainer's state has it under the parameter's name in the whole model, however it was cut.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from components.config import CriticConfig, HlGaussConfig, LayoutConfig, ModelConfig, OptimizerConfig, TrainerConfig
from components.errors import ConfigError
from components.planner.device import held_by_device
from components.planner.host import held
from components.records import Float32, Sample
from components.trainer import Level, Trainer
from components.trainer.megatron import MegatronTrainer, RemoteTrainer
from components.trainer.ranks import Ranks
from tests.conformance.trainer_suite import ADAM, CRITIC, MUON, current, items, random_sample
from tests.trainer.ranks.functions import held as held_here

STEPS = 3
NETWORKS = ("actor", "critic")
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2": {"layout": {"tp": 2}},
    "dp2": {"layout": {"dp": 2}},
    "dp2 distributed optimizer": {"layout": {"dp": 2}, "distributed_optimizer": True},
    "ep2 allgather": {"layout": {"dp": 2, "ep": 2}},
    "ep2 alltoall": {"layout": {"dp": 2, "ep": 2}, "dispatcher": "alltoall"},
    "tp2 ep2": {"layout": {"tp": 2, "ep": 2}, "dispatcher": "alltoall"},
    "tp2 ep2 distributed optimizer": {"layout": {"tp": 2, "ep": 2}, "distributed_optimizer": True},
    "pp2": {"layout": {"pp": 2}},
    "pp2 full recompute": {"layout": {"pp": 2}, "recompute": "full"},
    "pp2 selective recompute": {"layout": {"pp": 2}, "recompute": "selective"},
    "cp2": {"layout": {"cp": 2}},
    "cp2 ep2": {"layout": {"cp": 2, "ep": 2}},
}
QUICK = ("dp2 distributed optimizer", "tp2 ep2", "pp2", "cp2")
"""One of each way to cut a model or a batch; the others, and their combinations, are for the night."""


def of_the_night(names: Iterable[str], quick: Sequence[str]) -> list[Any]:
    """All of the names, as parameters of a test; those that are not quick are run at night."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.nightly) for name in names]


@dataclass(frozen=True, eq=False)
class Run:
    """What a trainer made of the same batches."""

    logprobs: list[list[Float32]]
    values: list[list[Float32]]
    metrics: list[dict[str, float]]
    gradients: dict[str, Tensor]
    moments: dict[str, Tensor]
    weights: dict[str, Tensor]


@pytest.fixture(scope="module")
def batch(model: ModelConfig) -> list[Sample]:
    """Streams whose positions two context ranks cut without padding, in two micro-batches of 128 tokens: so every
    layout has the same ones, over which the load-balancing loss is a mean."""
    generator = np.random.default_rng(7)
    return [random_sample(generator, model, length) for length in (41, 9, 61, 33, 5, 49, 17)]


def trainer_config(**settings: Any) -> TrainerConfig:
    return TrainerConfig.model_validate({"micro_batch_tokens": 128, **settings})


def first_moments(trainer: Trainer, folder: Path) -> dict[str, Tensor]:
    """Adam's first moments of actor and critic, whole, by network and name."""
    trainer.state().write(folder)
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*_optimizer-*.safetensors")):
        network = file.name.partition("_")[0]
        with safe_open(file, framework="pt") as stored:
            for key, (dim, start, shape) in json.loads(stored.metadata()["places"]).items():
                name, _, entry = key.partition("|")
                if entry == "exp_avg":
                    part = stored.get_tensor(key)
                    whole = found.setdefault(f"{network}: {name}", torch.full(tuple(shape), torch.nan))
                    whole.narrow(dim, start, part.shape[dim]).copy_(part)
    return found


def learn(trainer: Trainer, batch: Sequence[Sample], folder: Path) -> Run:
    """Log-probs, values, steps of critic and actor, a supervised one with the load-balancing loss, and all again."""
    logprobs, values, metrics = [current(trainer, batch)], [trainer.values(batch)], []
    gradients: dict[str, Tensor] = {}
    for _ in range(STEPS):
        learn_items = items(trainer, batch)
        metrics.append(trainer.critic_step(learn_items))
        metrics.append(trainer.actor_step(learn_items, clip=0.2, temperature=0.9))
        gradients = gradients or first_moments(trainer, folder.with_name("first"))
    metrics.append(trainer.sft_step(batch, lr_share=1.0, aux_loss_coef=0.1))
    logprobs.append(current(trainer, batch, replay=False))
    values.append(trainer.values(batch))
    trainer.save_hf(folder)
    weights = {k: v for file in sorted(folder.glob("*.safetensors")) for k, v in load_file(file).items()}
    return Run(logprobs, values, metrics, gradients, first_moments(trainer, folder.with_name("last")), weights)


@pytest.fixture(scope="module")
def alone(model: ModelConfig, batch: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> Run:
    trainer = MegatronTrainer(model, trainer_config(), actor=ADAM, critic=CRITIC, seed=3)
    return learn(trainer, batch, tmp_path_factory.mktemp("alone") / "model")


def differences(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, float]:
    """Of each parameter's gradient, the norm of what differs as a share of its own; of one whose gradient is next to
    nothing, as a share of a thousandth of its network's."""
    assert one.keys() == other.keys()
    norms = {net: torch.cat([g.flatten() for k, g in one.items() if k.startswith(net)]).norm() for net in NETWORKS}
    return {
        name: float((gradient - other[name]).norm() / max(gradient.norm(), 1e-3 * norms[name.partition(":")[0]]))
        for name, gradient in one.items()
    }


def assert_same_gradients(one: dict[str, Tensor], other: dict[str, Tensor], *, rtol: float) -> None:
    wrong = {name: share for name, share in differences(one, other).items() if not share <= rtol}
    assert wrong == {}


def assert_same(one: Run, other: Run, *, atol: float = 2e-6, rtol: float = 2e-6) -> None:
    assert_same_gradients(one.gradients, other.gradients, rtol=rtol)
    for left, right in ((one.logprobs, other.logprobs), (one.values, other.values)):
        for first, second in zip(left, right, strict=True):
            for a, b in zip(first, second, strict=True):
                np.testing.assert_allclose(a, b, atol=atol)
    for a, b in zip(one.metrics, other.metrics, strict=True):
        assert a.keys() == b.keys()
        for name, value in a.items():
            assert b[name] == pytest.approx(value, rel=2.5 * atol, abs=1e-6), name
    assert_same_gradients(one.moments, other.moments, rtol=5 * rtol)
    assert one.weights.keys() == other.weights.keys()
    for name, weight in one.weights.items():
        torch.testing.assert_close(weight, other.weights[name], atol=atol, rtol=0, msg=name)


@pytest.mark.parametrize("name", of_the_night(LAYOUTS, QUICK))
def test_a_layout_computes_and_learns_what_one_process_does(
    ranks: Ranks, model: ModelConfig, batch: list[Sample], alone: Run, tmp_path: Path, name: str
) -> None:
    trainer = RemoteTrainer(ranks, model, trainer_config(**LAYOUTS[name]), actor=ADAM, critic=CRITIC, seed=3)
    assert_same(alone, learn(trainer, batch, tmp_path / "model"))


@pytest.mark.parametrize("tied", [pytest.param(True, marks=pytest.mark.nightly), False], ids=["tied", "untied"])
def test_ranks_hold_together_what_the_planner_counts(ranks: Ranks, model: ModelConfig, tied: bool) -> None:
    model = model.model_copy(update={"tie_word_embeddings": tied})
    for name, settings in LAYOUTS.items():
        config = trainer_config(**settings)
        RemoteTrainer(ranks, model, config, actor=ADAM, critic=CRITIC, seed=None)
        by_rank = ranks.call(held_here)
        # Norms, routers and the critic's head, of two ranks at the most, are not counted.
        small = 2 * (model.num_hidden_layers * (2 + model.num_experts) + 4) * model.hidden_size
        for (weights, moments), counted in zip(np.sum(by_rank, axis=0), held(model, config), strict=True):
            assert 0 <= weights - counted.weights <= small, name
            assert 0 <= moments - counted.moments <= small, name
        stages = ("first", "last") if config.layout.pp == 2 else ("only", "only")
        for rank, stage in zip(by_rank, stages, strict=True):
            for (weights, moments), counted in zip(rank, held_by_device(model, config, stage), strict=True):
                assert abs(weights - counted.weights) <= small, (name, stage)
                assert abs(moments - counted.moments) <= small, (name, stage)


@pytest.mark.parametrize("name", of_the_night(["dp2", "tp2", "pp2", "cp2"], ["tp2", "cp2"]))
def test_a_critic_of_bins_and_ratios_of_whole_streams_do_not_depend_on_the_layout(
    ranks: Ranks, model: ModelConfig, batch: list[Sample], tmp_path: Path, name: str
) -> None:
    level: Level = "token" if "cp" in name else "sequence"  # refused by the configuration: context ranks cut streams
    critic = CriticConfig(optimizer=ADAM, loss=HlGaussConfig(kind="hl_gauss", bins=11))
    runs = []
    for trainer in (
        MegatronTrainer(model, trainer_config(), actor=ADAM, critic=critic, seed=3),
        RemoteTrainer(ranks, model, trainer_config(**LAYOUTS[name]), actor=ADAM, critic=critic, seed=3),
    ):
        metrics = []
        for _ in range(STEPS):
            learn_items = items(trainer, batch)
            metrics.append(trainer.critic_step(learn_items))
            metrics.append(trainer.actor_step(learn_items, clip=0.01, temperature=0.9, level=level))
        trainer.save_hf(tmp_path / "critic", what="critic")
        trainer.load_hf(tmp_path / "critic", what="critic")
        runs.append((metrics, trainer.values(batch), current(trainer, batch)))
    (metrics, *arrays), (other_metrics, *other_arrays) = runs
    for a, b in zip(metrics, other_metrics, strict=True):
        assert b == pytest.approx(a, rel=5e-6, abs=1e-6)
    for left, right in zip(arrays, other_arrays, strict=True):
        for a, b in zip(left, right, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("name", of_the_night(["tp2", "tp2 ep2", "pp2"], ["tp2 ep2"]))
def test_muon_orthogonalises_whole_matrices_wherever_their_parts_are(
    ranks: Ranks, model: ModelConfig, batch: list[Sample], tmp_path: Path, name: str
) -> None:
    runs = []
    for trainer in (
        MegatronTrainer(model, trainer_config(), actor=MUON, seed=3),
        RemoteTrainer(ranks, model, trainer_config(**LAYOUTS[name]), actor=MUON, seed=3),
    ):
        metrics = [trainer.sft_step(batch, lr_share=1.0, aux_loss_coef=0.01) for _ in range(STEPS)]
        runs.append((metrics, current(trainer, batch)))
    for a, b in zip(runs[0][0], runs[1][0], strict=True):
        for key, value in a.items():
            assert b[key] == pytest.approx(value, rel=2e-5), key
    for left, right in zip(runs[0][1], runs[1][1], strict=True):
        np.testing.assert_allclose(left, right, atol=2e-5)


def test_an_untied_output_layer_is_cut_like_an_embedding_of_its_own(
    ranks: Ranks, model: ModelConfig, batch: list[Sample]
) -> None:
    untied = model.model_copy(update={"tie_word_embeddings": False})
    alone = MegatronTrainer(untied, trainer_config(), actor=ADAM, seed=3)
    metrics = [alone.sft_step(batch, lr_share=1.0, aux_loss_coef=0.0) for _ in range(STEPS)]
    for settings in (LAYOUTS["tp2"], LAYOUTS["pp2"]):
        trainer = RemoteTrainer(ranks, untied, trainer_config(**settings), actor=ADAM, seed=3)
        for expected in metrics:
            assert trainer.sft_step(batch, lr_share=1.0, aux_loss_coef=0.0) == pytest.approx(expected, rel=5e-6)


@pytest.mark.parametrize("name", of_the_night(["tp2", "cp2", "dp2", "ep2 allgather"], ["cp2", "dp2"]))
def test_streams_of_any_length_are_padded_where_ranks_must_cut_evenly(
    ranks: Ranks, model: ModelConfig, samples: list[Sample], name: str
) -> None:
    alone = MegatronTrainer(model, trainer_config(), actor=ADAM, critic=CRITIC, seed=3)
    trainer = RemoteTrainer(ranks, model, trainer_config(**LAYOUTS[name]), actor=ADAM, critic=CRITIC, seed=3)
    for left, right in zip(current(alone, samples), current(trainer, samples), strict=True):
        np.testing.assert_allclose(left, right, atol=2e-6)
    # One stream for two ranks: one of them has nothing but padding, and must stay in step.
    for batch in (samples, samples[:1]):
        one, two = (t.actor_step(items(t, batch), clip=0.2, temperature=1.0) for t in (alone, trainer))
        assert two == pytest.approx(one, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    ("layout", "problem"),
    [
        ({"tp": 4}, "trainer.layout.tp 4 does not divide model.num_key_value_heads 2: lower tp"),
        ({"pp": 4}, "trainer.layout.pp 4 does not divide model.num_hidden_layers 2"),
        ({"dp": 3, "ep": 3}, "trainer.layout.ep 3 does not divide model.num_experts 4"),
        ({"ep": 2}, "ep 2 must divide tp . cp . dp = 1.*raise dp"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_with_what_to_change(
    model: ModelConfig, layout: dict[str, int], problem: str
) -> None:
    with pytest.raises((ConfigError, ValueError), match=problem):
        MegatronTrainer(model, TrainerConfig(layout=LayoutConfig(**layout)), actor=OptimizerConfig(lr=1e-3))
