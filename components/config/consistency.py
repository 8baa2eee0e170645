"""Whether the sections of a campaign go together.

Invariant: a check reads the sections that it names and no other, so that what is wrong elsewhere hides none of its
findings. Every finding says which key, what is wrong with it, and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from components.config.layout import layout_problems
from components.config.rollout import HarnessConfig

if TYPE_CHECKING:
    from components.config.campaign import CampaignConfig

MOST_SEED = 4_000_000
"""A sampler's seed is a thousand of these, and what tells replicas and their starts apart; SGLang takes 32 bits."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check, and the sections that it reads."""

    find: Callable[[CampaignConfig], Iterator[str]]
    sections: frozenset[str]


def inconsistencies(config: CampaignConfig, unreadable: Collection[str] = ()) -> list[str]:
    """What does not go together.

    Args:
        unreadable: sections that `config` lacks, because they could not be read.
    """
    return [finding for check in CHECKS if check.sections.isdisjoint(unreadable) for finding in check.find(config)]


def _base(config: CampaignConfig) -> Iterator[str]:
    if (config.model.path is None) != (config.base is not None):
        yield "base is required when model.path is absent and refused when it is set: give one of the two"


def _trials(config: CampaignConfig) -> Iterator[str]:
    heldout = config.pool.heldout_tasks
    for key, asked in (("trials", config.evaluation.trials), ("leg_trials", config.evaluation.leg_trials)):
        if asked > heldout:
            yield (
                f"evaluation.{key} {asked} asks for more trials than pool.heldout_tasks ({heldout}): "
                "lower it, or hold out more tasks"
            )


def _batch(config: CampaignConfig) -> Iterator[str]:
    """Whether a batch is made of whole groups of distinct tasks."""
    batch, group, tasks = config.rollout.batch, config.ppo.group_size, config.pool.train_tasks
    if batch % group:
        yield f"rollout.batch {batch} is not a multiple of ppo.group_size {group}: change one of them"
    if batch > group * tasks:
        yield f"rollout.batch {batch} needs {batch // group} tasks, pool.train_tasks is {tasks}: lower or raise it"
    warmup = config.ppo.warmup
    if warmup and batch > group * warmup.tasks:
        yield (
            f"rollout.batch {batch} needs {batch // group} tasks, ppo.critic.warmup.tasks is {warmup.tasks}: "
            "lower one, raise the other"
        )


def _wall(config: CampaignConfig) -> Iterator[str]:
    wall, context = config.harness.max_context_tokens, config.sampler.context_tokens
    if wall > context:
        yield f"harness.max_context_tokens {wall} exceeds sampler.context_tokens {context}: raise that, or lower it"


def _positions(config: CampaignConfig) -> Iterator[str]:
    wall, longest = config.harness.max_context_tokens, config.model.max_position_embeddings
    if wall > longest:
        yield f"harness.max_context_tokens {wall} exceeds model.max_position_embeddings {longest}: lower it"


def _micro_batch(config: CampaignConfig) -> Iterator[str]:
    wall, held = config.harness.max_context_tokens, config.trainer.micro_batch_tokens
    if wall > held:
        yield f"trainer.micro_batch_tokens {held} cannot hold a trajectory of {wall} tokens: raise it to {wall}"


def _engine(config: CampaignConfig) -> Iterator[str]:
    model, sampler = config.model, config.sampler
    if sampler.engine == "embedded" and model.architecture != "qwen3_moe":
        yield f"sampler.engine: embedded does not run {model.architecture}; give sglang servers"
    if sampler.engine == "sglang" and model.architecture == "qwen3_moe" and model.tie_word_embeddings:
        yield (
            "sampler.engine: sglang draws from a random output layer where a qwen3_moe ties its own to the "
            "embedding: set model.tie_word_embeddings to false"
        )


def _seed(config: CampaignConfig) -> Iterator[str]:
    if config.sampler.sglang is not None and config.seed > MOST_SEED:
        yield f"seed {config.seed} makes seeds of samplers that SGLang does not take: choose one up to {MOST_SEED}"


def _replica(config: CampaignConfig) -> Iterator[str]:
    """Whether SGLang can cut the model over a replica's GPUs: it would say so when a server starts, in mid-campaign."""
    sglang, model = config.sampler.sglang, config.model
    if sglang is None:
        return
    whole, attends = sglang.tp, sglang.tp // sglang.dp
    part = "tp" if sglang.dp == 1 else "tp / dp"
    cuts = [(part, attends, "model.num_attention_heads", model.num_attention_heads)]
    if sglang.expert_parallel == "none":
        cuts.append(("tp", whole, "model.moe_intermediate_size", model.moe_intermediate_size))
    else:
        cuts.append(("tp", whole, "model.num_experts", model.num_experts))
    if (hybrid := model.hybrid) is not None:
        cuts.append((part, attends, "model.hybrid.linear_num_key_heads", hybrid.linear_num_key_heads))
    for key, parts, name, size in cuts:
        if size % parts:
            yield f"sampler.sglang.{key} {parts} does not divide {name} {size}: lower tp"
    heads = model.num_key_value_heads  # Fewer than GPUs are copied, each to as many.
    if heads % attends and attends % heads:
        yield f"sampler.sglang.{part} {attends} neither divides nor is a multiple of model.num_key_value_heads {heads}"


