"""The jobs of a campaign in the order in which the flow asks for them, with what each leaves in the store.

The graph is that of `flows.campaign`; a test holds the jobs of a finished campaign against this list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from components import naming
from components.cluster import JobSpec
from components.config import CampaignConfig
from tasks import asks
from tasks.asks import Ask
from tasks.campaign import campaign_name
from tasks.results import Checkpoint, Pool, Samples, WarmCritic

AUDITED = ("aggregate", "gates", "audit", "repair", "reaudit", "select")
STEP = "<step>"
"""Stands in a key for every step of a job. What is known of a key only when it is written stands there like this."""
OF_THE_CAMPAIGN = ("campaign.json", "table.json", "results.json")
"""What the flow itself writes, below the campaign's key."""
OF_A_JOB = ("spec.json", "submitted-<attempt>.json", "followers/<flow run>.json", "result.json")
"""What is written of every job, below its own key."""


@dataclass(frozen=True)
class Foreseen:
    """A job that will be asked for.

    Attributes:
        task: name of its flow task's run.
        ask: what it will be asked. Without its measured inputs, where it is not `exact`.
        exact: whether its inputs, and with them its submission id, can be known beforehand.
        leaves: keys in the store, of what it makes.
        keeps: keys of what else it may write there, for whoever looks closer; of the trainer's states the newest stay.
        serves: key of the model that its samplers serve; None without samplers.
        trains: whether it has a trainer.
        beside: it runs beside what follows.
        captures: whether its samplers capture routing.
    """

    task: str
    ask: Ask
    leaves: tuple[str, ...]
    keeps: tuple[str, ...] = ()
    exact: bool = True
    serves: str | None = None
    trains: bool = False
    beside: bool = False
    captures: bool = True

    def spec(self, config: CampaignConfig) -> JobSpec:
        """Its identity."""
        return self.ask.spec(config)

    def submission_id(self, config: CampaignConfig) -> str:
        """Of its first attempt; `-r<k>` is appended for the k-th repetition."""
        spec = self.spec(config)
        return spec.base if self.exact else spec.base.removesuffix(spec.digest) + "<digest of what was measured>"


def course(config: CampaignConfig) -> list[Foreseen]:
    """Every job of the flow `campaign`."""
    name = campaign_name(config)
    pool = Pool(naming.pool_key(name), "", 0, 0, 0.0)
    return [*_pool(config, name), *_models(config, name, pool)]


def _pool(config: CampaignConfig, name: str) -> Iterator[Foreseen]:
    if config.pool.audit is None:
        yield Foreseen("curate", Ask("curate", 0, {}), (naming.pool_key(name),))
        return
    stages = [stage for stage in AUDITED if config.pool.audit.repair or stage not in ("repair", "reaudit")]
    for stage in stages:
        made = naming.curated_keys(name, stage)
        yield Foreseen(stage, Ask(stage, 0, {}), made, (_record(name, stage),), exact=stage == "aggregate")