def _reachable(config: CampaignConfig) -> Iterator[str]:
    if config.sampler.placement == "ray" and config.publish.method == "disk" and config.publish.folder is None:
        yield "sampler.placement: ray needs publish.folder, or publish.method: collective"


def _layout(config: CampaignConfig) -> Iterator[str]:
    yield from layout_problems(config.trainer.layout, config.model)


def _streams(config: CampaignConfig) -> Iterator[str]:
    if config.ppo.algorithm == "gspo" and config.trainer.layout.cp > 1:
        yield "ppo.algorithm gspo needs whole streams, trainer.layout.cp cuts them: set it to 1"


def _muon(config: CampaignConfig) -> Iterator[str]:
    stages = {
        "base": config.base.optimizer if config.base else None,
        "sft": config.sft.optimizer,
        "ppo.actor": config.ppo.actor,
        "ppo.critic": config.ppo.critic.optimizer if config.ppo.critic else None,
    }
    muon = [name for name, optimizer in stages.items() if optimizer and optimizer.kind == "muon"]
    if config.trainer.distributed_optimizer and muon:
        yield (
            f"trainer.distributed_optimizer cuts matrices that muon needs whole ({', '.join(muon)}): "
            "set it to false, or their kind to adam"
        )


def _profile_context(config: CampaignConfig) -> Iterator[str]:
    context, name = config.evaluation.conditions.context_tokens, f"evaluation.profile {config.evaluation.profile}"
    held = {
        "sampler.context_tokens": config.sampler.context_tokens,
        "model.max_position_embeddings": config.model.max_position_embeddings,
    }
    for key, value in held.items():
        if context is not None and value < context:
            yield (
                f"{name} evaluates with a context of {context} tokens, {key} is {value}: "
                "raise it, or choose another profile"
            )


def _profile_limits(config: CampaignConfig) -> Iterator[str]:
    profile, name = config.evaluation.conditions, f"evaluation.profile {config.evaluation.profile}"
    if profile.compaction and config.harness.compaction is None:
        yield f"{name} rewrites histories: say with which budget (harness.compaction)"
    if _findings(config.harness.model_dump()):
        return  # It is refused as it is.
    for finding in _findings(config.harness.model_dump() | profile.harness_limits):
        yield f"{name}, with its own limits in force: {finding}"


def _samples(config: CampaignConfig) -> Iterator[str]:
    """Whether what SFT is to learn from can come about."""
    wanted, tasks, wall = config.sft.rejection, config.pool.train_tasks, config.harness.max_context_tokens
    if wanted is not None and wanted.tasks is not None and wanted.tasks > tasks:
        yield f"sft.rejection.tasks {wanted.tasks} exceeds pool.train_tasks {tasks}: lower it, or raise that"
    if wanted is not None and wanted.max_tokens is not None and wanted.max_tokens > wall:
        yield f"sft.rejection.max_tokens {wanted.max_tokens} exceeds harness.max_context_tokens {wall}: lower it"


def _findings(harness: dict[str, object]) -> list[str]:
    try:
        HarnessConfig.model_validate(harness)
    except ValidationError as error:
        return [
            f"{'.'.join(map(str, ('harness', *found['loc'])))}: {found['msg'].removeprefix('Value error, ')}"
            for found in error.errors()
        ]
    return []


def _check(find: Callable[[CampaignConfig], Iterator[str]], *sections: str) -> Check:
    return Check(find, frozenset(sections))


CHECKS = (
    _check(_base, "model", "base"),
    _check(_trials, "evaluation", "pool"),
    _check(_batch, "rollout", "ppo", "pool"),
    _check(_wall, "harness", "sampler"),
    _check(_positions, "harness", "model"),
    _check(_micro_batch, "harness", "trainer"),
    _check(_engine, "model", "sampler"),
    _check(_seed, "seed", "sampler"),
    _check(_replica, "sampler", "model"),
    _check(_reachable, "sampler", "publish"),
    _check(_layout, "trainer", "model"),
    _check(_streams, "ppo", "trainer"),
    _check(_samples, "sft", "pool", "harness"),
    _check(_muon, "base", "sft", "ppo", "trainer"),
    _check(_profile_context, "evaluation", "sampler", "model"),
    _check(_profile_limits, "evaluation", "harness"),
)