def _models(config: CampaignConfig, name: str, pool: Pool) -> Iterator[Foreseen]:
    trials, legs = config.evaluation.trials, config.rl.legs
    if config.model.path is None:
        base = Checkpoint("base", naming.checkpoint_key(name, "base"), 0)
        yield Foreseen("base", asks.base(pool), (base.key,), _learned(config, "base"), trains=True)
    else:
        base = Checkpoint("base", naming.imported_key(name), 0)
    yield _evaluation(config, pool, base, trials, 0)
    before = Checkpoint("sft", naming.checkpoint_key(name, "sft"), 0)
    samples = None
    if config.sft.rejection is not None:
        samples = Samples(naming.samples_key(name), 0, 0)
        drawn = base.key if config.sft.rejection.teacher is None else None
        kept: tuple[str, ...] = (_record(name, "rejection"), naming.pass_key(name, "<pass>"), naming.fates_key(name))
        kept += (naming.lineage_key(name, "rejection"),)
        ask = asks.rejection(pool, base)
        yield Foreseen("rejection", ask, (samples.key,), kept, serves=drawn, captures=False)
    yield Foreseen("sft", asks.sft(pool, base, samples), (before.key,), _learned(config, "sft"), trains=True)
    yield _evaluation(config, pool, before, trials, 1)
    critic = None
    if config.ppo.warmup is not None:
        critic = WarmCritic(naming.critic_key(name))
        ask = asks.warmup(config, pool, before)
        yield Foreseen("warm-up", ask, (critic.key,), _stepped(name, "warmup"), serves=before.key, trains=True)
    for leg in range(1, legs + 1):
        ask, after = asks.leg(config, pool, before, leg, critic), _after(config, name, leg)
        made = (after.key, *([] if after.state is None else [after.state]))
        yield Foreseen(f"rl-leg-{leg}", ask, made, _stepped(name, "rl"), serves=before.key, trains=True)
        yield _evaluation(config, pool, after, trials if leg == legs else config.evaluation.leg_trials, leg + 1)
        yield _diagnosis(config, name, None if leg == legs else leg)
        before = after


def _record(name: str, stage: str) -> str:
    """Of every stage that tells its figures step by step."""
    return naming.step_key(name, stage, STEP, "record.json")


def _committed(name: str, stage: str) -> tuple[str, ...]:
    """Of every stage that a trainer takes the steps of."""
    state, refused = naming.step_key(name, stage, STEP, "state"), naming.refused_key(name, stage, STEP)
    return _record(name, stage), state, refused


def _learned(config: CampaignConfig, stage: Literal["base", "sft"]) -> tuple[str, ...]:
    """Beside the model of a supervised stage."""
    name, settings = campaign_name(config), config.base if stage == "base" else config.sft
    demonstrations = naming.demonstrations_key(name, stage)
    collected = settings is not None and settings.demonstrations is not None
    return (*_committed(name, stage), *((demonstrations, f"{demonstrations}.json") if collected else ()))


def _stepped(name: str, stage: str) -> tuple[str, ...]:
    """Beside the model of a stage of steps of RL."""
    batches = (naming.batch_key(name, stage, STEP, part) for part in naming.BATCH_PARTS)
    return (*_committed(name, stage), *batches, naming.lineage_key(name, stage), naming.tokenizer_key(name))


def _after(config: CampaignConfig, name: str, leg: int) -> Checkpoint:
    """What a leg leaves."""
    step = leg * config.rl.leg_steps
    state = naming.step_key(name, "rl", step - 1, "state")
    return Checkpoint(f"leg-{leg}", naming.leg_checkpoint_key(name, leg), step, state=state)


def _evaluation(config: CampaignConfig, pool: Pool, made: Checkpoint, trials: int, index: int) -> Foreseen:
    name, ask = campaign_name(config), asks.evaluation(pool, made, trials, index)
    left = (naming.evaluation_key(name, made.label, "trials"),)
    harbor = config.evaluation.harness == "harbor"
    own = naming.evaluation_key(name, made.label, "harbor") if harbor else naming.lineage_key(name, "evaluate")
    kept = [naming.tokenizer_key(name), own]
    return Foreseen(f"evaluate-{made.label}", ask, left, tuple(kept), serves=made.key, beside=True, captures=False)


def _diagnosis(config: CampaignConfig, name: str, leg: int | None) -> Foreseen:
    ask = asks.diagnosis(config, (), leg)
    made = [("report.html",), ("report.md",), ("figures", "<figure>.png"), naming.page_of("<trial>").split("/")]
    report, *kept = (naming.diagnosis_key(name, ask.inputs["through"], *parts) for parts in made)
    task = "diagnose" if leg is None else f"diagnose-{leg}"
    return Foreseen(task, ask, (report,), tuple(kept), exact=False, beside=leg is not None)
